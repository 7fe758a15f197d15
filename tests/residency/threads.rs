//! Several threads: no deadlock, no starvation, joined loads, cancelled waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use streamed_experts::{CancelToken, ExpertId, LayerId, LeaseError, LoadError, ResidencyManager};

use crate::doubles::{Gate, Read, TestSource, eventually, experts, manager, pass, residents, verify};

const L0: LayerId = LayerId(0);

/// A source whose reads of experts from `first` on wait at the gate, and a count of all reads' experts.
fn gated(experts: u32, first: u32) -> (Arc<TestSource>, Gate) {
    let gate = Gate::default();
    let held = gate.clone();
    let source = TestSource::new(&[experts]).behaving(move |key| {
        if key.expert.0 >= first {
            held.pass();
        }
        Read::Full
    });
    (Arc::new(source), gate)
}

#[test]
fn four_threads_with_random_requests_never_deadlock_and_always_see_their_own_bytes() {
    let source = Arc::new(TestSource::new(&[24, 24]));
    let manager = manager(&source, source.plan(3, 6), 3);
    let (done, finished) = mpsc::channel();
    for seed in 0..4 {
        let (source, manager, done) = (Arc::clone(&source), manager.clone(), done.clone());
        thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            for round in 0..400 {
                let layer = LayerId(random.u32(0..2));
                let mut ids: Vec<_> = (0..24).map(ExpertId).collect();
                random.shuffle(&mut ids);
                let mut lease = manager.admit(layer, &ids[..random.usize(1..=6)]).unwrap();
                match round % 5 {
                    0 => drop(lease),
                    1 => {
                        lease.read_misses();
                        drop(lease);
                    }
                    _ => {
                        lease.wait_all().unwrap();
                        verify(&source, &lease);
                        thread::yield_now();
                        verify(&source, &lease);
                        lease.release().unwrap();
                    }
                }
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..4 {
        finished.recv_timeout(Duration::from_secs(120)).expect("a thread is stuck or has failed");
    }
    manager.check_invariants();
    assert_eq!(manager.telemetry().slots.leases, 0);
    assert_eq!(manager.telemetry().policy.violations, 0);
}

#[test]
fn a_request_waits_holding_nothing() {
    let source = Arc::new(TestSource::new(&[16]));
    let manager = manager(&source, source.plan(1, 4), 2);
    pass(&source, &manager, 0, &experts([15]));
    let held = manager.lease_with(L0, &experts([0, 1]), |_| {}).unwrap();
    let waiting = thread::spawn({
        let manager = manager.clone();
        move || manager.lease_with(L0, &experts([15, 2, 3, 4]), |_| {}).unwrap().hits().count()
    });
    eventually("the request waits", || manager.try_admit(L0, &experts([9])).unwrap().is_none());
    assert_eq!(manager.telemetry().slots.leases, 1);
    manager.check_invariants();
    held.release().unwrap();
    // Its hit was looked up when it was admitted: releasing the other lease made another expert resident.
    assert_eq!(waiting.join().unwrap(), 0);
}

#[test]
fn a_large_request_is_not_starved_by_small_ones() {
    let source = Arc::new(TestSource::new(&[32]));
    let manager = manager(&source, source.plan(1, 4), 2);
    pass(&source, &manager, 0, &experts([31]));
    let first = manager.lease_with(L0, &experts([0, 1]), |_| {}).unwrap();
    let (admitted, order) = mpsc::channel();
    let request = |name: &'static str, ids: Vec<ExpertId>| {
        let (manager, admitted) = (manager.clone(), admitted.clone());
        thread::spawn(move || {
            let lease = manager.admit(L0, &ids).unwrap();
            admitted.send(name).unwrap();
            drop(lease);
        })
    };
    let large = request("large", experts([2, 3, 4, 5]).into());
    eventually("the large request waits", || manager.try_admit(L0, &experts([9])).unwrap().is_none());
    let small = request("small", experts([6]).into());
    thread::sleep(Duration::from_millis(50));
    assert!(order.try_recv().is_err(), "the small one has a free slot but does not overtake");
    let hit = manager.admit(L0, &experts([31])).unwrap();
    assert!(hit.is_hit(0), "a request that needs no slot does not wait");
    drop(hit);
    first.release().unwrap();
    assert_eq!([order.recv().unwrap(), order.recv().unwrap()], ["large", "small"]);
    large.join().unwrap();
    small.join().unwrap();
    assert_eq!(manager.telemetry().requests.blocked, 2);
}

#[test]
fn everybody_in_line_who_fits_is_admitted_whatever_order_they_wake_in() {
    let source = Arc::new(TestSource::new(&[32]));
    let manager = manager(&source, source.plan(1, 8), 2);
    pass(&source, &manager, 0, &experts([31]));
    for _ in 0..100 {
        let held = manager.lease_with(L0, &experts([0, 1, 2, 3, 4, 5, 6, 7]), |_| {}).unwrap();
        let (admitted, order) = mpsc::channel();
        for expert in 10..18 {
            let (manager, admitted) = (manager.clone(), admitted.clone());
            thread::spawn(move || {
                let lease = manager.admit(L0, &experts([expert])).unwrap();
                assert!(admitted.send(lease).is_ok(), "somebody waits for it");
            });
        }
        thread::sleep(Duration::from_millis(2)); // most of them wait by now; the others change nothing
        held.release().unwrap();
        let lease = || order.recv_timeout(Duration::from_secs(20)).expect("a request waits though it fits");
        drop((0..8).map(|_| lease()).collect::<Vec<_>>());
    }
    manager.check_invariants();
}

#[test]
fn an_expert_that_is_being_loaded_is_joined_not_read_twice() {
    let (source, gate) = gated(8, 0);
    let manager = manager(&source, source.plan(2, 4), 2);
    let mut one = manager.admit(L0, &experts([5])).unwrap();
    one.read_misses();
    gate.wait_for(1);
    let mut other = manager.admit(L0, &experts([2, 5])).unwrap();
    assert_eq!((other.hits().count(), other.slot(1)), (0, one.slot(0)));
    other.read_misses();
    gate.open();
    one.wait_all().unwrap();
    other.wait_all().unwrap();
    verify(&source, &one);
    verify(&source, &other);
    one.release().unwrap();
    verify(&source, &other);
    other.release().unwrap();
    let telemetry = manager.telemetry();
    assert_eq!((telemetry.requests.misses, telemetry.requests.joined), (2, 1));
    assert_eq!(telemetry.demand_reads.experts, 2);
    assert_eq!(residents(&manager, 0), [2, 5]);
}

#[test]
fn a_joined_expert_is_read_even_if_the_first_lease_never_asks_or_goes_away() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(2, 4), 1);
    let first = manager.admit(L0, &experts([5, 6])).unwrap();
    let mut second = manager.admit(L0, &experts([6, 5])).unwrap();
    drop(first);
    second.wait_all().unwrap();
    verify(&source, &second);
    second.release().unwrap();
    manager.check_invariants();
    assert_eq!(manager.telemetry().requests.joined, 2);
}

