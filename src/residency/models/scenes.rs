//! The scenes.

use super::source::{LAYER, NumberedExperts};
use crate::{
    ids::ExpertId,
    policy::Lru,
    residency::{Budget, CancelToken, Lease, LeaseError, ManagerOptions, ResidencyManager, ResidencyPlan},
    sources::ExpertSource,
    store::{ChecksumMode, LoadErrors},
    sync::{Arc, Condvar, Mutex, Numbers, atomic::Ordering::Relaxed, lock, wait},
};

/// One reader, one layer of `experts` experts, `working` slots for misses, and one resident one that expert 0 has: what
/// else is wanted needs a working slot.
fn manager(experts: u32, working: u32, broken: Option<u32>) -> ResidencyManager {
    let source = NumberedExperts::new(experts, broken.map(ExpertId));
    let slots = u64::from(working) + 1;
    let budget = Budget { working_slots: working, ..Budget::new(slots * source.slot_bytes()) };
    let plan = ResidencyPlan::new(&source, &budget).unwrap();
    let banks = plan.anonymous_banks().unwrap();
    let options = ManagerOptions { readers: 1, checksums: ChecksumMode::Off, ..ManagerOptions::default() };
    let source: Arc<dyn ExpertSource> = Arc::new(source);
    let manager = ResidencyManager::new(source, plan, banks, Lru::boxed, &options).unwrap();
    use_experts(&manager, &[0]).unwrap();
    manager
}

/// Runs a scene in every interleaving with at most two preemptions, or as LOOM_MAX_PREEMPTIONS says.
fn model(scene: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(2);
    let interleavings = Arc::new(Numbers::new(0));
    let counted = Arc::clone(&interleavings);
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        scene();
    });
    println!("{} interleavings", interleavings.load(Relaxed));
}

fn ids(experts: &[u32]) -> Vec<ExpertId> {
    experts.iter().copied().map(ExpertId).collect()
}

/// Leases, waits, compares every byte, releases.
fn use_experts(manager: &ResidencyManager, experts: &[u32]) -> Result<(), LeaseError> {
    let mut lease = manager.admit(LAYER, &ids(experts))?;
    lease.wait_all()?;
    check_bytes(&lease);
    lease.release()?;
    Ok(())
}

fn check_bytes(lease: &Lease) {
    for position in 0..lease.len() {
        let expected = u8::try_from(lease.expert(position).0).unwrap() + 1;
        assert!(lease.bytes(position).unwrap().iter().all(|&byte| byte == expected));
    }
}

/// Whatever happened: nothing is held, the table is whole, and the readers end.
fn end(manager: &ResidencyManager) {
    manager.check_invariants();
    assert_eq!(manager.telemetry().slots.leases, 0);
    manager.close().unwrap();
}

/// Closes while another thread asks for an expert: it is served or refused, and nobody hangs.
fn close_beside_a_request(manager: &ResidencyManager, expert: u32) {
    let other = manager.clone();
    let thread = loom::thread::spawn(move || match use_experts(&other, &[expert]) {
        Ok(()) | Err(LeaseError::Closed) => {}
        Err(error) => panic!("{error}"),
    });
    let closed = manager.close().is_ok();
    thread.join().unwrap();
    if !closed {
        manager.close().unwrap();
    }
    manager.check_invariants();
}

#[test]
fn loom_two_requests_share_one_read() {
    model(|| {
        let manager = manager(2, 2, None);
        let other = manager.clone();
        let thread = loom::thread::spawn(move || use_experts(&other, &[1]).unwrap());
        use_experts(&manager, &[1]).unwrap();
        thread.join().unwrap();
        end(&manager);
    });
}

#[test]
fn loom_two_requests_wait_for_one_working_slot() {
    model(|| {
        let manager = manager(3, 1, None);
        let other = manager.clone();
        let thread = loom::thread::spawn(move || use_experts(&other, &[1]).unwrap());
        use_experts(&manager, &[2]).unwrap();
        thread.join().unwrap();
        end(&manager);
    });
}

