//! If this fails, a damaged drive, a file cut while it is open or a broken source gives wrong text, a hang, or slots that
//! are lost for ever.

mod doubles;

use std::{
    error::Error,
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use doubles::{Gate, Read, TestSource, experts, key, manager, pass, residents, verify};
use streamed_experts::{ExpertId, LayerId, LeaseError, LoadError, Segment};

const L0: LayerId = LayerId(0);

/// A source that fails reads of odd experts as long as the switch says so.
fn failing(kind: io::ErrorKind) -> (Arc<TestSource>, Arc<AtomicU32>) {
    let switch = Arc::new(AtomicU32::new(1));
    let broken = Arc::clone(&switch);
    let source = TestSource::new(&[8]).behaving(move |key| {
        if key.expert.0 % 2 == 1 && broken.load(SeqCst) == 1 { Read::Fail(kind) } else { Read::Full }
    });
    (Arc::new(source), switch)
}

/// The one error of reading expert 1 of a source that does `read` to it.
fn error_of(read: fn() -> Read) -> LoadError {
    let source = TestSource::new(&[4]);
    let source = Arc::new(source.behaving(move |key| if key.expert.0 == 1 { read() } else { Read::Full }));
    let manager = manager(&source, source.plan(1, 2), 1);
    let mut lease = manager.admit(L0, &experts([1, 0])).unwrap();
    let errors = lease.wait_all().unwrap_err();
    assert_eq!(errors.errors().len(), 1);
    assert!(source.is(key(0, 0), lease.bytes(1).unwrap()), "the other expert is not affected");
    assert!(lease.bytes(0).is_err() && !lease.is_ready(0));
    lease.release().unwrap();
    manager.check_invariants();
    assert_eq!(residents(&manager, 0), [0]);
    assert_eq!(pass(&source, &manager, 0, &experts([0, 2])), [0], "the reader goes on");
    assert_eq!(manager.telemetry().demand_reads.failed, 1);
    errors.errors()[0].clone()
}

#[test]
fn a_read_that_the_system_refuses_is_told_with_file_expert_offset_and_length() {
    let error = error_of(|| Read::Fail(io::ErrorKind::PermissionDenied));
    assert_eq!(error.to_string(), "could not read L0E1: 64 B at offset 288 B of layer-0.bin");
    assert_eq!(error.source().unwrap().to_string(), "permission denied");
}

#[test]
fn a_file_that_was_cut_while_open_is_told_with_what_there_was() {
    let error = error_of(|| Read::End);
    assert_eq!(error.to_string(), "layer-0.bin ends inside L0E1: wanted 64 B at offset 288 B, got 0 B");
}

#[test]
fn a_source_that_claims_more_than_it_was_asked_for_is_not_believed() {
    assert_eq!(
        error_of(|| Read::Claim(65)).to_string(),
        "the source answers 65 B for a read of 64 B of L0E1"
    );
    assert!(matches!(error_of(|| Read::Claim(usize::MAX)), LoadError::Overlong { .. }));
}

#[test]
fn a_source_that_panics_fails_one_expert_and_no_reader() {
    assert_eq!(
        error_of(|| Read::Panic).to_string(),
        "the source panicked while it read L0E1: the source broke"
    );
}

#[test]
fn a_read_that_is_interrupted_for_ever_ends_in_an_error() {
    assert!(matches!(
        error_of(|| Read::Fail(io::ErrorKind::Interrupted)),
        LoadError::Interrupted { interruptions: 1001, .. }
    ));
}

#[test]
fn short_and_interrupted_reads_are_continued_to_the_last_byte() {
    let random = std::sync::Mutex::new(fastrand::Rng::with_seed(3));
    let source = TestSource::new(&[8]).behaving(move |_| {
        let mut random = random.lock().unwrap();
        if random.u8(0..3) == 0 {
            Read::Fail(io::ErrorKind::Interrupted)
        } else {
            Read::Short(random.usize(1..40))
        }
    });
    let source = Arc::new(source);
    let manager = manager(&source, source.plan(2, 4), 3);
    for round in 0..10 {
        pass(&source, &manager, 0, &experts([round % 8, (round + 1) % 8, (round + 4) % 8]));
    }
    let reads = manager.telemetry().demand_reads;
    assert_eq!(reads.bytes, reads.experts * source.record_bytes());
    assert!(reads.short > 0 && reads.interrupted > 0 && reads.failed == 0);
}

#[test]
fn a_failed_read_frees_its_slot_and_the_next_request_reads_again() {
    let (source, switch) = failing(io::ErrorKind::Other);
    let manager = manager(&source, source.plan(1, 2), 2);
    for _ in 0..10 {
        let error = manager.lease_with(L0, &experts([0, 1]), |_| {}).unwrap_err();
        assert!(matches!(&error, LeaseError::Load(errors) if errors.errors().len() == 1), "{error}");
        manager.check_invariants();
    }
    switch.store(0, SeqCst);
    assert_eq!(pass(&source, &manager, 0, &experts([0, 1])), [0]);
    assert_eq!(manager.telemetry().demand_reads.failed, 10);
}

#[test]
fn every_error_of_a_request_is_told_in_rank_order() {
    let (source, _) = failing(io::ErrorKind::TimedOut);
    let manager = manager(&source, source.plan(1, 4), 3);
    let error = manager.lease_with(L0, &experts([5, 2, 1, 3]), |_| {}).unwrap_err();
    assert_eq!(
        error.to_string(),
        "could not read L0E5: 64 B at offset 1440 B of layer-0.bin (timed out); \
         could not read L0E1: 64 B at offset 288 B of layer-0.bin (timed out); \
         could not read L0E3: 64 B at offset 864 B of layer-0.bin (timed out)"
    );
    manager.check_invariants();
    assert_eq!(residents(&manager, 0), [2]);
}

#[test]
fn errors_that_were_not_told_before_are_told_at_release() {
    let gate = Gate::default();
    let held = gate.clone();
    let source = TestSource::new(&[8]).behaving(move |key| {
        if key.expert.0 == 2 {
            held.pass();
        }
        if key.expert.0 < 2 { Read::End } else { Read::Full }
    });
    let source = Arc::new(source);
    let manager = manager(&source, source.plan(1, 3), 1);
    let mut lease = manager.admit(L0, &experts([0, 1, 2])).unwrap();
    assert!(matches!(lease.next_ready(), Some(Err(LoadError::UnexpectedEnd { .. }))));
    gate.wait_for(1); // the second has failed too by now, since there is one reader
    let untold = lease.release().unwrap_err();
    assert!(matches!(untold.errors(), [LoadError::UnexpectedEnd { key, .. }] if key.expert == ExpertId(1)));
    gate.open();
}

#[test]
fn everybody_who_waits_for_a_failed_load_is_told_and_nobody_else() {
    let gate = Gate::default();
    let held = gate.clone();
    let source = Arc::new(TestSource::new(&[8]).behaving(move |key| {
        held.pass();
        if key.expert.0 == 0 { Read::Fail(io::ErrorKind::Other) } else { Read::Full }
    }));
    let manager = manager(&source, source.plan(1, 4), 1);
    let mut one = manager.admit(L0, &experts([0])).unwrap();
    one.read_misses();
    gate.wait_for(1);
    let mut other = manager.admit(L0, &experts([1, 0])).unwrap();
    let mut bystander = manager.admit(L0, &experts([1])).unwrap();
    gate.open();
    assert_eq!(one.wait_all().unwrap_err().errors().len(), 1);
    assert_eq!(other.wait_all().unwrap_err().errors().len(), 1);
    assert!(source.is(key(0, 1), other.bytes(0).unwrap()));
    bystander.wait_all().unwrap();
    drop((one, other, bystander));
    manager.check_invariants();
    assert_eq!(manager.telemetry().demand_reads.failed, 1);
}

#[test]
fn a_joined_load_that_fails_before_it_was_asked_for_is_told_and_its_slot_not_touched() {
    let (source, switch) = failing(io::ErrorKind::Other);
    let manager = manager(&source, source.plan(1, 2), 1);
    let mut one = manager.admit(L0, &experts([1])).unwrap();
    let mut late = manager.admit(L0, &experts([1])).unwrap();
    assert!(one.wait_all().is_err());
    switch.store(0, SeqCst);
    let mut next = manager.admit(L0, &experts([3])).unwrap();
    assert_eq!(next.slot(0).slot, late.slot(0).slot, "the slot is reserved for another expert now");
    assert!(late.wait_all().is_err() && late.bytes(0).is_err());
    drop(late);
    next.wait_all().unwrap();
    verify(&source, &next);
    manager.check_invariants();
}

#[test]
fn a_pinned_expert_that_cannot_be_read_keeps_its_slot_and_is_read_again() {
    let (source, switch) = failing(io::ErrorKind::Other);
    let plan = source.plan_with(|budget| budget.pinned = vec![key(0, 1), key(0, 2), key(0, 3)]);
    let manager = manager(&source, plan, 2);
    let error = manager.preload_pins().unwrap_err();
    assert!(matches!(&error, LeaseError::Load(errors) if errors.errors().len() == 2), "{error}");
    assert_eq!(residents(&manager, 0), [2]);
    manager.check_invariants();
    switch.store(0, SeqCst);
    manager.preload_pins().unwrap();
    assert_eq!(residents(&manager, 0), [1, 2, 3]);
    pass(&source, &manager, 0, &experts([1, 2, 3]));
}

#[test]
fn segments_outside_the_slot_and_experts_without_segments_are_errors() {
    let mut source = TestSource::new(&[4]);
    let outside = |segment: &mut Segment, offset| segment.slot_offset_bytes = offset;
    outside(&mut source.segments[1][0], 98_304 - 63);
    outside(&mut source.segments[2][5], u64::MAX);
    source.segments[3].clear();
    source.without = Some(key(0, 3));
    let source = Arc::new(source);
    let manager = manager(&source, source.plan(1, 4), 2);
    let error = manager.lease_with(L0, &experts([1, 2, 3, 0]), |_| {}).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a segment of L0E1 takes 64 B at 98241 B of a slot of 98304 B; \
         a segment of L0E2 takes 32 B at 18446744073709551615 B of a slot of 98304 B; \
         the source has no segments for L0E3"
    );
    assert_eq!(residents(&manager, 0), [0]);
}

#[cfg(debug_assertions)]
#[test]
fn a_slot_that_is_being_refilled_holds_poison_so_that_stale_use_shows() {
    let source = Arc::new(TestSource::new(&[4]));
    let manager = manager(&source, source.plan(1, 1), 1);
    let lease = manager.lease_with(L0, &experts([0]), |_| {}).unwrap();
    let bytes = lease.bytes(0).unwrap();
    assert!(source.is(key(0, 0), bytes));
    assert_eq!(bytes[64], 0xA5, "padding between components is poisoned too");
}
