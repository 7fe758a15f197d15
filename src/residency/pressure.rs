//! Giving memory back, at points where that is safe.

use std::{fmt, io, time::Instant};

use super::{
    governor::{GovernedPlan, Governor, GovernorOptions, Sample},
    manager::{Inner, ResidencyManager},
    plan::{ResidencyPlan, TierPlan},
    spread::{Share, spread},
    state::{State, TierState},
    table::Role,
    telemetry::PolicyCounts,
};
use crate::{
    ids::{SlotId, TierId},
    os,
    sync::{
        Mutex,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
        lock,
    },
};

const NO_LIMIT: u64 = u64::MAX;

/// After so many safe points at most a slot whose memory the system refused is offered again.
const MAX_PAUSE: u32 = 1 << 12;

/// The limit that is wanted, and the one that holds.
#[derive(Debug)]
pub(super) struct Pressure {
    wanted_bytes: AtomicU64,
    /// Locked for a whole safe point, so that a slot whose memory is being given back is not taken into use.
    applied: Mutex<Applied>,
}

#[derive(Debug)]
struct Applied {
    limit_bytes: u64,
    settled: bool,
    governing: Option<Governing>,
    refused: Refused,
}

#[derive(Debug)]
struct Governing {
    governor: Governor,
    began: Instant,
    looked: Option<Instant>,
    limit_bytes: u64,
}

/// Slots out of use whose memory the system did not take back.
#[derive(Debug, Default)]
struct Refused {
    slots: Vec<(TierId, SlotId)>,
    /// Safe points until they are offered again, and how many there were this time.
    left: u32,
    pause: u32,
}

/// What a safe point did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SafePoint {
    /// Experts that gave way.
    pub evicted: u64,
    /// Slots that were taken out of use.
    pub disabled: u64,
    /// Slots that were taken back into use.
    pub enabled: u64,
    /// Memory that was given back to the system.
    pub released_bytes: u64,
    /// Memory of slots that were taken out of use, in a bank whose memory cannot be given back. It stays occupied.
    pub kept_bytes: u64,
    /// What leased experts keep above the limit. The next safe point tries again.
    pub over_limit_bytes: u64,
}

/// A slot whose memory the system did not take back, or did not count again. It is out of use, or in use, all the same.
/// Memory that was not taken back is offered again at later safe points, in growing distance, without another error.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReleaseFailure {
    /// The tier.
    pub tier: TierId,
    /// The slot.
    pub slot: SlotId,
    /// What the system answered.
    pub error: io::Error,
}

/// Memory that could not be given back or taken again; at least one slot's. The limit holds, and the table is consistent.
#[derive(Debug)]
#[non_exhaustive]
pub struct PressureError {
    /// What was done.
    pub done: SafePoint,
    /// Every slot that failed.
    pub failures: Vec<ReleaseFailure>,
}

impl fmt::Display for PressureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the system refused advice about the memory of {} slots:", self.failures.len())?;
        for (position, ReleaseFailure { tier, slot, error }) in self.failures.iter().enumerate() {
            write!(f, "{} {slot} of {tier} ({error})", if position > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for PressureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.failures.first().map(|failure| &failure.error as _)
    }
}

impl Pressure {
    pub(super) fn new(plan: &ResidencyPlan, governor: Option<GovernorOptions>) -> Self {
        let sum = |slots: fn(&TierPlan) -> u32| -> u64 {
            plan.tiers().iter().map(|tier| tier.slot_bytes() * u64::from(slots(tier))).sum()
        };
        let resident_bytes = sum(TierPlan::resident_slots);
        let base_bytes = sum(TierPlan::slots) - resident_bytes;
        let plan = GovernedPlan { budget_bytes: plan.budget_bytes(), base_bytes, resident_bytes };
        let governing = governor.map(|options| Governing {
            governor: Governor::new(options, plan),
            began: Instant::now(),
            looked: None,
            limit_bytes: NO_LIMIT,
        });
        let applied =
            Applied { limit_bytes: NO_LIMIT, settled: true, governing, refused: Refused::default() };
        Self { wanted_bytes: AtomicU64::new(NO_LIMIT), applied: Mutex::new(applied) }
    }
}

