//! Memory is given back when the system needs it, and taken again when it does not.

use std::{
    ptr::NonNull,
    sync::{Arc, atomic::AtomicU8},
};

use streamed_experts::{
    Bank, ExpertSource, GovernorOptions, LayerId, Lru, ManagerOptions, OpenError, ResidencyManager,
    SafePoint, TierId,
};

use crate::doubles::{TestSource, experts, key, manager, pass, residents};

fn filled(source: &Arc<TestSource>) -> ResidencyManager {
    let manager = manager(source, source.plan(4, 4), 2);
    for layer in 0..2 {
        pass(source, &manager, layer, &experts([0, 1, 2, 3]));
    }
    pass(source, &manager, 0, &experts([0, 2]));
    manager
}

#[test]
fn the_coldest_experts_of_each_layer_give_way_and_their_memory_is_given_back() {
    let source = Arc::new(TestSource::new(&[8, 8]));
    let manager = filled(&source);
    manager.set_resident_limit_bytes(Some(4 * source.slot_bytes() + 17));
    assert_eq!(residents(&manager, 0), [0, 1, 2, 3], "nothing happens before the safe point");
    let done = manager.safe_point().unwrap();
    assert_eq!((done.evicted, done.disabled, done.released_bytes), (4, 4, 4 * source.slot_bytes()));
    assert_eq!((residents(&manager, 0), residents(&manager, 1)), (vec![0, 2], vec![2, 3]));
    let telemetry = manager.telemetry();
    assert_eq!((telemetry.policy.pressure_evictions, telemetry.slots.disabled), (4, 4));
    assert_eq!(manager.safe_point().unwrap(), SafePoint::default(), "nothing more to do");
    manager.check_invariants();
}

#[test]
fn the_limit_holds_while_experts_come_and_go_and_rises_again() {
    let source = Arc::new(TestSource::new(&[8, 8]));
    let manager = filled(&source);
    manager.set_resident_limit_bytes(Some(3 * source.slot_bytes()));
    manager.safe_point().unwrap();
    for round in 0..20 {
        pass(
            &source,
            &manager,
            round % 2,
            &experts([round % 8, (round + 3) % 8, (round + 5) % 8, (round + 6) % 8]),
        );
        assert!(manager.telemetry().slots.resident <= 3);
    }
    manager.set_resident_limit_bytes(None);
    assert_eq!(manager.safe_point().unwrap().enabled, 5);
    for layer in 0..2 {
        pass(&source, &manager, layer, &experts([0, 1, 2, 3]));
        pass(&source, &manager, layer, &experts([4, 5, 6, 7]));
        assert_eq!(residents(&manager, layer).len(), 4);
    }
}

#[test]
fn a_limit_of_nothing_leaves_only_working_slots_and_everything_still_works() {
    let source = Arc::new(TestSource::new(&[8, 8]));
    let manager = filled(&source);
    manager.set_resident_limit_bytes(Some(0));
    assert_eq!(manager.safe_point().unwrap().evicted, 8);
    for round in 0..6 {
        assert_eq!(pass(&source, &manager, round % 2, &experts([round, 7, 6])), [0; 0]);
        assert!(residents(&manager, round % 2).is_empty());
    }
}

#[test]
fn leased_and_pinned_experts_stay_and_the_next_safe_point_finishes() {
    let source = Arc::new(TestSource::new(&[8]));
    let plan = source.plan_with(|budget| budget.pinned = vec![key(0, 7)]);
    let manager = manager(&source, plan, 2);
    manager.preload_pins().unwrap();
    pass(&source, &manager, 0, &experts([0, 1]));
    let lease = manager.admit(LayerId(0), &experts([0, 1])).unwrap();
    manager.set_resident_limit_bytes(Some(0));
    let done = manager.safe_point().unwrap();
    assert_eq!((done.evicted, done.over_limit_bytes), (0, 2 * source.slot_bytes()));
    manager.check_invariants();
    lease.release().unwrap();
    let done = manager.safe_point().unwrap();
    assert_eq!((done.evicted, done.over_limit_bytes), (2, 0));
    assert_eq!(residents(&manager, 0), [7]);
}

