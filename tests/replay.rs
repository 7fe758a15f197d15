//! If this fails, what a replay promises is not what a run does: users buy memory that does not help, and the default
//! policy was chosen by wrong numbers.

mod doubles;

use std::sync::Arc;

use doubles::{TestSource, manager_with};
use proptest::prelude::*;
use streamed_experts::{
    CachePolicy, Echo, Evictable, ExpertId, ExpertKey, Frequency, LayerId, Lru, PolicyScope, ReplaySlots,
    S3Fifo, Trace, Verdict, belady, bounds, replay, replay_from,
};

type Factory = fn(&PolicyScope<'_>) -> Box<dyn CachePolicy>;

const POLICIES: [(&str, Factory); 5] = [
    ("least recently used", Lru::boxed),
    ("ghost counts", Frequency::boxed),
    ("decayed counts", Frequency::boxed_decayed),
    ("S3-FIFO", S3Fifo::boxed),
    ("echo", Echo::boxed),
];

const OLMOE: &str = include_str!("../examples/data/olmoe-299.jsonl");
const KIMI: &str = include_str!("../examples/data/kimi-linear-300.jsonl");
const QWEN: &str = include_str!("../examples/data/qwen3-30b-128.jsonl");

/// Slots per layer, and the hit rates in percent published for LRU, ghost counts, decayed counts and the optimum.
const PUBLISHED: [(&str, u32, [f64; 4]); 6] = [
    (OLMOE, 16, [59.7, 59.9, 61.6, 72.3]),
    (OLMOE, 32, [79.4, 80.6, 81.8, 89.9]),
    (KIMI, 32, [58.4, 59.6, 60.5, 73.4]),
    (KIMI, 64, [72.9, 73.8, 74.1, 84.3]),
    (QWEN, 16, [60.7, 64.4, 64.7, 74.8]),
    (QWEN, 32, [80.5, 81.9, 82.2, 88.1]),
];

#[test]
fn the_published_hit_rates_are_reproduced() {
    for (text, slots, published) in PUBLISHED {
        let trace = Trace::from_text(text).unwrap();
        let slots = ReplaySlots::PerLayer(slots);
        let policies = POLICIES[..3].iter().map(|&(_, policy)| replay(&trace, &slots, policy).total);
        for (hits, published) in policies.chain([belady(&trace, &slots, 0)]).zip(published) {
            let percent = 100.0 * hits.rate();
            assert!((percent - published).abs() <= 0.1, "{percent:.2} against {published} with {slots:?}");
        }
    }
}

#[test]
fn the_default_policy_is_three_points_better_than_least_recently_used() {
    let gains = PUBLISHED.map(|(text, slots, [lru, ..])| {
        let trace = Trace::from_text(text).unwrap();
        100.0 * replay(&trace, &ReplaySlots::PerLayer(slots), Echo::boxed).total.rate() - lru
    });
    let mean = gains.iter().sum::<f64>() / 6.0;
    assert!(mean >= 3.0 && gains.iter().all(|&gain| gain > 0.0), "{gains:.2?}");
}

#[test]
fn a_run_has_the_hits_that_replay_promises() {
    for (name, policy) in POLICIES {
        for (slots, forwards) in [(16, 40), (5, 12)] {
            let trace = Trace::from_text(OLMOE).unwrap().part(0..forwards);
            let source = Arc::new(TestSource::new(&[64; 16]));
            let manager = manager_with(&source, source.plan(u64::from(slots), 8), 2, policy);
            for request in trace.requests() {
                drop(manager.lease_with(request.layer, request.experts, |_| {}).unwrap());
            }
            let telemetry = manager.telemetry();
            let replayed = replay(&widened(&trace), &ReplaySlots::PerLayer(slots), policy);
            let live = (telemetry.requests.hits, telemetry.policy.evictions, telemetry.policy.bypasses);
            assert_eq!(
                live,
                (replayed.total.hits, replayed.evictions, replayed.bypasses),
                "{name}, {slots} slots"
            );
            assert_eq!((telemetry.policy.violations, replayed.violations), (0, 0), "{name}");
            assert!(telemetry.requests.hits > 0);
        }
    }
}

/// The trace with all 64 experts known to every layer: the same numbers as the source gives the policy.
fn widened(trace: &Trace) -> Trace {
    assert!(
        trace.layers().iter().all(|layer| layer.experts == 64),
        "the part names every layer's last expert"
    );
    trace.clone()
}

#[test]
fn counting_from_a_later_forward_leaves_the_rest_as_it_is() {
    let trace = Trace::from_text(OLMOE).unwrap();
    let slots = ReplaySlots::PerLayer(16);
    let whole = replay(&trace, &slots, Echo::boxed).total;
    let late = replay_from(&trace, &slots, 150, Echo::boxed).total;
    let early = replay(&trace.part(0..150), &slots, Echo::boxed).total;
    assert_eq!(whole.hits, early.hits + late.hits);
    assert_eq!(whole.accesses, early.accesses + late.accesses);
}

#[test]
fn layers_may_have_different_numbers_of_slots() {
    let trace = Trace::from_text(OLMOE).unwrap();
    let mut slots = vec![16; 16];
    let even = replay(&trace, &ReplaySlots::Layers(slots.clone()), Lru::boxed);
    assert_eq!(even, replay(&trace, &ReplaySlots::PerLayer(16), Lru::boxed));
    slots[3] = 0;
    let without = replay(&trace, &ReplaySlots::Layers(slots), Lru::boxed);
    assert_eq!(without.layers[3].hits, 0);
    assert_eq!(without.layers[4], even.layers[4]);
}

/// Proposes experts that are not there.
#[derive(Debug)]
struct Liar;

impl CachePolicy for Liar {
    fn accessed(&mut self, _key: ExpertKey, _hit: bool) {}
    fn inserted(&mut self, _key: ExpertKey) {}
    fn removed(&mut self, _key: ExpertKey) {}
    fn victim(&mut self, incoming: Option<ExpertKey>, evictable: &dyn Evictable) -> Verdict {
        Verdict::Evict(incoming.unwrap_or(ExpertKey::new(evictable.layer(), ExpertId(u32::MAX))))
    }
}

#[test]
fn a_policy_that_lies_is_counted_and_replaced_by_least_recently_used() {
    let trace = Trace::from_text(OLMOE).unwrap();
    let slots = ReplaySlots::PerLayer(16);
    let lied = replay(&trace, &slots, |_| Box::new(Liar));
    assert_eq!(lied.total, replay(&trace, &slots, Lru::boxed).total);
    assert_eq!(lied.violations, lied.evictions);
}

fn traces() -> impl Strategy<Value = Trace> {
    let request = proptest::collection::vec(0u32..12, 1..7);
    let token = proptest::collection::vec(request, 3);
    proptest::collection::vec(token, 1..40).prop_map(|tokens| {
        let lines = tokens
            .iter()
            .enumerate()
            .map(|(tok, layers)| format!("{{\"tok\":{tok},\"layers\":{layers:?}}}\n"));
        Trace::from_text(&lines.collect::<String>()).unwrap()
    })
}

proptest! {
    #[test]
    fn no_policy_passes_its_bounds_or_breaks_a_rule(trace in traces(), slots in 0u32..14) {
        let slots = ReplaySlots::PerLayer(slots);
        let bounds = bounds(&trace, &slots);
        prop_assert!(bounds.belady_bypassing.hits >= bounds.belady.hits);
        prop_assert!(bounds.unlimited.hits >= bounds.belady_bypassing.hits);
        for (name, policy) in POLICIES {
            let replayed = replay(&trace, &slots, policy);
            prop_assert_eq!(replayed.violations, 0, "{}", name);
            prop_assert!(replayed.total.hits <= bounds.belady_bypassing.hits, "{}", name);
            prop_assert_eq!(&replayed, &replay(&trace, &slots, policy), "{} is not deterministic", name);
        }
    }

    #[test]
    fn policies_survive_calls_that_make_no_sense(calls in proptest::collection::vec((0u8..5, 0u32..4, 0u32..20), 0..200)) {
        use streamed_experts::{PolicyLayer, TierId};
        struct Any(LayerId);
        impl Evictable for Any {
            fn layer(&self) -> LayerId { self.0 }
            fn contains(&self, key: ExpertKey) -> bool { key.expert.0.is_multiple_of(2) }
            fn visit(&self, visit: &mut dyn FnMut(ExpertKey) -> bool) { visit(ExpertKey::new(self.0, ExpertId(0))); }
        }
        let layers = [1, 3].map(|layer| PolicyLayer { layer: LayerId(layer), experts: 16, resident_slots: 3 });
        for (_, policy) in POLICIES {
            let mut policy = policy(&PolicyScope { tier: TierId(0), layers: &layers });
            for &(call, layer, expert) in &calls {
                let key = ExpertKey::new(LayerId(layer), ExpertId(expert));
                match call {
                    0 => policy.requested(key.layer),
                    1 => policy.accessed(key, true),
                    2 => policy.inserted(key),
                    3 => policy.removed(key),
                    _ => { policy.victim(Some(key), &Any(key.layer)); }
                }
            }
        }
    }
}
