//! Giving memory back, at points where that is safe.

use std::{fmt, io};

use super::{
    manager::{Inner, ResidencyManager},
    plan::ResidencyPlan,
    spread::{Share, spread},
    state::{State, TierState},
    telemetry::PolicyCounts,
};
use crate::{
    ids::{SlotId, TierId},
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
    pub(super) fn new() -> Self {
        let applied = Applied { limit_bytes: NO_LIMIT, settled: true };
        Self { wanted_bytes: AtomicU64::new(NO_LIMIT), applied: Mutex::new(applied) }
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

    /// Makes the limit hold: call it between forwards. Costs two locks if nothing has changed.
    ///
    /// The limit is spread over the layers as the budget was, except that a layer may be left with nothing. Each layer
    /// gives up its coldest experts, by the policy, but none that is leased; slots that the limit leaves no use for are
    /// taken out of use, and their memory is given back to the system. When the limit rises they come back into use, and
    /// fill as experts are read. Blocks while the system takes memory back.
    ///
    /// # Errors
    /// [`PressureError`] with every slot whose memory the system did not take back. A bank whose memory cannot be given
    /// back by its nature (a backend's) is no error, but [`SafePoint::kept_bytes`].
    pub fn safe_point(&self) -> Result<SafePoint, PressureError> {
        let inner = &*self.inner;
        let mut applied = lock(&inner.pressure.applied);
        // Acquire pairs with the Release of `set_resident_limit_bytes`.
        let limit_bytes = inner.pressure.wanted_bytes.load(Acquire);
        let mut done = SafePoint::default();
        if applied.settled && applied.limit_bytes == limit_bytes {
            return Ok(done);
        }
        let allowed = allowances(inner.plan(), limit_bytes);
        let (mut disabled, mut failures) = (Vec::new(), Vec::new());
        let mut state = inner.state();
        let State { tiers, telemetry, .. } = &mut *state;
        let mut settled = true;
        for ((tier, id), allowed) in tiers.iter_mut().zip((0..).map(TierId)).zip(allowed) {
            settled &= tier.shrink(&allowed, &mut done, &mut telemetry.policy);
            while let Some(slot) = tier.table.enable() {
                done.enabled += 1;
                let reused = inner.core.banks[id.index()].fill(slot).reuse_memory();
                failures.extend(reused.err().map(|error| ReleaseFailure { tier: id, slot, error }));
            }
            while let Some(slot) = tier.table.disable() {
                disabled.push((id, slot));
            }
            settled &= tier.table.disabled_slots() == tier.table.disable_target();
            inner.core.slots_freed(tier);
        }
        drop(state);
        *applied = Applied { limit_bytes, settled };
        inner.give_back(&disabled, &mut done, &mut failures);
        if failures.is_empty() { Ok(done) } else { Err(PressureError { done, failures }) }
    }
}

impl Inner {
    fn give_back(
        &self,
        slots: &[(TierId, SlotId)],
        done: &mut SafePoint,
        failures: &mut Vec<ReleaseFailure>,
    ) {
        done.disabled = slots.len() as u64;
        for &(tier, slot) in slots {
            let bank = &self.core.banks[tier.index()];
            let slot_bytes = bank.bank().slot_bytes() as u64;
            match bank.fill(slot).release_memory() {
                Ok(()) => done.released_bytes += slot_bytes,
                Err(error) if error.kind() == io::ErrorKind::Unsupported => done.kept_bytes += slot_bytes,
                Err(error) => failures.push(ReleaseFailure { tier, slot, error }),
            }
        }
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