#[test]
fn a_limit_set_before_anything_is_read_keeps_slots_out_of_use() {
    let source = Arc::new(TestSource::new(&[8, 8]));
    let manager = manager(&source, source.plan(4, 4), 2);
    manager.set_resident_limit_bytes(Some(2 * source.slot_bytes()));
    assert_eq!(manager.safe_point().unwrap().disabled, 6);
    pass(&source, &manager, 0, &experts([0, 1, 2, 3]));
    assert_eq!(residents(&manager, 0), [0]);
}

#[cfg(target_os = "linux")]
#[test]
fn the_footprint_of_the_process_shrinks() {
    use streamed_experts::MemoryInfo;
    let source = Arc::new(TestSource::with_tiers(&[1024], &[(0, 32)]));
    let manager = manager(&source, source.plan(32, 1), 2);
    for expert in 0..32 {
        pass(&source, &manager, 0, &experts([expert]));
    }
    let before = MemoryInfo::measure().footprint_bytes.unwrap();
    manager.set_resident_limit_bytes(Some(0));
    let released = manager.safe_point().unwrap().released_bytes;
    let after = MemoryInfo::measure().footprint_bytes.unwrap();
    assert_eq!(released, 32 * source.slot_bytes());
    assert!(before - after > released / 2, "{before} {after} {released}");
}

