//! How a budget becomes slots.

use std::fmt;

use super::{
    plan_error::{PlanError, TierNeed},
    spread::{Share, spread},
};
use crate::{
    ids::{ExpertId, ExpertKey, LayerId, TierId},
    memory::{Bank, BankError, MemoryInfo, SLOT_ALIGNMENT_BYTES},
    sources::{ExpertSource, SparseLayer, Tier},
};

/// More experts than any model has: a source that claims more is damaged.
const MAX_EXPERTS: u64 = 1 << 22;

/// What memory may be used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// All of it: what is declared as fixed, and the slots. At most the memory of the machine.
    pub budget_bytes: u64,
    /// What the caller needs besides slots: the model's other weights, the KV cache, activations. Default 0.
    pub fixed_bytes: u64,
    /// Slots for experts that are not resident while they compute, for each tier: the most unique experts that one
    /// request may name. No more than the largest layer has experts are made. Default 64.
    pub working_slots: u32,
    /// Experts that are loaded once and never given up. Default none.
    pub pinned: Vec<ExpertKey>,
}

impl Budget {
    /// A budget of `budget_bytes` with every other option at its default.
    #[must_use]
    pub const fn new(budget_bytes: u64) -> Self {
        Self { budget_bytes, fixed_bytes: 0, working_slots: 64, pinned: Vec::new() }
    }
}

/// How many slots each tier and layer gets.
///
/// bytes = fixed + Σ over tiers of slot bytes × (working + resident + pinned). Every layer has at least one resident
/// slot (unless all its experts are pinned); what the budget leaves beyond that is spread evenly, a slot to every layer
/// in turn, the remainder to the first layers. Not counted: the tables (about 100 B for each slot and 4 B for each
/// expert) and up to 16 KiB of address space that each bank skips to begin on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidencyPlan {
    budget_bytes: u64,
    fixed_bytes: u64,
    tiers: Vec<TierPlan>,
}

/// The slots of one tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierPlan {
    tier: TierId,
    slot_bytes: u64,
    working_slots: u32,
    layers: Vec<LayerPlan>,
}

/// The slots of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlan {
    layer: LayerId,
    experts: u32,
    resident_slots: u32,
    pinned: Vec<ExpertId>,
}

impl ResidencyPlan {
    /// Plans `budget` for the experts of `source`. Reads nothing of the source but its tables.
    ///
    /// # Errors
    /// A budget that is too small, with every term; one larger than the memory of the machine (or of its control
    /// group); pinned experts that do not exist or are named twice; a source whose layers make no sense.
    pub fn new(source: &dyn ExpertSource, budget: &Budget) -> Result<Self, PlanError> {
        Self::within(source, budget, MemoryInfo::measure().total_bytes())
    }

    /// [`ResidencyPlan::new`] on a machine with `machine_bytes` of memory.
    pub(super) fn within(
        source: &dyn ExpertSource,
        budget: &Budget,
        machine_bytes: Option<u64>,
    ) -> Result<Self, PlanError> {
        if budget.working_slots == 0 {
            return Err(PlanError::NoWorkingSlots);
        }
        let mut tiers = tiers_of(source)?;
        for &key in &budget.pinned {
            pin(&mut tiers, key)?;
        }
        for tier in &mut tiers {
            let most = tier.layers.iter().map(|layer| layer.experts).max().unwrap_or(0);
            tier.working_slots = budget.working_slots.min(most);
            for layer in &mut tier.layers {
                layer.resident_slots = layer.unpinned().min(1);
            }
        }
        let mut plan = Self { budget_bytes: budget.budget_bytes, fixed_bytes: budget.fixed_bytes, tiers };
        let left_bytes = plan.check(machine_bytes)?;
        plan.spread(left_bytes);
        plan.check_addressable()?;
        Ok(plan)
    }

