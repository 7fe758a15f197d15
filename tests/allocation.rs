//! If this fails, every token pays for the allocator in every layer, and a long run fragments the memory that the budget
//! promised to keep.

mod doubles;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
};

use doubles::{TestSource, experts, manager, manager_with, verify};
use streamed_experts::{Echo, Frequency, LayerId, S3Fifo};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches a const-initialised thread local, which
// allocates nothing.
#[expect(unsafe_code, reason = "the trait is unsafe")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn counting_counts() {
    assert_eq!(allocations_of(|| drop(std::hint::black_box(Box::new(7)))), 1);
}

#[test]
fn the_path_of_a_hit_allocates_nothing_from_the_first_request_on() {
    let source = Arc::new(TestSource::new(&[16, 16]));
    let manager = manager(&source, source.plan(16, 16), 2);
    let requests: Vec<_> = (0..16).map(|n| experts([n, (n + 3) % 16, (n + 7) % 16, (n + 9) % 16])).collect();
    for layer in 0..2 {
        let all: Vec<_> = (0..16).map(streamed_experts::ExpertId).collect();
        manager.lease_with(LayerId(layer), &all, |_| {}).unwrap().release().unwrap();
    }
    let allocations = allocations_of(|| {
        for (round, request) in requests.iter().cycle().take(1000).enumerate() {
            let layer = LayerId(u32::from(round % 2 == 1));
            let mut lease = manager.admit(layer, request).unwrap();
            assert_eq!(lease.hits().count(), 4);
            assert!((0..4).all(|position| lease.bytes(position).is_ok()));
            lease.read_misses();
            lease.wait_all().unwrap();
            lease.release().unwrap();
            manager.record_forward(std::time::Duration::from_micros(5));
            manager.safe_point().unwrap();
        }
    });
    assert_eq!(allocations, 0);
    assert_eq!(manager.telemetry().requests.hits, 4000);
}

#[test]
fn the_requester_of_a_miss_allocates_nothing_either() {
    let source = Arc::new(TestSource::new(&[16]));
    let manager = manager(&source, source.plan(2, 4), 2);
    let mut misses = 0;
    let allocations = allocations_of(|| {
        for round in 0..200 {
            let mut lease = manager.admit(LayerId(0), &experts([round % 16, (round + 5) % 16])).unwrap();
            misses += lease.misses().count();
            lease.wait_all().unwrap();
            lease.release().unwrap();
        }
    });
    assert_eq!(allocations, 0);
    assert!(misses > 200);
    verify(&source, &manager.lease_with(LayerId(0), &experts([3]), |_| {}).unwrap());
}

#[test]
fn no_policy_allocates_when_it_is_asked_or_told() {
    for policy in [Frequency::boxed, Frequency::boxed_decayed, S3Fifo::boxed, Echo::boxed] {
        let source = Arc::new(TestSource::new(&[16, 16]));
        let manager = manager_with(&source, source.plan(3, 4), 2, policy);
        let allocations = allocations_of(|| {
            for round in 0..400 {
                let layer = LayerId(round % 2);
                let lease =
                    manager.lease_with(layer, &experts([round % 16, (round + 5) % 16]), |_| {}).unwrap();
                lease.release().unwrap();
            }
        });
        assert_eq!(allocations, 0);
        assert!(manager.telemetry().policy.evictions > 100);
    }
}