/// Memory that the process never gives back.
#[derive(Debug)]
struct Leaked(&'static [AtomicU8]);

// SAFETY: the bytes are initialised and may be written from any thread, being atomic; the slice is leaked, so the address
// stays valid for ever, and nobody else has it.
#[expect(unsafe_code, reason = "memory of a backend, as a user would write it")]
unsafe impl streamed_experts::BankMemory for Leaked {
    fn base(&self) -> NonNull<u8> {
        NonNull::from(self.0).cast()
    }
    fn len_bytes(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn memory_that_cannot_be_given_back_is_told_of_and_is_no_error() {
    let source = Arc::new(TestSource::new(&[8]));
    let plan = source.plan(2, 2);
    let bytes = (0..5 * source.slot_bytes()).map(|_| AtomicU8::new(0)).collect::<Vec<_>>();
    let memory = Leaked(bytes.leak());
    let bank = Bank::from_memory(Box::new(memory), plan.tiers()[0].slots(), source.slot_bytes()).unwrap();
    let source_dyn = Arc::clone(&source) as Arc<dyn ExpertSource>;
    let manager =
        ResidencyManager::new(source_dyn, plan, vec![bank], Lru::boxed, &ManagerOptions::default()).unwrap();
    pass(&source, &manager, 0, &experts([0, 1]));
    manager.set_resident_limit_bytes(Some(0));
    let done = manager.safe_point().unwrap();
    assert_eq!((done.evicted, done.released_bytes, done.kept_bytes), (2, 0, 2 * source.slot_bytes()));
}

#[test]
fn a_governor_of_memory_that_cannot_be_given_back_is_refused() {
    let source = Arc::new(TestSource::new(&[8]));
    let plan = source.plan(2, 2);
    let bytes = (0..5 * source.slot_bytes()).map(|_| AtomicU8::new(0)).collect::<Vec<_>>();
    let memory = Leaked(bytes.leak());
    let bank = Bank::from_memory(Box::new(memory), plan.tiers()[0].slots(), source.slot_bytes()).unwrap();
    let source = source as Arc<dyn ExpertSource>;
    let options = ManagerOptions { governor: Some(GovernorOptions::default()), ..ManagerOptions::default() };
    let error = ResidencyManager::new(source, plan, vec![bank], Lru::boxed, &options).unwrap_err();
    assert!(matches!(error, OpenError::Ungovernable { tier: TierId(0) }), "{error}");
}

#[cfg(target_os = "linux")]
mod on_linux {
    use memmap2::MmapMut;
    use streamed_experts::{BankMemory, ResidencyPlan};

    use super::*;

    fn open(source: &Arc<TestSource>, plan: ResidencyPlan, options: &ManagerOptions) -> ResidencyManager {
        let banks = plan.anonymous_banks().unwrap();
        let source = Arc::clone(source) as Arc<dyn ExpertSource>;
        ResidencyManager::new(source, plan, banks, Lru::boxed, options).unwrap()
    }

    /// An anonymous mapping whose pages the system will not take back as long as they are locked.
    #[derive(Debug)]
    struct Locked {
        base: NonNull<u8>,
        map: MmapMut,
    }

    // SAFETY: `base` is the beginning of the mapping it travels with, which nothing else uses.
    #[expect(unsafe_code, reason = "memory of a backend, as a user would write it")]
    unsafe impl Send for Locked {}
    // SAFETY: as above.
    #[expect(unsafe_code, reason = "as above")]
    unsafe impl Sync for Locked {}
    // SAFETY: the mapping lives as long as the value, does not move, is zero-filled, and is private.
    #[expect(unsafe_code, reason = "as above")]
    unsafe impl BankMemory for Locked {
        fn base(&self) -> NonNull<u8> {
            self.base
        }
        fn len_bytes(&self) -> usize {
            self.map.len()
        }
        fn can_release_pages(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_slot_that_the_system_does_not_take_back_is_told_of_once_and_offered_again() {
        let source = Arc::new(TestSource::new(&[8]));
        let plan = source.plan(4, 2);
        let mut map = MmapMut::map_anon((7 * source.slot_bytes()) as usize).unwrap();
        let base = NonNull::from(&mut map[..]).cast::<u8>();
        let bytes = map.len();
        // SAFETY: the range is the mapping, which outlives the test in the manager; locking changes no byte.
        #[expect(unsafe_code, reason = "locked pages are what madvise refuses")]
        unsafe { rustix::mm::mlock(base.as_ptr().cast(), bytes) }.unwrap();
        let slots = plan.tiers()[0].slots();
        let bank = Bank::from_memory(Box::new(Locked { base, map }), slots, source.slot_bytes()).unwrap();
        let source_dyn = Arc::clone(&source) as Arc<dyn ExpertSource>;
        let manager =
            ResidencyManager::new(source_dyn, plan, vec![bank], Lru::boxed, &ManagerOptions::default())
                .unwrap();
        pass(&source, &manager, 0, &experts([0, 1]));
        pass(&source, &manager, 0, &experts([2, 3]));
        manager.set_resident_limit_bytes(Some(2 * source.slot_bytes()));
        let error = manager.safe_point().unwrap_err();
        assert_eq!((error.failures.len(), error.done.disabled, error.done.released_bytes), (2, 2, 0));
        assert_eq!((manager.telemetry().slots.disabled, manager.telemetry().slots.unreleased), (2, 2));
        for _ in 0..5 {
            assert_eq!(manager.safe_point().unwrap(), SafePoint::default(), "told once");
        }
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "as above")]
        unsafe { rustix::mm::munlock(base.as_ptr().cast(), bytes) }.unwrap();
        let released: u64 = (0..20).map(|_| manager.safe_point().unwrap().released_bytes).sum();
        assert_eq!(released, 2 * source.slot_bytes(), "offered again, and each once");
        assert_eq!(manager.telemetry().slots.unreleased, 0);
        manager.check_invariants();
    }

    #[test]
    fn wired_slots_work_and_shrink_like_others() {
        let source = Arc::new(TestSource::new(&[8]));
        let options = ManagerOptions { wire_slots: true, ..ManagerOptions::default() };
        let manager = open(&source, source.plan(4, 2), &options);
        // Where wiring is refused, the manager says so and everything else is the same.
        let refused = manager.wiring_refused().map(ToString::to_string);
        for expert in 0..4 {
            pass(&source, &manager, 0, &experts([expert]));
        }
        manager.set_resident_limit_bytes(Some(source.slot_bytes()));
        assert_eq!(manager.safe_point().unwrap().released_bytes, 3 * source.slot_bytes(), "{refused:?}");
        manager.set_resident_limit_bytes(None);
        assert_eq!(manager.safe_point().unwrap().enabled, 3);
        pass(&source, &manager, 0, &experts([5, 6]));
    }
}