    /// Bytes that the smallest plan leaves of the budget.
    fn check(&self, machine_bytes: Option<u64>) -> Result<u64, PlanError> {
        let budget_bytes = self.budget_bytes;
        let needed_bytes = self.needed_bytes();
        if let Some(left_bytes) = u128::from(budget_bytes).checked_sub(needed_bytes) {
            return match machine_bytes {
                Some(machine_bytes) if budget_bytes > machine_bytes => {
                    Err(PlanError::BeyondMachine { budget_bytes, machine_bytes })
                }
                _ => Ok(u64::try_from(left_bytes).unwrap_or(u64::MAX)),
            };
        }
        let tiers = self.tiers.iter().map(TierPlan::need).collect();
        let fixed_bytes = self.fixed_bytes;
        let Ok(needed_bytes) = u64::try_from(needed_bytes) else {
            return Err(PlanError::Overflow { fixed_bytes, tiers });
        };
        let missing_bytes = needed_bytes - budget_bytes;
        Err(PlanError::TooSmall { budget_bytes, fixed_bytes, tiers, needed_bytes, missing_bytes })
    }

    fn spread(&mut self, left_bytes: u64) {
        let mut layers: Vec<_> = self
            .tiers
            .iter_mut()
            .flat_map(|tier| tier.layers.iter_mut().map(|layer| (tier.slot_bytes, layer)))
            .collect();
        layers.sort_by_key(|(_, layer)| layer.layer);
        let mut shares: Vec<_> = layers
            .iter()
            .map(|(slot_bytes, layer)| Share {
                slot_bytes: *slot_bytes,
                slots: layer.resident_slots,
                most: layer.unpinned(),
            })
            .collect();
        spread(&mut shares, left_bytes);
        for ((_, layer), share) in layers.into_iter().zip(shares) {
            layer.resident_slots = share.slots;
        }
    }

    fn check_addressable(&self) -> Result<(), PlanError> {
        for tier in &self.tiers {
            if u32::try_from(tier.count()).is_err() {
                return Err(PlanError::TooManySlots { tier: tier.tier, slots: tier.count() });
            }
        }
        Ok(())
    }

    fn needed_bytes(&self) -> u128 {
        u128::from(self.fixed_bytes)
            + self
                .tiers
                .iter()
                .map(|tier| u128::from(tier.slot_bytes) * u128::from(tier.count()))
                .sum::<u128>()
    }

    /// The budget it was made from.
    #[must_use]
    pub const fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// What the caller declared as fixed.
    #[must_use]
    pub const fn fixed_bytes(&self) -> u64 {
        self.fixed_bytes
    }

    /// Fixed bytes and all slots. At most the budget.
    #[must_use]
    pub fn planned_bytes(&self) -> u64 {
        u64::try_from(self.needed_bytes()).unwrap_or(u64::MAX)
    }

    /// The tiers, in the source's order.
    #[must_use]
    pub fn tiers(&self) -> &[TierPlan] {
        &self.tiers
    }

    /// One anonymous bank for each tier, with the slots of this plan.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub fn anonymous_banks(&self) -> Result<Vec<Bank>, BankError> {
        self.tiers.iter().map(|tier| Bank::anonymous(tier.slots(), tier.slot_bytes)).collect()
    }
}

impl TierPlan {
    /// The tier.
    #[must_use]
    pub const fn tier(&self) -> TierId {
        self.tier
    }

    /// Bytes of one slot.
    #[must_use]
    pub const fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Slots for misses: the most unique experts of one request.
    #[must_use]
    pub const fn working_slots(&self) -> u32 {
        self.working_slots
    }

    /// Slots that keep experts between requests, of all layers together.
    #[must_use]
    pub fn resident_slots(&self) -> u32 {
        self.layers.iter().map(|layer| layer.resident_slots).sum()
    }

    /// Slots of pinned experts.
    #[must_use]
    pub fn pinned_slots(&self) -> u32 {
        self.layers.iter().map(LayerPlan::pinned_slots).sum()
    }

    /// All slots: what the tier's bank must have.
    #[must_use]
    pub fn slots(&self) -> u32 {
        u32::try_from(self.count()).unwrap_or(u32::MAX)
    }

    /// The layers of the tier, ascending.
    #[must_use]
    pub fn layers(&self) -> &[LayerPlan] {
        &self.layers
    }

    fn count(&self) -> u64 {
        let layers =
            self.layers.iter().map(|layer| u64::from(layer.resident_slots) + layer.pinned.len() as u64);
        u64::from(self.working_slots) + layers.sum::<u64>()
    }