#[test]
fn loom_everybody_in_line_who_fits_is_admitted() {
    model(|| {
        let manager = manager(5, 2, None);
        let both_slots = manager.admit(LAYER, &ids(&[1, 2])).unwrap();
        let (admitted, changed) = (Arc::new(Mutex::new(0)), Arc::new(Condvar::new()));
        let threads = [3, 4].map(|expert| {
            let (manager, admitted, changed) = (manager.clone(), Arc::clone(&admitted), Arc::clone(&changed));
            loom::thread::spawn(move || {
                let lease = manager.admit(LAYER, &ids(&[expert])).unwrap();
                let mut count = lock(&admitted);
                *count += 1;
                changed.notify_all();
                while *count < 2 {
                    count = wait(&changed, count);
                }
                drop(count);
                drop(lease);
            })
        });
        drop(both_slots);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        end(&manager);
    });
}

#[test]
fn loom_a_failed_read_is_told_to_whoever_waits_and_frees_the_slot() {
    model(|| {
        let manager = manager(3, 1, Some(1));
        let other = manager.clone();
        let thread = loom::thread::spawn(move || use_experts(&other, &[1]));
        use_experts(&manager, &[2]).unwrap();
        let failed: LoadErrors = match thread.join().unwrap() {
            Err(LeaseError::Load(errors)) => errors,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed.errors().len(), 1);
        end(&manager);
    });
}

#[test]
fn loom_a_cancelled_wait_ends_and_its_slot_can_be_used_again() {
    model(|| {
        let manager = manager(3, 1, None);
        let (other, token) = (manager.clone(), CancelToken::new());
        let cancelled = token.clone();
        let thread = loom::thread::spawn(move || {
            let Ok(mut lease) = other.admit_with(LAYER, &ids(&[1]), &token) else { return };
            if lease.wait_all().is_ok() {
                check_bytes(&lease);
            }
        });
        cancelled.cancel();
        use_experts(&manager, &[2]).unwrap();
        thread.join().unwrap();
        end(&manager);
    });
}

#[test]
fn loom_a_cancelled_request_ends_though_no_slot_comes() {
    model(|| {
        let manager = manager(3, 1, None);
        let lease = manager.admit(LAYER, &ids(&[2])).unwrap();
        let (other, token) = (manager.clone(), CancelToken::new());
        let cancelled = token.clone();
        let thread = loom::thread::spawn(move || other.admit_with(LAYER, &ids(&[1]), &token).err());
        cancelled.cancel();
        assert!(matches!(thread.join().unwrap(), Some(LeaseError::Cancelled)));
        drop(lease);
        end(&manager);
    });
}

#[test]
fn loom_a_lease_dropped_at_any_moment_leaves_the_slot_to_others() {
    model(|| {
        let manager = manager(3, 1, None);
        let other = manager.clone();
        let thread = loom::thread::spawn(move || {
            let mut lease = other.admit(LAYER, &ids(&[1])).unwrap();
            lease.read_misses();
        });
        use_experts(&manager, &[2]).unwrap();
        thread.join().unwrap();
        end(&manager);
    });
}

#[test]
fn loom_closing_refuses_or_waits_but_never_hangs() {
    model(|| {
        let manager = manager(2, 1, None);
        close_beside_a_request(&manager, 1);
    });
}

#[test]
fn loom_closing_ends_a_request_that_waits_for_the_slot_of_an_abandoned_read() {
    model(|| {
        let manager = manager(3, 1, None);
        let mut abandoned = manager.admit(LAYER, &ids(&[1])).unwrap();
        abandoned.read_misses();
        drop(abandoned);
        close_beside_a_request(&manager, 2);
    });
}

#[test]
fn loom_a_limit_takes_effect_beside_requests_and_takes_no_leased_slot() {
    model(|| {
        let manager = manager(2, 1, None);
        let other = manager.clone();
        let thread = loom::thread::spawn(move || use_experts(&other, &[0]).unwrap());
        manager.set_resident_limit_bytes(Some(0));
        manager.safe_point().unwrap();
        thread.join().unwrap();
        manager.safe_point().unwrap();
        assert_eq!(manager.telemetry().slots.resident, 0);
        end(&manager);
    });
}