impl Governing {
    /// The limit, after a look at the system if it is time for one.
    fn limit_bytes(&mut self, inner: &Inner) -> u64 {
        let now = Instant::now();
        if self.looked.is_none_or(|looked| now - looked >= self.governor.interval()) {
            self.looked = Some(now);
            let sample = Sample {
                footprint_bytes: os::footprint_bytes(),
                available_bytes: os::available_memory_bytes(),
                pressure: os::memory_pressure().unwrap_or_default(),
                filled_bytes: inner.state().filled_bytes(),
            };
            self.limit_bytes = self.governor.look(now - self.began, &sample);
        }
        self.limit_bytes
    }
}

impl Refused {
    /// The slots to offer again, if it is time.
    fn due(&mut self) -> Vec<(TierId, SlotId)> {
        if self.slots.is_empty() {
            return Vec::new(); // allocates nothing
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return Vec::new();
        }
        self.pause = (self.pause * 2).clamp(1, MAX_PAUSE);
        self.left = self.pause;
        std::mem::take(&mut self.slots)
    }

    fn add<'a>(&mut self, failures: impl Iterator<Item = &'a ReleaseFailure>) {
        self.slots.extend(failures.map(|failure| (failure.tier, failure.slot)));
        self.slots.sort_unstable();
        self.slots.dedup();
        if self.slots.is_empty() {
            *self = Self::default();
        }
    }
}

impl ResidencyManager {
    /// Limits the bytes of resident experts (pinned ones and working slots not counted); `None`: no limit but the plan's.
    ///
    /// Takes effect at the next [`ResidencyManager::safe_point`]. Stores a number: may be called from any thread, and from
    /// a handler of the system's memory pressure signal.
    pub fn set_resident_limit_bytes(&self, limit_bytes: Option<u64>) {
        // Release pairs with the Acquire of `safe_point`; nothing but the number is passed.
        self.inner.pressure.wanted_bytes.store(limit_bytes.unwrap_or(NO_LIMIT), Release);
    }

    /// Makes the limit hold: call it between forwards. Costs a lock if nothing has changed; with a governor
    /// ([`ManagerOptions::governor`](crate::ManagerOptions::governor)) the system is asked now and then, and the lower of
    /// the two limits counts.
    ///
    /// The limit is spread over the layers as the budget was, except that a layer may be left with nothing. Each layer
    /// gives up its coldest experts, by the policy, but none that is leased; slots that the limit leaves no use for are
    /// taken out of use, and their memory is given back to the system. When the limit rises they come back into use, and
    /// fill as experts are read. Blocks while the system takes memory back.
    ///
    /// # Errors
    /// [`PressureError`] with every slot whose memory the system did not take back, once; it is offered again later. A
    /// bank whose memory cannot be given back by its nature (a backend's) is no error, but [`SafePoint::kept_bytes`].
    pub fn safe_point(&self) -> Result<SafePoint, PressureError> {
        let inner = &*self.inner;
        let mut applied = lock(&inner.pressure.applied);
        // Acquire pairs with the Release of `set_resident_limit_bytes`.
        let wanted_bytes = inner.pressure.wanted_bytes.load(Acquire);
        let governed = applied.governing.as_mut().map(|governing| governing.limit_bytes(inner));
        let limit_bytes = wanted_bytes.min(governed.unwrap_or(NO_LIMIT));
        let mut done = SafePoint::default();
        let again = applied.refused.due();
        if applied.settled && applied.limit_bytes == limit_bytes && again.is_empty() {
            return Ok(done);
        }
        let mut failures = Vec::new();
        let (settled, disabled) = inner.shrink_or_grow(limit_bytes, &mut done, &mut failures);
        (applied.limit_bytes, applied.settled) = (limit_bytes, settled);
        done.disabled = disabled.len() as u64;
        let refused = inner.give_back(disabled, &mut done);
        let refused_again = inner.give_back(inner.still_disabled(again), &mut done);
        applied.refused.add(refused.iter().chain(&refused_again));
        failures.extend(refused);
        if failures.is_empty() { Ok(done) } else { Err(PressureError { done, failures }) }
    }
}

