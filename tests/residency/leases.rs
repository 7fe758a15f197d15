//! One request at a time: hits, misses, promotion, bad input, leaks, generations.

use std::sync::Arc;

use streamed_experts::{CloseError, ExpertId, LayerId, LeaseError, LoadError, SlotRef, TelemetrySnapshot};

use crate::doubles::{Gate, Read, TestSource, experts, key, manager, pass, residents, verify};

const L0: LayerId = LayerId(0);

#[test]
fn a_miss_is_read_once_and_hits_from_then_on() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(4, 4), 2);
    assert_eq!(pass(&source, &manager, 0, &experts([3, 1])), [0; 0]);
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

#[test]
fn more_misses_than_a_layer_keeps_leave_the_first_in_rank_order() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(1, 4), 2);
    pass(&source, &manager, 0, &experts([6, 2, 4]));
    assert_eq!(residents(&manager, 0), [6]);
    let policy = manager.telemetry().policy;
    assert_eq!((policy.promotions, policy.evictions, policy.bypasses), (1, 0, 2));
    pass(&source, &manager, 0, &experts([7, 1]));
    assert_eq!(residents(&manager, 0), [7]);
}

#[test]
fn a_slot_changes_its_generation_each_time_it_is_refilled() {
    let source = Arc::new(TestSource::new(&[4]));
    let manager = manager(&source, source.plan(1, 1), 1);
    let mut seen: Vec<SlotRef> = Vec::new();
    for round in 0..12 {
        let lease = manager.lease_with(L0, &experts([round % 4]), |_| {}).unwrap();
        assert!(!lease.is_hit(0) && !seen.contains(&lease.slot(0)), "{:?} again", lease.slot(0));
        seen.push(lease.slot(0));
    }
    let slots: std::collections::HashSet<_> = seen.iter().map(|slot| slot.slot).collect();
    assert_eq!(slots.len(), 2, "one working and one resident slot were used in turn");
}

#[test]
fn a_lease_keeps_its_bytes_while_others_come_and_go() {
    let source = Arc::new(TestSource::new(&[16]));
    let manager = manager(&source, source.plan(2, 4), 2);
    let lease = manager.lease_with(L0, &experts([0, 1]), |_| {}).unwrap();
    for round in 0..20 {
        pass(&source, &manager, 0, &experts([2 + round % 14, 2 + (round + 5) % 14]));
        verify(&source, &lease);
    }
    lease.release().unwrap();
    assert_eq!(manager.telemetry().slots.leases, 0);
}

#[test]
fn a_resident_that_is_leased_does_not_give_way() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(1, 2), 1);
    pass(&source, &manager, 0, &experts([0]));
    let lease = manager.admit(L0, &experts([0])).unwrap();
    pass(&source, &manager, 0, &experts([1]));
    assert_eq!(residents(&manager, 0), [0], "the newcomer was not kept");
    lease.release().unwrap();
    pass(&source, &manager, 0, &experts([1]));
    assert_eq!(residents(&manager, 0), [1]);
}

#[test]
fn tiers_have_their_own_slots() {
    let source = Arc::new(TestSource::with_tiers(&[8, 200], &[(0, 4), (1, 4), (0, 4)]));
    let manager = manager(&source, source.plan(9, 2), 2);
    for layer in [0, 1, 2, 0, 1, 2] {
        pass(&source, &manager, layer, &experts([layer, 3]));
    }
    let (small, large) = (manager.tier_of(L0).unwrap(), manager.tier_of(LayerId(1)).unwrap());
    assert!(
        small != large
            && manager.bank(small).unwrap().slot_bytes() < manager.bank(large).unwrap().slot_bytes()
    );
    assert_eq!(manager.telemetry().requests.hits, 6);
}

#[test]
fn a_lease_that_waits_holds_reserved_slots_until_it_is_dropped() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(1, 2), 1);
    pass(&source, &manager, 0, &experts([7]));
    let lease = manager.admit(L0, &experts([0, 1])).unwrap();
    assert!(manager.try_admit(L0, &experts([2])).unwrap().is_none());
    drop(lease);
    assert!(manager.try_admit(L0, &experts([2])).unwrap().is_some());
    manager.check_invariants();
    assert_eq!(manager.telemetry().demand_reads.experts, 1, "what was never asked for was never read");
}

#[test]
fn leaked_slots_are_lost_and_named_and_nothing_else_is() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(1, 3), 1);
    pass(&source, &manager, 0, &experts([0]));
    let lease = manager.lease_with(L0, &experts([0, 1, 2]), |_| {}).unwrap();
    let leaked = lease.slot(1);
    lease.leak();
    let slots = manager.telemetry().slots;
    assert_eq!((slots.leaked, slots.leases), (3, 0));
    assert_eq!(manager.request_limit(L0), Some(1));
    assert_eq!(
        manager.admit(L0, &experts([3, 4])).unwrap_err().to_string(),
        "2 experts of L0 are more than its 3 working slots, of which leaked leases hold 2"
    );
    for round in 0..8 {
        pass(&source, &manager, 0, &experts([round]));
    }
    let lease = manager.admit(L0, &experts([1])).unwrap();
    assert_eq!((lease.is_hit(0), lease.slot(0)), (true, leaked), "a leaked expert still serves hits");
    verify(&source, &lease);
    lease.release().unwrap();
    manager.close().unwrap();
}

