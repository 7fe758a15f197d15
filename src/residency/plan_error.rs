//! Budgets that cannot be kept.

use std::fmt;

use crate::ids::{ExpertKey, LayerId, TierId};

/// A tier's part of the memory formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierNeed {
    /// The tier.
    pub tier: TierId,
    /// Bytes of one slot.
    pub slot_bytes: u64,
    /// Slots for misses.
    pub working_slots: u32,
    /// Slots that keep experts; in a refusal, the smallest number: one for each layer.
    pub resident_slots: u32,
    /// Slots of pinned experts.
    pub pinned_slots: u32,
}

impl fmt::Display for TierNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tier, slot_bytes, working_slots, resident_slots, pinned_slots } = self;
        write!(
            f,
            "{tier} {slot_bytes} B × ({working_slots} working + {resident_slots} resident + {pinned_slots} pinned)"
        )
    }
}

/// A budget that cannot be kept, or a source that cannot be planned for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The budget does not hold the fixed bytes, the working slots, one expert of each layer and the pinned experts.
    #[error(
        "a budget of {budget_bytes} B is too small by {missing_bytes} B: fixed {fixed_bytes} B{} = {needed_bytes} B at \
         least; raise the budget, or ask for fewer working slots or pinned experts",
        Terms(tiers)
    )]
    TooSmall {
        /// The budget.
        budget_bytes: u64,
        /// What the caller declared as fixed.
        fixed_bytes: u64,
        /// The smallest need of each tier.
        tiers: Vec<TierNeed>,
        /// The sum.
        needed_bytes: u64,
        /// What the budget lacks.
        missing_bytes: u64,
    },
    /// What is to be held cannot be counted in 64 bits, so no budget holds it.
    #[error(
        "fixed {fixed_bytes} B{} are more than 2^64 B, which no budget holds; is the fixed part right?",
        Terms(tiers)
    )]
    Overflow {
        /// What the caller declared as fixed.
        fixed_bytes: u64,
        /// The smallest need of each tier.
        tiers: Vec<TierNeed>,
    },
    /// The budget is more than there is. A cache that does not fit is slower than a small one.
    #[error(
        "a budget of {budget_bytes} B is more than the {machine_bytes} B of memory that this machine or its control \
         group has"
    )]
    BeyondMachine {
        /// The budget.
        budget_bytes: u64,
        /// The memory.
        machine_bytes: u64,
    },
    /// No request could be served.
    #[error("at least one working slot is needed, 0 were asked for")]
    NoWorkingSlots,
    /// More slots than can be numbered.
    #[error("{tier} would have {slots} slots, more than can be numbered")]
    TooManySlots {
        /// The tier.
        tier: TierId,
        /// The slots.
        slots: u64,
    },
    /// A pinned expert that the source does not have.
    #[error("{key} is to be pinned but does not exist")]
    UnknownPin {
        /// The expert.
        key: ExpertKey,
    },
    /// An expert pinned twice.
    #[error("{key} is to be pinned twice")]
    DuplicatePin {
        /// The expert.
        key: ExpertKey,
    },
    /// A layer of a tier that the source does not have.
    #[error("{layer} belongs to {tier}, which does not exist")]
    UnknownTier {
        /// The layer.
        layer: LayerId,
        /// The tier.
        tier: TierId,
    },
    /// A sparse layer without experts.
    #[error("{layer} has no experts")]
    EmptyLayer {
        /// The layer.
        layer: LayerId,
    },
    /// Layers out of order, or one named twice.
    #[error("{layer} comes after a layer that it should precede, or is named twice")]
    LayerOrder {
        /// The layer.
        layer: LayerId,
    },
    /// A tier without layers, or no tier at all.
    #[error("{tier} has no layers")]
    EmptyTier {
        /// The tier.
        tier: TierId,
    },
    /// More experts than any model has.
    #[error("the source has more than {limit} experts")]
    TooManyExperts {
        /// The limit.
        limit: u64,
    },
}

struct Terms<'a>(&'a [TierNeed]);

impl fmt::Display for Terms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|tier| write!(f, " + {tier}"))
    }
}