    fn need(&self) -> TierNeed {
        TierNeed {
            tier: self.tier,
            slot_bytes: self.slot_bytes,
            working_slots: self.working_slots,
            resident_slots: self.resident_slots(),
            pinned_slots: self.pinned_slots(),
        }
    }
}

impl LayerPlan {
    /// The layer.
    #[must_use]
    pub const fn layer(&self) -> LayerId {
        self.layer
    }

    /// How many experts it has.
    #[must_use]
    pub const fn experts(&self) -> u32 {
        self.experts
    }

    /// How many of them may be resident at once, besides the pinned ones.
    #[must_use]
    pub const fn resident_slots(&self) -> u32 {
        self.resident_slots
    }

    /// The pinned experts, ascending.
    #[must_use]
    pub fn pinned(&self) -> &[ExpertId] {
        &self.pinned
    }

    fn pinned_slots(&self) -> u32 {
        u32::try_from(self.pinned.len()).unwrap_or(u32::MAX)
    }

    fn unpinned(&self) -> u32 {
        self.experts - self.pinned_slots()
    }
}

impl fmt::Display for ResidencyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let planned_bytes = self.planned_bytes();
        write!(f, "budget {} B: fixed {} B", self.budget_bytes, self.fixed_bytes)?;
        for tier in &self.tiers {
            write!(f, " + {}", tier.need())?;
        }
        write!(f, " = {planned_bytes} B, {} B unused", self.budget_bytes - planned_bytes)?;
        for tier in &self.tiers {
            let shares = || tier.layers.iter().map(|layer| layer.resident_slots);
            write!(
                f,
                "\n{}: {} layers, {} to {} experts of a layer resident, requests of at most {} experts",
                tier.tier,
                tier.layers.len(),
                shares().min().unwrap_or(0),
                shares().max().unwrap_or(0),
                tier.working_slots
            )?;
        }
        Ok(())
    }
}

fn tiers_of(source: &dyn ExpertSource) -> Result<Vec<TierPlan>, PlanError> {
    let mut tiers: Vec<_> = (0..)
        .zip(source.tiers())
        .map(|(tier, Tier { layout, .. })| TierPlan {
            tier: TierId(tier),
            slot_bytes: layout.slot_bytes(),
            working_slots: 0,
            layers: Vec::new(),
        })
        .collect();
    let mut experts_in_all = 0;
    let mut before = None;
    for &SparseLayer { layer, tier, experts } in source.layers() {
        let tier_plan = tiers.get_mut(tier.index()).ok_or(PlanError::UnknownTier { layer, tier })?;
        experts_in_all += u64::from(experts);
        if experts == 0 {
            return Err(PlanError::EmptyLayer { layer });
        }
        if before.is_some_and(|before| before >= layer) {
            return Err(PlanError::LayerOrder { layer });
        }
        if experts_in_all > MAX_EXPERTS {
            return Err(PlanError::TooManyExperts { limit: MAX_EXPERTS });
        }
        before = Some(layer);
        tier_plan.layers.push(LayerPlan { layer, experts, resident_slots: 0, pinned: Vec::new() });
    }
    if let Some(tier) = tiers.iter().find(|tier| tier.layers.is_empty()) {
        return Err(PlanError::EmptyTier { tier: tier.tier });
    }
    if tiers.is_empty() {
        return Err(PlanError::EmptyTier { tier: TierId(0) });
    }
    debug_assert!(tiers.iter().all(|tier| tier.slot_bytes.is_multiple_of(SLOT_ALIGNMENT_BYTES)));
    Ok(tiers)
}

fn pin(tiers: &mut [TierPlan], key: ExpertKey) -> Result<(), PlanError> {
    let layer = tiers
        .iter_mut()
        .flat_map(|tier| &mut tier.layers)
        .find(|layer| layer.layer == key.layer)
        .filter(|layer| key.expert.0 < layer.experts)
        .ok_or(PlanError::UnknownPin { key })?;
    match layer.pinned.binary_search(&key.expert) {
        Ok(_) => Err(PlanError::DuplicatePin { key }),
        Err(at) => {
            layer.pinned.insert(at, key.expert);
            Ok(())
        }
    }
}
