//! If this fails, a layer computes with another expert's weights, the process hangs between two layers, or memory goes
//! beyond the budget.

mod doubles;

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use doubles::{
    Gate, Read, TestSource, eventually, experts, key, manager, manager_with, pass, residents, verify,
};
use streamed_experts::{
    CachePolicy, CancelToken, CloseError, Evictable, ExpertId, ExpertKey, LayerId, LeaseError, LoadError,
    SlotId, TelemetrySnapshot, Verdict,
};

const L0: LayerId = LayerId(0);
const L1: LayerId = LayerId(1);

#[test]
fn a_miss_is_read_once_and_hits_from_then_on() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(4, 4), 2);
    assert_eq!(pass(&source, &manager, 0, &experts([3, 1])), []);
    assert_eq!(pass(&source, &manager, 0, &experts([1, 3])), [0, 1]);
    let telemetry = manager.telemetry();
    assert_eq!((telemetry.requests.requests, telemetry.requests.hits, telemetry.requests.misses), (2, 2, 2));
    assert_eq!(telemetry.demand_reads.experts, 2);
    assert_eq!(telemetry.demand_reads.bytes, 2 * source.record_bytes());
    assert_eq!(telemetry.policy.promotions, 2);
}

#[test]
fn a_promoted_expert_stays_in_its_slot() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(2, 2), 2);
    let lease = manager.lease_with(L0, &experts([5, 6]), |_| {}).unwrap();
    let slots = [lease.slot(0), lease.slot(1)];
    lease.release().unwrap();
    let lease = manager.admit(L0, &experts([6, 5])).unwrap();
    assert_eq!([lease.slot(1), lease.slot(0)], slots, "slot and generation");
    verify(&source, &lease);
}

#[test]
fn hits_can_be_used_before_the_first_miss_is_read() {
    let gate = Gate::default();
    let held = gate.clone();
    let source = Arc::new(TestSource::new(&[8]).behaving(move |key| {
        if key.expert == ExpertId(2) {
            held.pass();
        }
        Read::Full
    }));
    let manager = manager(&source, source.plan(4, 4), 1);
    pass(&source, &manager, 0, &experts([0, 1]));
    let mut lease = manager.admit(L0, &experts([0, 2, 1])).unwrap();
    assert_eq!(lease.hits().collect::<Vec<_>>(), [0, 2]);
    assert_eq!(lease.misses().collect::<Vec<_>>(), [1]);
    assert!(source.is(key(0, 0), lease.bytes(0).unwrap()) && source.is(key(0, 1), lease.bytes(2).unwrap()));
    assert_eq!(lease.bytes(1).unwrap_err().to_string(), "L0E2, at position 1 of its lease, is not in memory");
    lease.read_misses();
    gate.wait_for(1);
    gate.open();
    assert_eq!(lease.next_ready().unwrap().unwrap(), 1);
    assert!(lease.next_ready().is_none());
    verify(&source, &lease);
}

#[test]
fn misses_are_told_in_order_of_landing() {
    let gate = Gate::default();
    let held = gate.clone();
    let source = Arc::new(TestSource::new(&[8]).behaving(move |key| {
        if key.expert == ExpertId(0) {
            held.pass();
        }
        Read::Full
    }));
    let manager = manager(&source, source.plan(4, 4), 2);
    let mut lease = manager.admit(L0, &experts([0, 1, 2])).unwrap();
    let first_two = [lease.next_ready().unwrap().unwrap(), lease.next_ready().unwrap().unwrap()];
    assert_eq!(first_two, [1, 2]);
    gate.open();
    assert_eq!(lease.next_ready().unwrap().unwrap(), 0);
    assert!(lease.next_ready().is_none());
}

#[test]
fn bad_requests_are_refused_with_their_numbers_and_hold_nothing() {
    let source = Arc::new(TestSource::new(&[8, 4]));
    let manager = manager(&source, source.plan(1, 3), 1);
    let refusal =
        |layer, experts: &[ExpertId]| manager.admit(LayerId(layer), experts).unwrap_err().to_string();
    assert_eq!(refusal(7, &experts([0])), "L7 is not a layer with experts");
    assert_eq!(refusal(1, &experts([4])), "L1 has 4 experts, E4 was asked for");
    assert_eq!(
        refusal(0, &experts([5, 1, 5])),
        "L0E5 is asked for twice in one request, at positions 0 and 2"
    );
    assert_eq!(refusal(0, &[]), "a request for no experts of L0");
    assert_eq!(
        refusal(0, &experts([0, 1, 2, 3])),
        "4 experts of L0 are more than its 3 working slots, of which leaked leases hold 0"
    );
    assert_eq!(refusal(0, &experts([u32::MAX])), "L0 has 8 experts, E4294967295 was asked for");
    assert_eq!(manager.telemetry(), TelemetrySnapshot::default());
    manager.check_invariants();
    pass(&source, &manager, 0, &experts([5, 1, 2]));
}
