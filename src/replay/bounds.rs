//! What no policy can pass.

use super::{HitCounts, ReplaySlots};
use crate::traces::Trace;

/// Hits that bound what a policy can reach on a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bounds {
    /// Belady's optimum: gives up what is needed again last, knows the future, and keeps every expert that was read.
    pub belady: HitCounts,
    /// Belady's optimum for a cache that need not keep what was read: no policy of the manager can pass this.
    pub belady_bypassing: HitCounts,
    /// The best set that never changes, in memory from the start: knows how often each expert will be used, not when.
    pub still: HitCounts,
    /// With room for everything: only first uses miss.
    pub unlimited: HitCounts,
}

/// [`Bounds`] of a trace.
#[must_use]
pub fn bounds(trace: &Trace, slots: &ReplaySlots) -> Bounds {
    let everything = ReplaySlots::PerLayer(u32::MAX);
    Bounds {
        belady: optimum(trace, slots, 0, false),
        belady_bypassing: optimum(trace, slots, 0, true),
        still: still(trace, slots),
        unlimited: optimum(trace, &everything, 0, false),
    }
}

/// The hits of Belady's optimum, lease-aware, from forward `first` on; what was read is always kept.
#[must_use]
pub fn belady(trace: &Trace, slots: &ReplaySlots, first: u64) -> HitCounts {
    optimum(trace, slots, first, false)
}

const NEVER: usize = usize::MAX;

/// Experts of one layer as Belady sees them.
#[derive(Clone, Copy, Debug)]
struct Seen {
    resident: bool,
    /// The request that holds it, counted from 1.
    held_by: usize,
    /// The next request that needs it.
    next: usize,
}

fn optimum(trace: &Trace, slots: &ReplaySlots, first: u64, bypass: bool) -> HitCounts {
    let mut counts = HitCounts::default();
    for (position, layer) in trace.layers().iter().enumerate() {
        let requests: Vec<_> = trace.requests().filter(|request| request.layer == layer.layer).collect();
        let mut upcoming = vec![NEVER; layer.experts as usize];
        let mut next_uses = Vec::new(); // of each access, backwards
        for (at, request) in requests.iter().enumerate().rev() {
            for expert in request.experts.iter().rev() {
                next_uses.push(std::mem::replace(&mut upcoming[expert.index()], at));
            }
        }
        let mut experts = vec![Seen { resident: false, held_by: 0, next: NEVER }; layer.experts as usize];
        let (slots, mut resident) = (slots.of(trace, position), 0);
        for (at, request) in requests.iter().enumerate() {
            for expert in request.experts {
                let seen = &mut experts[expert.index()];
                (seen.held_by, seen.next) = (at + 1, next_uses.pop().unwrap_or(NEVER));
            }
            for expert in request.experts {
                let Seen { resident: hit, next, .. } = experts[expert.index()];
                if request.forward >= first {
                    counts.count(hit);
                }
                if hit {
                    continue;
                }
                if resident < slots {
                    resident += 1;
                } else {
                    let evictable = experts.iter_mut().filter(|seen| seen.resident && seen.held_by != at + 1);
                    match evictable.max_by_key(|seen| seen.next) {
                        Some(victim) if !bypass || next < victim.next => victim.resident = false,
                        _ => continue,
                    }
                }
                experts[expert.index()].resident = true;
            }
        }
    }
    counts
}

fn still(trace: &Trace, slots: &ReplaySlots) -> HitCounts {
    let mut counts = HitCounts::default();
    for (position, layer) in trace.layers().iter().enumerate() {
        let mut uses = vec![0u64; layer.experts as usize];
        for request in trace.requests().filter(|request| request.layer == layer.layer) {
            for expert in request.experts {
                uses[expert.index()] += 1;
            }
        }
        uses.sort_unstable_by(|a, b| b.cmp(a));
        counts.accesses += uses.iter().sum::<u64>();
        counts.hits += uses.iter().take(slots.of(trace, position) as usize).sum::<u64>();
    }
    counts
}
