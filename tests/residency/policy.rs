//! Which experts stay: the default policy, policies of users, and policies that are wrong.

use std::sync::{Arc, Mutex};

use streamed_experts::{CachePolicy, Evictable, ExpertKey, LayerId, ResidencyManager, Verdict};

use crate::doubles::{TestSource, experts, key, manager, manager_with, pass, residents};

#[test]
fn the_least_recently_used_expert_gives_way() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(3, 3), 2);
    pass(&source, &manager, 0, &experts([0, 1, 2]));
    pass(&source, &manager, 0, &experts([0]));
    pass(&source, &manager, 0, &experts([5]));
    assert_eq!(residents(&manager, 0), [0, 2, 5]);
    pass(&source, &manager, 0, &experts([2]));
    pass(&source, &manager, 0, &experts([6]));
    assert_eq!(residents(&manager, 0), [2, 5, 6]);
}

#[test]
fn layers_keep_their_own_experts() {
    let source = Arc::new(TestSource::new(&[8, 8]));
    let manager = manager(&source, source.plan(2, 4), 2);
    pass(&source, &manager, 0, &experts([0, 1]));
    for round in 0..8 {
        pass(&source, &manager, 1, &experts([round]));
    }
    assert_eq!(residents(&manager, 0), [0, 1]);
}

/// Requests of a seeded trace; hits and residents after each.
fn run_trace(readers: u32) -> Vec<(Vec<usize>, Vec<u32>)> {
    let source = Arc::new(TestSource::new(&[16, 16]));
    let manager = manager(&source, source.plan(5, 4), readers);
    let mut random = fastrand::Rng::with_seed(7);
    (0..200)
        .map(|_| {
            let layer = random.u32(0..2);
            let mut ids: Vec<_> = (0..16).collect();
            random.shuffle(&mut ids);
            let request: Vec<_> =
                ids[..random.usize(1..=4)].iter().copied().map(streamed_experts::ExpertId).collect();
            (pass(&source, &manager, layer, &request), residents(&manager, layer))
        })
        .collect()
}

#[test]
fn the_same_requests_give_the_same_hits_and_evictions_with_any_number_of_readers() {
    let one = run_trace(1);
    assert_eq!(one, run_trace(1));
    assert_eq!(one, run_trace(7));
}

#[derive(Debug)]
struct Scripted<F>(F);

impl<F: FnMut(Option<ExpertKey>, &dyn Evictable) -> Verdict + Send> CachePolicy for Scripted<F>
where
    F: std::fmt::Debug,
{
    fn accessed(&mut self, _: ExpertKey, _: bool) {}
    fn inserted(&mut self, _: ExpertKey) {}
    fn removed(&mut self, _: ExpertKey) {}
    fn victim(&mut self, incoming: Option<ExpertKey>, evictable: &dyn Evictable) -> Verdict {
        (self.0)(incoming, evictable)
    }
}

type Victim = fn(Option<ExpertKey>, &dyn Evictable) -> Verdict;

/// A policy from a plain function, which is Debug.
fn with_victim(source: &Arc<TestSource>, victim: Victim) -> ResidencyManager {
    manager_with(source, source.plan(2, 3), 2, move |_| Box::new(Scripted(victim)))
}

#[test]
fn victims_that_may_not_be_evicted_are_refused_and_the_least_recently_used_goes() {
    let rubbish: [Victim; 5] = [
        |_, _| Verdict::Evict(key(0, 7)),                // not resident
        |_, _| Verdict::Evict(key(0, 900)),              // no such expert
        |_, _| Verdict::Evict(key(9, 0)),                // no such layer
        |_, _| Verdict::Evict(key(1, 0)),                // of another layer
        |incoming, _| Verdict::Evict(incoming.unwrap()), // the one to be kept
    ];
    for victim in rubbish {
        let source = Arc::new(TestSource::new(&[8, 8]));
        let manager = with_victim(&source, victim);
        pass(&source, &manager, 1, &experts([0]));
        pass(&source, &manager, 0, &experts([0, 1]));
        pass(&source, &manager, 0, &experts([4]));
        assert_eq!(residents(&manager, 0), [1, 4]);
        assert_eq!(manager.telemetry().policy.violations, 1);
    }
}

