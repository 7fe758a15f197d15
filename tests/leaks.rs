//! If this fails, a fault costs more than the request it befell: a thread, a descriptor, or a slot.
//!
//! One test, alone in its process: it counts the process's threads and descriptors.
#![cfg(target_os = "linux")]

mod doubles;

use std::{
    fs, io,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use doubles::{Read, TestSource, experts, manager};
use streamed_experts::{CancelToken, LayerId, LeaseError, PackOptions, ResidencyManager, open_source, pack};

const LAYER: LayerId = LayerId(0);
const WORKING: u32 = 4;

fn counts() -> (usize, usize) {
    let entries = |path| fs::read_dir(path).unwrap().count();
    (entries("/proc/self/task"), entries("/proc/self/fd"))
}

/// What can befall a request.
fn faults(manager: &ResidencyManager) {
    // Reads that fail, end early, claim too much, or panic.
    for _ in 0..8 {
        let error = manager.lease_with(LAYER, &experts([0, 1, 2, 3]), |_| {}).unwrap_err();
        let LeaseError::Load(errors) = error else { panic!("{error}") };
        assert_eq!(errors.errors().len(), 4);
    }
    // Leases dropped at every stage, one of them while its holder panics.
    drop(manager.admit(LAYER, &experts([8, 9])).unwrap());
    let mut lease = manager.admit(LAYER, &experts([8, 9])).unwrap();
    lease.read_misses();
    drop(lease);
    let unwound = panic::catch_unwind(AssertUnwindSafe(|| {
        let _lease = manager.lease_with(LAYER, &experts([8, 9]), |_| {}).unwrap();
        panic::resume_unwind(Box::new("in the middle of everything"));
    }));
    assert!(unwound.is_err());
    // A cancelled request, and requests that make no sense.
    let token = CancelToken::new();
    token.cancel();
    assert!(matches!(manager.admit_with(LAYER, &experts([5]), &token), Err(LeaseError::Cancelled)));
    assert!(manager.admit(LayerId(99), &experts([5])).is_err());
    assert!(manager.admit(LAYER, &experts([5, 5])).is_err());
    assert!(manager.admit(LAYER, &experts([10, 11, 12, 13, 14])).is_err());
}

fn round() {
    let calls = Arc::new(AtomicU32::new(0));
    let source =
        TestSource::new(&[16]).behaving(move |key| match (key.expert.0, calls.fetch_add(1, SeqCst)) {
            (0, _) => Read::Fail(io::ErrorKind::Other),
            (1, _) => Read::End,
            (2, _) => Read::Claim(usize::MAX),
            (3, _) => Read::Panic,
            (_, call) if call % 3 == 0 => Read::Fail(io::ErrorKind::Interrupted),
            (_, call) if call % 3 == 1 => Read::Short(7),
            _ => Read::Full,
        });
    let source = Arc::new(source);
    let manager = manager(&source, source.plan(2, WORKING), 3);
    faults(&manager);
    manager.check_invariants();
    let slots = manager.telemetry().slots;
    assert_eq!((slots.leaked, slots.leases), (0, 0));
    assert_eq!(manager.request_limit(LAYER), Some(WORKING));
    doubles::pass(&source, &manager, 0, &experts([12, 13, 14, 15]));
    manager.close().unwrap();
}

/// Opens that fail, and files that are no files, on a real file system.
fn hostile_files() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gpt_oss-mxfp4");
    let source = open_source(fixture).unwrap();
    let slab = directory.path().join("model.slab");
    pack(&*source, &slab, &PackOptions::default(), |_| std::ops::ControlFlow::Break(())).unwrap_err();
    for (name, content) in [("empty", &b""[..]), ("short", b"\x89SXSLAB\n"), ("text", b"not a slab at all")] {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        assert!(open_source(&path).is_err());
    }
    let folder = directory.path().join("checkpoint");
    fs::create_dir(&folder).unwrap();
    fs::copy(format!("{fixture}/config.json"), folder.join("config.json")).unwrap();
    // Always at its end, whatever it is asked for; and one that is not there.
    std::os::unix::fs::symlink("/dev/null", folder.join("model.safetensors")).unwrap();
    assert!(open_source(&folder).is_err());
    fs::remove_file(folder.join("model.safetensors")).unwrap();
    std::os::unix::fs::symlink("/nowhere", folder.join("model.safetensors")).unwrap();
    assert!(open_source(&folder).is_err());
}

#[test]
fn no_fault_costs_a_thread_a_descriptor_or_a_slot() {
    // Once for what is made once in a process.
    round();
    hostile_files();
    let before = counts();
    for _ in 0..5 {
        round();
        hostile_files();
        // A thread that was joined leaves the list a moment later.
        doubles::eventually("as many threads and descriptors as before", || counts() == before);
    }
}