#[test]
fn leaking_a_lease_whose_misses_were_never_read_loses_only_its_hits() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(2, 2), 1);
    pass(&source, &manager, 0, &experts([0]));
    manager.admit(L0, &experts([0, 1])).unwrap().leak();
    assert_eq!(manager.telemetry().slots.leaked, 1);
    assert_eq!(manager.request_limit(L0), Some(2), "the leaked slot was resident");
    pass(&source, &manager, 0, &experts([4, 5]));
}

#[test]
fn closing_is_refused_while_experts_are_leased_and_then_final() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(1, 2), 2);
    let lease = manager.lease_with(L0, &experts([0]), |_| {}).unwrap();
    let error = manager.close().unwrap_err();
    assert_eq!((error, error.to_string()), (CloseError::Leased { leases: 1 }, "1 leases are held".into()));
    verify(&source, &lease);
    lease.release().unwrap();
    manager.close().unwrap();
    manager.close().unwrap();
    assert!(matches!(manager.admit(L0, &experts([0])).unwrap_err(), LeaseError::Closed));
    assert!(matches!(manager.try_admit(L0, &experts([0])).unwrap_err(), LeaseError::Closed));
    assert!(matches!(manager.preload_pins(), Ok(())), "there are none");
}

#[test]
fn a_lease_outlives_every_handle_of_its_manager() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(1, 2), 2);
    let mut lease = manager.admit(L0, &experts([0, 1])).unwrap();
    drop(manager);
    lease.wait_all().unwrap();
    verify(&source, &lease);
    drop(lease);
    assert_eq!(Arc::strong_count(&source), 1, "the readers have ended");
}

#[test]
fn pinned_experts_are_loaded_once_and_never_give_way() {
    let source = Arc::new(TestSource::new(&[8, 8]));
    let plan = source.plan_with(|budget| budget.pinned = vec![key(0, 3), key(1, 0), key(0, 1)]);
    let manager = manager(&source, plan, 2);
    manager.preload_pins().unwrap();
    manager.preload_pins().unwrap();
    assert_eq!(manager.telemetry().requests.requests, 0);
    assert_eq!((manager.telemetry().pinned_reads.experts, manager.telemetry().wait_time.count), (3, 0));
    for round in 0..10 {
        pass(&source, &manager, 0, &experts([round % 8]));
    }
    assert_eq!(pass(&source, &manager, 0, &experts([1, 3])), [0, 1]);
    assert_eq!(pass(&source, &manager, 1, &experts([0])), [0]);
    assert_eq!(manager.telemetry().pinned_reads.experts, 3);
}

#[test]
fn a_pinned_expert_that_was_not_preloaded_is_read_by_the_first_request() {
    let source = Arc::new(TestSource::new(&[8]));
    let plan = source.plan_with(|budget| budget.pinned = vec![key(0, 3)]);
    let manager = manager(&source, plan, 2);
    assert_eq!(pass(&source, &manager, 0, &experts([3])), [0; 0]);
    assert_eq!(pass(&source, &manager, 0, &experts([3])), [0]);
    assert_eq!(manager.telemetry().pinned_reads.experts, 1);
}

#[test]
fn draining_telemetry_begins_anew_but_keeps_the_state_of_the_slots() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(2, 2), 2);
    pass(&source, &manager, 0, &experts([0, 1]));
    manager.record_forward(std::time::Duration::from_millis(3));
    let warm_up = manager.drain_telemetry();
    assert_eq!((warm_up.requests.misses, warm_up.read_time.count, warm_up.wait_time.count), (2, 2, 1));
    assert_eq!(warm_up.forward_time.total_ns, 3_000_000);
    pass(&source, &manager, 0, &experts([0, 1]));
    let steady = manager.telemetry();
    assert_eq!((steady.requests.hits, steady.requests.misses, steady.read_time.count), (2, 0, 0));
    assert_eq!((steady.slots.resident, steady.slots.resident_bytes), (2, 2 * source.slot_bytes()));
    assert_eq!(steady.forward_time.count, 0);
}

#[test]
fn many_leases_at_once_get_their_own_buffers() {
    let source = Arc::new(TestSource::new(&[64]));
    let manager = manager(&source, source.plan(1, 40), 2);
    let leases: Vec<_> =
        (0..20).map(|n| manager.lease_with(L0, &experts([2 * n, 2 * n + 1]), |_| {}).unwrap()).collect();
    leases.iter().for_each(|lease| verify(&source, lease));
    drop(leases);
    manager.check_invariants();
}

#[test]
fn waiting_before_asking_for_the_misses_asks_for_them() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(1, 2), 1);
    let mut lease = manager.admit(L0, &experts([0])).unwrap();
    assert_eq!(lease.next_ready().unwrap().unwrap(), 0);
    lease.read_misses();
    assert!(lease.next_ready().is_none());
    lease.wait_all().unwrap();
    assert!(!matches!(lease.release(), Err(errors) if matches!(errors.errors()[0], LoadError::Cancelled)));
}