#[test]
fn a_leased_victim_is_refused() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = with_victim(&source, |_, evictable| {
        assert!(!evictable.contains(key(0, 0)), "a leased expert is not offered");
        Verdict::Evict(key(0, 0))
    });
    pass(&source, &manager, 0, &experts([0, 1]));
    let lease = manager.admit(LayerId(0), &experts([0])).unwrap();
    pass(&source, &manager, 0, &experts([4]));
    assert_eq!(residents(&manager, 0), [0, 4]);
    assert_eq!(manager.telemetry().policy.violations, 1);
    drop(lease);
}

#[test]
fn a_policy_may_keep_what_is_resident() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = with_victim(&source, |_, _| Verdict::Bypass);
    pass(&source, &manager, 0, &experts([0, 1]));
    pass(&source, &manager, 0, &experts([4, 5]));
    assert_eq!(residents(&manager, 0), [0, 1]);
    let policy = manager.telemetry().policy;
    assert_eq!((policy.bypasses, policy.evictions, policy.violations), (2, 0, 0));
}

#[test]
fn a_policy_that_panics_is_not_asked_again_and_the_table_goes_on() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = with_victim(&source, |_, _| panic!("the policy broke"));
    for round in 0..10 {
        pass(&source, &manager, 0, &experts([round % 8, (round + 1) % 8]));
    }
    assert_eq!(manager.telemetry().policy.violations, 1);
    assert_eq!(residents(&manager, 0), [1, 2]);
}

/// Writes down what it is told.
#[derive(Debug)]
struct Witness(Arc<Mutex<Vec<String>>>);

impl CachePolicy for Witness {
    fn requested(&mut self, layer: LayerId) {
        self.0.lock().unwrap().push(format!("asked of {layer}"));
    }
    fn accessed(&mut self, key: ExpertKey, hit: bool) {
        self.0.lock().unwrap().push(format!("{} {key}", if hit { "hit" } else { "miss" }));
    }
    fn inserted(&mut self, key: ExpertKey) {
        self.0.lock().unwrap().push(format!("in {key}"));
    }
    fn removed(&mut self, key: ExpertKey) {
        self.0.lock().unwrap().push(format!("out {key}"));
    }
    fn victim(&mut self, incoming: Option<ExpertKey>, evictable: &dyn Evictable) -> Verdict {
        let mut offered = Vec::new();
        evictable.visit(&mut |key| {
            offered.push(key);
            true
        });
        assert!(
            offered.is_sorted_by_key(|key| key.expert) && offered.iter().all(|&key| evictable.contains(key))
        );
        self.0.lock().unwrap().push(format!("{incoming:?} for one of {offered:?}"));
        Verdict::Evict(offered[0])
    }
}

#[test]
fn a_policy_is_told_everything_in_the_documented_order() {
    let source = Arc::new(TestSource::new(&[8]));
    let told = Arc::new(Mutex::new(Vec::new()));
    let plan = source.plan_with(|budget| budget.pinned = vec![key(0, 7)]);
    let manager = manager_with(&source, plan, 4, |scope| {
        let layers: Vec<_> =
            scope.layers.iter().map(|layer| (layer.layer.0, layer.experts, layer.resident_slots)).collect();
        assert_eq!((scope.tier.0, layers), (0, vec![(0, 8, 2)]));
        Box::new(Witness(Arc::clone(&told)))
    });
    pass(&source, &manager, 0, &experts([3, 7, 1]));
    pass(&source, &manager, 0, &experts([3, 5, 6]));
    manager.set_resident_limit_bytes(Some(source.slot_bytes()));
    manager.safe_point().unwrap();
    assert_eq!(
        *told.lock().unwrap(),
        [
            "asked of L0",
            "miss L0E3",
            "miss L0E1",
            "in L0E3",
            "in L0E1",
            "asked of L0",
            "hit L0E3",
            "miss L0E5",
            "miss L0E6",
            "Some(L0E5) for one of [L0E1]", // L0E3 belongs to the request
            "out L0E1",
            "in L0E5", // for L0E6 nothing may give way
            "None for one of [L0E3, L0E5]",
            "out L0E3",
        ]
    );
}