#[test]
fn dropping_a_lease_takes_back_what_is_queued_and_frees_what_is_being_read() {
    let (source, gate) = gated(8, 0);
    let manager = manager(&source, source.plan(1, 3), 1);
    let mut lease = manager.admit(L0, &experts([0, 1, 2])).unwrap();
    lease.read_misses();
    gate.wait_for(1);
    drop(lease);
    manager.check_invariants();
    assert_eq!(manager.telemetry().demand_reads.cancelled, 2);
    gate.open();
    eventually("the read ends", || manager.telemetry().demand_reads.unclaimed == 1);
    manager.check_invariants();
    assert!(residents(&manager, 0).is_empty());
    assert_eq!(pass(&source, &manager, 0, &experts([0, 1, 2])), [0; 0]);
}

#[test]
fn a_load_that_was_abandoned_can_be_joined_while_it_is_read() {
    let (source, gate) = gated(8, 0);
    let manager = manager(&source, source.plan(1, 3), 1);
    let mut lease = manager.admit(L0, &experts([4])).unwrap();
    lease.read_misses();
    gate.wait_for(1);
    let slot = lease.slot(0);
    drop(lease);
    let mut lease = manager.admit(L0, &experts([4])).unwrap();
    assert_eq!(lease.slot(0), slot);
    gate.open();
    lease.wait_all().unwrap();
    verify(&source, &lease);
    lease.release().unwrap();
    let telemetry = manager.telemetry();
    assert_eq!((telemetry.demand_reads.experts, telemetry.demand_reads.unclaimed), (1, 0));
    assert_eq!((telemetry.requests.misses, telemetry.requests.joined), (1, 1));
}

#[test]
fn what_another_lease_waits_for_is_not_taken_back() {
    let (source, gate) = gated(8, 0);
    let manager = manager(&source, source.plan(1, 4), 1);
    let mut one = manager.admit(L0, &experts([0, 1, 2])).unwrap();
    one.read_misses();
    gate.wait_for(1);
    let mut other = manager.admit(L0, &experts([2])).unwrap();
    drop(one);
    gate.open();
    other.wait_all().unwrap();
    verify(&source, &other);
    assert_eq!(manager.telemetry().demand_reads.cancelled, 1);
}

