//! Requests and openings that fail.

use std::io;

use crate::{
    ids::{ExpertId, ExpertKey, LayerId, TierId},
    store::{ChecksumMode, LoadErrors},
};

/// A request for experts that cannot be served. It holds nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// No such layer, or one without experts.
    #[error("{layer} is not a layer with experts")]
    UnknownLayer {
        /// The layer.
        layer: LayerId,
    },
    /// An expert beyond the last of its layer.
    #[error("{layer} has {experts} experts, {expert} was asked for")]
    UnknownExpert {
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
        /// How many there are.
        experts: u32,
    },
    /// The same expert twice in one request.
    #[error("{layer}{expert} is asked for twice in one request, at positions {first} and {second}")]
    Duplicate {
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
        /// Where it is named first.
        first: usize,
        /// Where it is named again.
        second: usize,
    },
    /// A request for nothing.
    #[error("a request for no experts of {layer}")]
    Empty {
        /// The layer.
        layer: LayerId,
    },
    /// More experts than there are working slots. Split the request into waves.
    #[error(
        "{experts} experts of {layer} are more than its {working_slots} working slots, of which leaked leases hold \
         {leaked_slots}"
    )]
    TooMany {
        /// The layer.
        layer: LayerId,
        /// Experts asked for.
        experts: usize,
        /// Working slots of the tier.
        working_slots: u32,
        /// Working slots lost to leaked leases.
        leaked_slots: u32,
    },
    /// The manager is closed.
    #[error("the residency manager is closed")]
    Closed,
    /// The wait was cancelled.
    #[error("the wait for working slots was cancelled")]
    Cancelled,
    /// Experts could not be loaded. Those that could are resident now, or free again.
    #[error("{0}")]
    Load(#[from] LoadErrors),
}

/// A manager that cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Too few or too many readers.
    #[error("{readers} reader threads: between 1 and {limit} are possible")]
    Readers {
        /// Asked for.
        readers: u32,
        /// At most.
        limit: u32,
    },
    /// Pieces that are too small or too large.
    #[error("reading in pieces of {piece_bytes} B: between {least_bytes} B and {most_bytes} B are possible")]
    PieceBytes {
        /// Asked for.
        piece_bytes: u64,
        /// At least.
        least_bytes: u64,
        /// At most.
        most_bytes: u64,
    },
    /// The plan was made for another source.
    #[error("the plan was not made for this source: {what} differ")]
    ForeignPlan {
        /// What differs.
        what: &'static str,
    },
    /// Not one bank for each tier.
    #[error("the plan has {tiers} tiers, {banks} banks were given")]
    BankCount {
        /// Tiers of the plan.
        tiers: usize,
        /// Banks given.
        banks: usize,
    },
    /// A bank that is not as the plan says.
    #[error(
        "the bank of {tier} has {slots} slots of {slot_bytes} B, the plan {planned_slots} of {planned_slot_bytes} B"
    )]
    BankShape {
        /// The tier.
        tier: TierId,
        /// Slots of the bank.
        slots: u32,
        /// Bytes of each.
        slot_bytes: u64,
        /// Slots of the plan.
        planned_slots: u32,
        /// Bytes of each.
        planned_slot_bytes: u64,
    },
    /// Checksums were asked for, and the source has none.
    #[error(
        "the source has no checksum of {key}, and `checksums` is {mode:?}: pack it, or add a file of checksums"
    )]
    NoChecksum {
        /// The first expert without one.
        key: ExpertKey,
        /// What was asked for.
        mode: ChecksumMode,
    },
    /// A governor for memory that cannot be given back.
    #[error(
        "a governor was asked for, but the memory of {tier}'s slots cannot be given back to the system: it is the \
         backend's own; use the host family, or no governor"
    )]
    Ungovernable {
        /// The first tier of which that is so.
        tier: TierId,
    },
    /// The system refused a thread.
    #[error("could not start {readers} reader threads")]
    Spawn {
        /// Asked for.
        readers: u32,
        /// What the system answered.
        source: io::Error,
    },
}

/// A manager that cannot be closed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Experts are leased. Nothing has changed; release them and try again.
    #[error("{leases} leases are held")]
    Leased {
        /// How many leases.
        leases: u64,
    },
}
