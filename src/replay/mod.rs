//! What a cache would have done: traces through the policies that run live, and bounds that no policy can pass.

mod bounds;
mod forecast;
mod slots;

use std::fmt;

pub use bounds::{Bounds, belady, bounds};
pub use forecast::Machine;

use self::slots::Slots;
use crate::{
    ids::{ExpertKey, LayerId, TierId},
    policy::{CachePolicy, PolicyLayer, PolicyScope, Verdict},
    traces::Trace,
};

/// How many slots the layers have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplaySlots {
    /// Each so many.
    PerLayer(u32),
    /// So many for each layer of the trace, in its order; 0 for layers beyond the list.
    Layers(Vec<u32>),
}

/// Hits and accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitCounts {
    /// Experts that were in memory when they were asked for.
    pub hits: u64,
    /// Experts that were asked for.
    pub accesses: u64,
}

/// What a replay came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// All together.
    pub total: HitCounts,
    /// By layer, in the trace's order.
    pub layers: Vec<HitCounts>,
    /// Experts that gave way.
    pub evictions: u64,
    /// Experts that were read and not kept.
    pub bypasses: u64,
    /// Answers of the policy that a slot table refuses.
    pub violations: u64,
}

impl HitCounts {
    /// Hits per access, 0 to 1; 0 without accesses.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn rate(&self) -> f64 {
        if self.accesses == 0 { 0.0 } else { self.hits as f64 / self.accesses as f64 }
    }

    fn count(&mut self, hit: bool) {
        self.accesses += 1;
        self.hits += u64::from(hit);
    }
}

impl fmt::Display for HitCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", 100.0 * self.rate())
    }
}

impl ReplaySlots {
    fn of(&self, trace: &Trace, position: usize) -> u32 {
        let slots = match self {
            Self::PerLayer(slots) => *slots,
            Self::Layers(slots) => slots.get(position).copied().unwrap_or(0),
        };
        slots.min(trace.layers()[position].experts)
    }
}

/// Runs a trace through a policy, one request after another, cold at first.
///
/// The policy is called as the manager calls it, in the same order, and its answers are checked as the manager checks
/// them; all layers are taken as one tier. The experts of a request cannot be evicted before it ends, since its lease
/// holds them. Misses have working slots besides, as they do live, so a request may be larger than a layer has slots.
#[must_use]
pub fn replay(
    trace: &Trace,
    slots: &ReplaySlots,
    policy: impl FnOnce(&PolicyScope<'_>) -> Box<dyn CachePolicy>,
) -> Replayed {
    replay_from(trace, slots, 0, policy)
}

/// [`replay`], but counts hits from forward `first` on: what came before warms the cache and the policy.
#[must_use]
pub fn replay_from(
    trace: &Trace,
    slots: &ReplaySlots,
    first: u64,
    policy: impl FnOnce(&PolicyScope<'_>) -> Box<dyn CachePolicy>,
) -> Replayed {
    let layers: Vec<_> = trace
        .layers()
        .iter()
        .enumerate()
        .map(|(position, layer)| PolicyLayer {
            layer: layer.layer,
            experts: layer.experts,
            resident_slots: slots.of(trace, position),
        })
        .collect();
    let mut policy = policy(&PolicyScope { tier: TierId(0), layers: &layers });
    let mut tables: Vec<_> = layers.iter().map(|&layer| Slots::new(layer)).collect();
    let mut replayed = Replayed { layers: vec![HitCounts::default(); layers.len()], ..Replayed::default() };
    let mut missed = Vec::new();
    for request in trace.requests() {
        let Some(position) = place(&layers, request.layer) else { continue };
        let table = &mut tables[position];
        missed.clear();
        policy.requested(request.layer);
        for &expert in request.experts {
            let key = ExpertKey::new(request.layer, expert);
            let hit = table.lease(expert);
            policy.accessed(key, hit);
            if !hit {
                missed.push(key);
            }
            if request.forward >= first {
                replayed.total.count(hit);
                replayed.layers[position].count(hit);
            }
        }
        for &key in &missed {
            settle(table, &mut *policy, key, &mut replayed);
        }
        table.release(request.experts);
    }
    replayed
}

fn place(layers: &[PolicyLayer], layer: LayerId) -> Option<usize> {
    layers.binary_search_by_key(&layer, |layer| layer.layer).ok()
}

/// Keeps an expert that was read, if there is room or the policy makes room.
fn settle(table: &mut Slots, policy: &mut dyn CachePolicy, key: ExpertKey, replayed: &mut Replayed) {
    if table.is_full() {
        let Some(coldest) = table.coldest() else {
            replayed.bypasses += 1;
            return;
        };
        let victim = match policy.victim(Some(key), table) {
            Verdict::Bypass => {
                replayed.bypasses += 1;
                return;
            }
            Verdict::Evict(victim) if table.may_evict(victim) => victim,
            Verdict::Evict(_) => {
                replayed.violations += 1;
                coldest
            }
        };
        policy.removed(victim);
        table.evict(victim);
        replayed.evictions += 1;
    }
    table.keep(key.expert);
    policy.inserted(key);
}