impl Inner {
    /// Evicts, and takes slots out of use or back into it; whether the limit holds, and the slots that are out of use now.
    fn shrink_or_grow(
        &self,
        limit_bytes: u64,
        done: &mut SafePoint,
        failures: &mut Vec<ReleaseFailure>,
    ) -> (bool, Vec<(TierId, SlotId)>) {
        let allowed = allowances(self.plan(), limit_bytes);
        let mut disabled = Vec::new();
        let mut state = self.state();
        let State { tiers, telemetry, .. } = &mut *state;
        let mut settled = true;
        for ((tier, id), allowed) in tiers.iter_mut().zip((0..).map(TierId)).zip(allowed) {
            settled &= tier.shrink(&allowed, done, &mut telemetry.policy);
            while let Some(slot) = tier.table.enable() {
                done.enabled += 1;
                let reused = self.core.banks[id.index()].fill(slot).reuse_memory();
                failures.extend(reused.err().map(|error| ReleaseFailure { tier: id, slot, error }));
            }
            while let Some(slot) = tier.table.disable() {
                disabled.push((id, slot));
            }
            settled &= tier.table.disabled_slots() == tier.table.disable_target();
            self.core.slots_freed(tier);
        }
        (settled, disabled)
    }

    /// Those of `slots` that have not come back into use meanwhile.
    fn still_disabled(&self, mut slots: Vec<(TierId, SlotId)>) -> Vec<(TierId, SlotId)> {
        if !slots.is_empty() {
            let state = self.state();
            slots.retain(|&(tier, slot)| state.tiers[tier.index()].table.role(slot) == Role::Disabled);
        }
        slots
    }

    /// Gives back the memory of slots that are out of use; those that the system refused.
    fn give_back(&self, slots: Vec<(TierId, SlotId)>, done: &mut SafePoint) -> Vec<ReleaseFailure> {
        if slots.is_empty() {
            return Vec::new();
        }
        let (mut released, mut refused) = (Vec::with_capacity(slots.len()), Vec::new());
        for (tier, slot) in slots {
            let bank = &self.core.banks[tier.index()];
            let slot_bytes = bank.bank().slot_bytes() as u64;
            match bank.fill(slot).release_memory() {
                Ok(()) => {
                    done.released_bytes += slot_bytes;
                    released.push((tier, slot));
                }
                Err(error) if error.kind() == io::ErrorKind::Unsupported => done.kept_bytes += slot_bytes,
                Err(error) => refused.push(ReleaseFailure { tier, slot, error }),
            }
        }
        let mut state = self.state();
        for (tier, slot) in released {
            state.tiers[tier.index()].table.released(slot);
        }
        refused
    }
}

impl TierState {
    /// Evicts until no layer has more than it is allowed; whether that was reached.
    fn shrink(&mut self, allowed: &[u32], done: &mut SafePoint, counts: &mut PolicyCounts) -> bool {
        let mut over = 0;
        for (layer, &allowed) in allowed.iter().enumerate() {
            self.table.allow(layer, allowed);
            while self.table.layers()[layer].resident > allowed {
                let Some(victim) = self.advisor.victim(&self.table, layer, None, counts) else { break };
                if let Some(key) = self.table.key(victim) {
                    self.advisor.removed(key, counts);
                }
                self.table.vacate(victim);
                counts.pressure_evictions += 1;
                done.evicted += 1;
            }
            over += u64::from(self.table.layers()[layer].resident.saturating_sub(allowed));
        }
        done.over_limit_bytes += over * self.slot_bytes;
        over == 0
    }
}

/// How many residents each layer of each tier is left.
fn allowances(plan: &ResidencyPlan, limit_bytes: u64) -> Vec<Vec<u32>> {
    let mut layers: Vec<_> =
        plan.tiers().iter().flat_map(|tier| tier.layers().iter().map(move |layer| (tier, layer))).collect();
    layers.sort_by_key(|(_, layer)| layer.layer());
    let mut shares: Vec<_> = layers
        .iter()
        .map(|(tier, layer)| Share { slot_bytes: tier.slot_bytes(), slots: 0, most: layer.resident_slots() })
        .collect();
    spread(&mut shares, limit_bytes);
    let mut allowed: Vec<_> = plan.tiers().iter().map(|_| Vec::new()).collect();
    for ((tier, _), share) in layers.into_iter().zip(shares) {
        allowed[tier.tier().index()].push(share.slots);
    }
    allowed
}