#[test]
fn a_token_ends_the_wait_for_slots() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(1, 2), 1);
    pass(&source, &manager, 0, &experts([7]));
    let held = manager.lease_with(L0, &experts([0, 1]), |_| {}).unwrap();
    let token = CancelToken::new();
    let waiting = thread::spawn({
        let (manager, token) = (manager.clone(), token.clone());
        move || manager.admit_with(L0, &experts([2]), &token).unwrap_err()
    });
    thread::sleep(Duration::from_millis(20));
    token.cancel();
    assert!(matches!(waiting.join().unwrap(), LeaseError::Cancelled));
    assert!(matches!(manager.admit_with(L0, &experts([7]), &token).unwrap_err(), LeaseError::Cancelled));
    held.release().unwrap();
    pass(&source, &manager, 0, &experts([2, 3]));
}

#[test]
fn a_token_ends_the_wait_for_reads_and_the_lease_stays_consistent() {
    let (source, gate) = gated(8, 1);
    let manager = manager(&source, source.plan(2, 3), 1);
    let mut lease = manager.admit(L0, &experts([0, 1, 2])).unwrap();
    assert_eq!(lease.next_ready().unwrap().unwrap(), 0);
    let token = lease.canceller();
    let waiting = thread::spawn(move || {
        assert!(matches!(lease.next_ready(), Some(Err(LoadError::Cancelled))));
        assert!(lease.next_ready().is_none());
        let errors = lease.wait_all().unwrap_err();
        assert!(matches!(errors.errors(), [LoadError::Cancelled]));
        assert!(lease.bytes(0).is_ok() && lease.bytes(1).is_err());
        lease.release().unwrap();
    });
    gate.wait_for(1);
    token.cancel();
    waiting.join().unwrap();
    manager.check_invariants();
    assert_eq!(residents(&manager, 0), [0], "what had landed is kept");
    gate.open();
    eventually("the read ends", || manager.telemetry().demand_reads.unclaimed == 1);
    pass(&source, &manager, 0, &experts([1, 2]));
}

#[test]
fn closing_ends_waiting_requests_and_waits_for_reads_under_way() {
    let (source, gate) = gated(8, 0);
    let manager = manager(&source, source.plan(1, 1), 2);
    for expert in 0..2 {
        let mut lease = manager.admit(L0, &experts([expert])).unwrap();
        lease.read_misses();
        gate.wait_for(expert + 1);
    }
    // Nothing is leased, but both slots are being filled.
    let waiting = thread::spawn({
        let manager = manager.clone();
        move || manager.admit(L0, &experts([2])).unwrap_err()
    });
    thread::sleep(Duration::from_millis(20));
    let closing = thread::spawn({
        let manager = manager.clone();
        move || manager.close().unwrap()
    });
    assert!(matches!(waiting.join().unwrap(), LeaseError::Closed));
    assert!(!closing.is_finished(), "the reads under way are waited for");
    gate.open();
    closing.join().unwrap();
    assert_eq!(manager.telemetry().demand_reads.unclaimed, 2);
    manager.check_invariants();
}

#[test]
fn slots_that_leak_while_a_request_waits_end_its_wait() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(1, 2), 1);
    pass(&source, &manager, 0, &experts([7]));
    let held = manager.lease_with(L0, &experts([0, 1]), |_| {}).unwrap();
    let waiting = thread::spawn({
        let manager = manager.clone();
        move || manager.admit(L0, &experts([2])).unwrap_err()
    });
    thread::sleep(Duration::from_millis(20));
    held.leak();
    assert!(matches!(waiting.join().unwrap(), LeaseError::TooMany { leaked_slots: 2, .. }));
}

#[test]
fn a_lease_can_be_read_from_several_threads_and_released_on_another() {
    fn send_and_sync<T: Send + Sync>(_: &T) {}
    let source = Arc::new(TestSource::new(&[8]));
    let manager: ResidencyManager = manager(&source, source.plan(2, 4), 2);
    send_and_sync(&manager);
    let lease = manager.lease_with(L0, &experts([0, 1, 2]), |_| {}).unwrap();
    send_and_sync(&lease);
    let seen = AtomicU32::new(0);
    thread::scope(|scope| {
        for position in 0..lease.len() {
            let (lease, seen, source) = (&lease, &seen, &source);
            scope.spawn(move || {
                let key = streamed_experts::ExpertKey::new(lease.layer(), lease.expert(position));
                assert!(source.is(key, lease.bytes(position).unwrap()));
                seen.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(seen.into_inner(), 3);
    thread::spawn(move || lease.release().unwrap()).join().unwrap();
    manager.check_invariants();
}
