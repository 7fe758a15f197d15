//! What is read before it is asked for, and what became of it.

use std::sync::Arc;

use streamed_experts::{ExpertKey, LayerId, ReadPriority};

use crate::doubles::{Gate, Read, TestSource, eventually, experts, key, manager, pass};

#[test]
fn what_was_read_ahead_is_counted_by_what_became_of_it() {
    let gate = Gate::default();
    let held = gate.clone();
    let source = Arc::new(TestSource::new(&[16]).behaving(move |expert: ExpertKey| {
        if expert == key(0, 7) {
            held.pass();
        }
        Read::Full
    }));
    let manager = manager(&source, source.plan(2, 8), 1);
    pass(&source, &manager, 0, &experts([9]));
    let begin =
        |ids: &[streamed_experts::ExpertId]| manager.begin(LayerId(0), ids, ReadPriority::Prefetch).unwrap();
    let ahead = begin(&experts([0, 1, 9])).unwrap();
    eventually("reading", || manager.telemetry().demand_reads.experts == 3);
    let wanted = manager.lease_with(LayerId(0), &experts([0, 2]), |_| {}).unwrap();
    assert_eq!(wanted.hits().collect::<Vec<_>>(), [0], "what was read ahead is a hit");
    drop(ahead);
    wanted.release().unwrap();
    assert!(manager.is_resident(key(0, 0)), "and is kept like what was read for the request");
    let counts = manager.telemetry().ahead;
    assert_eq!((counts.used, counts.wasted, counts.wasted_bytes), (1, 1, source.slot_bytes()));
    assert!(!manager.is_resident(key(0, 1)), "what nobody wanted is not kept");

    let ahead = begin(&experts([7, 11, 12])).unwrap();
    gate.wait_for(1);
    assert!(begin(&experts([3, 4, 5, 6, 8, 10])).is_none(), "there are not so many working slots");
    drop(ahead);
    let counts = manager.telemetry().ahead;
    assert_eq!((counts.wasted, counts.cancelled, counts.refused), (2, 2, 6), "one was being read");
    gate.open();
    eventually("the end of the read", || manager.telemetry().demand_reads.unclaimed == 1);
    manager.check_invariants();
    assert_eq!(manager.drain_telemetry().ahead.used, 1);
    assert_eq!(manager.telemetry().ahead, streamed_experts::AheadCounts::default());
}
