//! If this fails, the drive idles while somebody waits, a prefetch is served before a demand, an expert is used with a part of
//! it missing, or a drive that hangs takes the process with it.

mod doubles;
#[path = "slabs/mod.rs"]
mod slabs;

use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use doubles::{Gate, MIRROR, Read, TestSource, eventually, experts, key, pass, residents, verify};
use streamed_experts::{
    BatchPlan, Budget, ChecksumMode, Checksummed, DriveTelemetry, ExecutorOptions, ExpertId, ExpertKey,
    ExpertSource, Family, FileChange, FileId, LayerId, LeaseError, LoadError, Lru, ManagerOptions, Mapped,
    Mirrored, ReadMode, ReadOptions, ReadPriority, ResidencyManager, ResidencyPlan, Routes, Segment,
    SourceError, SparseLayer, StreamedExpertExecutor, Tier, VerifyOptions, open_source,
};

const L0: LayerId = LayerId(0);

/// A manager with so many readers for each drive.
fn manager(
    source: &Arc<TestSource>,
    plan: ResidencyPlan,
    readers: u32,
    reading: ReadOptions,
) -> ResidencyManager {
    let banks = plan.anonymous_banks().unwrap();
    let source = Arc::clone(source) as Arc<dyn ExpertSource>;
    let options = ManagerOptions { readers, reading, ..ManagerOptions::default() };
    ResidencyManager::new(source, plan, banks, Lru::boxed, &options).unwrap()
}

/// A source that writes down whose reads have begun, and holds those of expert 0 at a gate.
fn noting(source: TestSource) -> (Arc<TestSource>, Gate, Arc<Mutex<Vec<u32>>>) {
    let (gate, noted) = (Gate::default(), Arc::new(Mutex::new(Vec::new())));
    let (held, notes) = (gate.clone(), Arc::clone(&noted));
    let source = source.behaving(move |key| {
        let mut notes = notes.lock().unwrap();
        if !notes.contains(&key.expert.0) {
            notes.push(key.expert.0);
        }
        drop(notes);
        if key.expert.0 == 0 {
            held.pass();
        }
        Read::Full
    });
    (Arc::new(source), gate, noted)
}

#[test]
fn demand_is_served_before_prefetch_and_prefetch_before_hints_whatever_was_asked_first() {
    let (source, gate, noted) = noting(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(1, 8), 1, ReadOptions::default());
    let mut under_way = manager.admit(L0, &experts([0])).unwrap();
    under_way.read_misses();
    gate.wait_for(1);
    let hint = manager.begin(L0, &experts([1, 2]), ReadPriority::Hint).unwrap().unwrap();
    let ahead = manager.begin(L0, &experts([3, 4]), ReadPriority::Prefetch).unwrap().unwrap();
    let mut demand = manager.admit(L0, &experts([5, 6])).unwrap();
    demand.read_misses();
    gate.open();
    demand.wait_all().unwrap();
    verify(&source, &demand);
    eventually("everything is read", || manager.telemetry().demand_reads.experts == 7);
    assert_eq!(*noted.lock().unwrap(), [0, 5, 6, 3, 4, 1, 2]);
    let bytes = source.record_bytes();
    let DriveTelemetry { demand_bytes, prefetch_bytes, hint_bytes, .. } = manager.drives()[0];
    assert_eq!([demand_bytes, prefetch_bytes, hint_bytes], [3 * bytes, 2 * bytes, 2 * bytes]);
    drop((hint, ahead, demand, under_way));
    manager.check_invariants();
}

#[test]
fn a_prefetch_that_is_demanded_moves_up_and_one_that_is_given_up_is_not_read() {
    let (source, gate, noted) = noting(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(1, 8), 1, ReadOptions::default());
    let mut under_way = manager.admit(L0, &experts([0])).unwrap();
    under_way.read_misses();
    gate.wait_for(1);
    let given_up = manager.begin(L0, &experts([1, 2]), ReadPriority::Prefetch).unwrap().unwrap();
    let mut ahead = manager.begin(L0, &experts([3, 4]), ReadPriority::Hint).unwrap().unwrap();
    let kept = manager.begin(L0, &experts([5, 6]), ReadPriority::Prefetch).unwrap().unwrap();
    let mut demand = manager.admit(L0, &experts([6])).unwrap();
    demand.read_misses();
    drop(given_up);
    ahead.read_misses();
    gate.open();
    ahead.wait_all().unwrap();
    demand.wait_all().unwrap();
    verify(&source, &demand);
    verify(&source, &ahead);
    eventually("the rest is read", || manager.telemetry().demand_reads.experts == 5);
    assert_eq!(*noted.lock().unwrap(), [0, 6, 3, 4, 5]);
    assert_eq!(manager.telemetry().demand_reads.cancelled, 2);
    drop((under_way, ahead, kept, demand));
    manager.check_invariants();
}

#[test]
fn what_was_begun_early_is_a_hit_or_is_joined_and_is_not_kept_if_nobody_asked() {
    let source = Arc::new(TestSource::new(&[8]));
    let manager = manager(&source, source.plan(4, 8), 2, ReadOptions::default());
    let mut ahead = manager.begin(L0, &experts([1, 2]), ReadPriority::Prefetch).unwrap().unwrap();
    ahead.wait_all().unwrap();
    assert_eq!(manager.telemetry().requests.requests, 0);
    let lease = manager.lease_with(L0, &experts([2, 3]), |_| {}).unwrap();
    assert_eq!(lease.hits().collect::<Vec<_>>(), [0]);
    drop(ahead);
    lease.release().unwrap();
    assert_eq!(residents(&manager, 0), [2, 3]);
    let all: Vec<_> = (0..8).map(ExpertId).collect();
    let held = manager.admit(L0, &all).unwrap();
    assert!(manager.begin(L0, &experts([4]), ReadPriority::Hint).unwrap().is_some(), "it has a slot already");
    drop(held);
    assert!(matches!(
        manager.begin(L0, &experts([8]), ReadPriority::Hint),
        Err(LeaseError::UnknownExpert { .. })
    ));
    manager.check_invariants();
}

/// Experts of 3 MiB.
fn large(experts: u32) -> TestSource {
    TestSource::with_tiers(&[1024], &[(0, experts)])
}

#[test]
fn one_expert_alone_keeps_every_reader_busy_and_lands_with_its_last_piece() {
    let gate = Gate::default();
    let (held, begun) = (gate.clone(), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&begun);
    let source = Arc::new(large(2).behaving(move |_| {
        if count.fetch_add(1, SeqCst) < 4 {
            held.pass();
        }
        Read::Full
    }));
    let manager = manager(&source, source.plan(1, 2), 4, ReadOptions::default());
    let mut lease = manager.admit(L0, &experts([1])).unwrap();
    lease.read_misses();
    eventually("all four readers are at it", || begun.load(SeqCst) == 4);
    assert_eq!((manager.drives()[0].under_way, manager.drives()[0].most_under_way), (4, 4));
    assert!(!manager.is_resident(key(0, 1)) && manager.telemetry().demand_reads.experts == 0);
    gate.open();
    lease.wait_all().unwrap();
    verify(&source, &lease);
    let telemetry = manager.telemetry();
    assert_eq!((telemetry.demand_reads.experts, telemetry.demand_reads.bytes), (1, source.record_bytes()));
    assert!((4..=5).contains(&manager.drives()[0].service_time.count), "{:?}", manager.drives()[0]);
}

#[test]
fn an_expert_does_not_land_while_one_piece_is_missing() {
    let gate = Gate::default();
    let (held, first) = (gate.clone(), AtomicU32::new(0));
    let source = Arc::new(large(2).behaving(move |_| {
        if first.fetch_add(1, SeqCst) == 0 {
            held.pass();
        }
        Read::Full
    }));
    let manager = manager(&source, source.plan(1, 2), 4, ReadOptions::default());
    let mut lease = manager.admit(L0, &experts([0])).unwrap();
    lease.read_misses();
    gate.wait_for(1);
    eventually("the other pieces are there", || {
        let drive = &manager.drives()[0];
        drive.under_way == 1 && drive.bytes() > source.record_bytes() / 2
    });
    assert_eq!(manager.telemetry().demand_reads.experts, 0);
    gate.open();
    lease.wait_all().unwrap();
    verify(&source, &lease);
}

#[test]
fn a_piece_that_fails_fails_its_expert_alone_and_the_next_request_reads_again() {
    let failures = AtomicU32::new(1);
    let source = Arc::new(large(3).behaving(move |key| {
        let fails = key.expert.0 == 1 && failures.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
        if fails { Read::Fail(io::ErrorKind::Other) } else { Read::Full }
    }));
    let manager = manager(&source, source.plan(1, 3), 4, ReadOptions::default());
    let mut lease = manager.admit(L0, &experts([1, 2])).unwrap();
    let errors = lease.wait_all().unwrap_err();
    assert!(
        matches!(errors.errors(), [LoadError::Read { key, .. }] if key.expert == ExpertId(1)),
        "{errors}"
    );
    assert!(source.is(key(0, 2), lease.bytes(1).unwrap()));
    drop(lease);
    manager.check_invariants();
    pass(&source, &manager, 0, &experts([1, 0]));
}

#[test]
fn random_requests_with_small_pieces_always_see_their_own_bytes() {
    let source = Arc::new(TestSource::with_tiers(&[640], &[(0, 12)])); // 1.2 MB an expert
    let reading = ReadOptions { piece_bytes: 8192, ..ReadOptions::default() };
    let manager = manager(&source, source.plan(2, 6), 5, reading);
    let threads: Vec<_> = (0..3)
        .map(|seed| {
            let (source, manager) = (Arc::clone(&source), manager.clone());
            thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for round in 0..12 {
                    let mut ids: Vec<_> = (0..12).map(ExpertId).collect();
                    random.shuffle(&mut ids);
                    let mut lease = manager.admit(L0, &ids[..random.usize(1..=3)]).unwrap();
                    if round % 4 == 0 {
                        lease.read_misses();
                        continue;
                    }
                    lease.wait_all().unwrap();
                    verify(&source, &lease);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    manager.check_invariants();
    assert_eq!(manager.telemetry().slots.leases, 0);
}

#[test]
fn each_drive_has_its_own_readers_and_one_that_hangs_does_not_stop_the_other() {
    let gate = Gate::default();
    let held = gate.clone();
    let mut source = TestSource::new(&[4, 4]).behaving(move |key| {
        if key.layer.0 == 0 {
            held.pass();
        }
        Read::Full
    });
    source.drives = vec![7, 3];
    let source = Arc::new(source);
    let manager = manager(&source, source.plan(1, 4), 2, ReadOptions::default());
    let mut stuck = manager.admit(L0, &experts([0, 1, 2])).unwrap();
    stuck.read_misses();
    gate.wait_for(2);
    let other = manager.lease_with(LayerId(1), &experts([3]), |_| {}).unwrap();
    verify(&source, &other);
    let drives = manager.drives();
    assert_eq!([drives[0].drive, drives[1].drive], [3, 7]);
    assert_eq!([drives[0].under_way, drives[1].under_way], [0, 2]);
    assert_eq!((drives[0].bytes(), drives[1].bytes()), (source.record_bytes(), 0));
    gate.open();
    stuck.wait_all().unwrap();
    verify(&source, &stuck);
    assert_eq!(manager.drain_drives()[1].bytes(), 3 * source.record_bytes());
    assert_eq!(manager.drives()[1].bytes(), 0);
}

/// A source with a mirror on a drive of its own. A read from copy c takes `pace[c]` for each MiB.
fn mirrored(
    pace: [Duration; 2],
    fails: impl Fn(ExpertKey) -> bool + Send + Sync + 'static,
) -> Arc<TestSource> {
    let mut source = large(8).behaving(move |key| {
        let copy = (key.layer.0 / MIRROR) as usize;
        thread::sleep(pace[copy]);
        if copy == 1 && fails(key) { Read::Fail(io::ErrorKind::Other) } else { Read::Full }
    });
    source.mirrored = true;
    Arc::new(source)
}

#[test]
fn a_mirror_shares_the_work_by_what_each_drive_manages() {
    let source = mirrored([Duration::from_millis(4), Duration::from_millis(16)], |_| false);
    let reading = ReadOptions { piece_bytes: 256 << 10, ..ReadOptions::default() };
    let manager = manager(&source, source.plan(1, 8), 1, reading);
    let all: Vec<_> = (0..8).map(ExpertId).collect();
    let lease = manager.lease_with(L0, &all, |_| {}).unwrap();
    verify(&source, &lease);
    let [first, mirror] = manager.drives()[..] else { panic!("two drives") };
    assert_eq!(first.bytes() + mirror.bytes(), 8 * source.record_bytes());
    let ratio = first.bytes() as f64 / mirror.bytes() as f64;
    assert!((2.0..8.0).contains(&ratio), "{ratio}: four times as fast, about four times as much");
}

#[test]
fn a_mirror_that_fails_costs_no_expert_and_is_not_used_again() {
    let warnings = warnings();
    let source = mirrored([Duration::from_millis(2); 2], |_| true);
    let manager = manager(&source, source.plan(1, 4), 2, ReadOptions::default());
    for ids in [[0, 1, 2, 3], [4, 5, 6, 7]] {
        let lease = manager.lease_with(L0, &experts(ids), |_| {}).unwrap();
        verify(&source, &lease);
        lease.release().unwrap();
    }
    manager.check_invariants();
    let [first, mirror] = manager.drives()[..] else { panic!("two drives") };
    assert_eq!((first.bytes(), mirror.bytes()), (8 * source.record_bytes(), 0));
    assert!((1..=2).contains(&mirror.mirror_failures), "{mirror:?}: what its readers had, and no more");
    assert_eq!(manager.telemetry().demand_reads.failed, 0);
    let told = warnings.lock().unwrap().iter().filter(|text| text.contains("mirror.bin")).count();
    assert_eq!(told, 1);
}

/// Everything that was warned of in this process.
fn warnings() -> &'static Mutex<Vec<String>> {
    struct Keeper;
    static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    static ONCE: OnceLock<()> = OnceLock::new();
    impl log::Log for Keeper {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            WARNINGS.lock().unwrap().push(record.args().to_string());
        }
        fn flush(&self) {}
    }
    ONCE.get_or_init(|| {
        log::set_logger(&Keeper).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
    });
    &WARNINGS
}

#[test]
fn a_drive_that_hangs_fails_the_request_and_its_slot_waits_for_the_read() {
    let warnings = warnings();
    let gate = Gate::default();
    let held = gate.clone();
    let source = Arc::new(TestSource::new(&[1, 16]).behaving(move |key| {
        if key == doubles::key(1, 9) {
            held.pass();
        }
        Read::Full
    }));
    let reading = ReadOptions {
        stall_warning: Duration::from_millis(20),
        stall_limit: Some(Duration::from_millis(100)),
        ..ReadOptions::default()
    };
    let manager = manager(&source, source.plan(1, 3), 2, reading);
    let began = Instant::now();
    let error = manager.lease_with(LayerId(1), &experts([9, 2]), |_| {}).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(20));
    let LeaseError::Load(errors) = &error else { panic!("{error}") };
    let [LoadError::Stalled { waited, slowest: Some(slowest) }] = errors.errors() else { panic!("{error}") };
    assert!(*waited >= Duration::from_millis(100));
    assert_eq!((slowest.key, &*slowest.path), (key(1, 9), Path::new("layer-1.bin")));
    assert_eq!(slowest.offset_bytes, 9 * source.record_bytes());
    manager.check_invariants();
    assert_eq!(manager.drives()[0].stalls, 1);
    let told = warnings.lock().unwrap().iter().filter(|text| text.contains("L1E9 at offset")).count();
    assert_eq!(told, 1, "once for each read");
    // Two of three working slots are left, and one of two readers. The layers' own slots are filled.
    pass(&source, &manager, 0, &experts([0]));
    for ids in [[0, 1], [3, 4], [5, 6]] {
        pass(&source, &manager, 1, &experts(ids));
    }
    assert!(manager.try_admit(LayerId(1), &experts([10, 11, 12])).unwrap().is_none(), "one slot is in use");
    gate.open();
    eventually("the read returns", || manager.telemetry().demand_reads.unclaimed == 1);
    pass(&source, &manager, 1, &experts([9, 11, 12]));
    manager.close().unwrap();
}

#[test]
fn closing_does_not_wait_for_a_read_that_hangs_longer_than_allowed() {
    let gate = Gate::default();
    let held = gate.clone();
    let source = Arc::new(TestSource::new(&[4]).behaving(move |_| {
        held.pass();
        Read::Full
    }));
    let limit = Duration::from_millis(50);
    let reading = ReadOptions { stall_limit: Some(limit), ..ReadOptions::default() };
    let manager = manager(&source, source.plan(1, 2), 2, reading);
    assert!(manager.lease_with(L0, &experts([0]), |_| {}).is_err());
    let began = Instant::now();
    manager.close().unwrap();
    assert!(began.elapsed() >= limit && began.elapsed() < Duration::from_secs(20));
    drop(manager);
    gate.open(); // the reader ends in memory that is still there
    eventually("the reader is gone", || Arc::strong_count(&source) == 1);
}

/// An executor on the host family over a source of two layers of eight experts.
fn executor(source: &Arc<dyn ExpertSource>, working_slots: u32) -> StreamedExpertExecutor {
    let slot_bytes = source.tiers()[0].layout.slot_bytes();
    let budget = Budget { working_slots, ..Budget::new(u64::from(working_slots + 2) * slot_bytes) };
    let options = ExecutorOptions { family: Family::Host, ..ExecutorOptions::new(budget) };
    StreamedExpertExecutor::open(Arc::clone(source), &options).unwrap()
}

#[test]
fn what_an_executor_read_ahead_is_in_memory_when_its_turn_comes_and_gives_way_when_it_must() {
    let source: Arc<dyn ExpertSource> = slabs::open_fixture(STOCK).into();
    let plan = |experts: [u32; 2]| {
        BatchPlan::new(&Routes::from_top_k(1, 2, &experts, &[0.75, 0.25], 8).unwrap(), 8).unwrap()
    };
    let row = vec![0.5; 128];
    let mut plain = executor(&source, 4);
    let mut expected =
        |layer, experts| plain.execute_rows(LayerId(layer), &row, &plan(experts), None).unwrap();
    let mut early = executor(&source, 4);
    assert!(early.read_ahead(LayerId(1), &experts([5, 2])).unwrap());
    assert_eq!(early.execute_rows(L0, &row, &plan([0, 1]), None).unwrap(), expected(0, [0, 1]));
    eventually("they are read", || early.manager().telemetry().demand_reads.experts == 4);
    assert_eq!(early.execute_rows(LayerId(1), &row, &plan([2, 7]), None).unwrap(), expected(1, [2, 7]));
    assert_eq!((early.manager().telemetry().requests.hits, early.manager().telemetry().slots.leases), (1, 0));
    // All working slots are held for later: whoever computes now comes first.
    assert!(early.read_ahead(LayerId(1), &experts([0, 1, 3, 4])).unwrap());
    assert_eq!(early.execute_rows(L0, &row, &plan([6, 3]), None).unwrap(), expected(0, [6, 3]));
    assert!(early.read_ahead(LayerId(1), &experts([0])).unwrap());
    assert!(early.read_ahead(LayerId(9), &experts([0])).is_err());
    assert!(!early.read_ahead(L0, &[]).unwrap());
    early.manager().check_invariants();
    assert_eq!(early.manager().telemetry().slots.leases, 0);
    early.close().unwrap();
}

/// A source whose direct reads do what a test says; everything else is that of the source inside.
struct Wrapped<F> {
    inner: Arc<dyn ExpertSource>,
    direct: F,
    /// Whether it has a mirror, checksums and a changed file, all of them invented.
    mirrored: bool,
    direct_calls: AtomicU64,
    forgotten_bytes: AtomicU64,
}

type Direct = fn(&dyn ExpertSource, FileId, &mut [u8], u64) -> io::Result<usize>;

impl std::fmt::Debug for Wrapped<Direct> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wrapped")
    }
}

impl ExpertSource for Wrapped<Direct> {
    fn tiers(&self) -> &[Tier] {
        self.inner.tiers()
    }
    fn layers(&self) -> &[SparseLayer] {
        self.inner.layers()
    }
    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        self.inner.segments(key)
    }
    fn read_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.inner.read_at(file, buffer, offset_bytes)
    }
    fn path(&self, file: FileId) -> &Path {
        self.inner.path(file)
    }
    fn read_direct_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.direct_calls.fetch_add(1, SeqCst);
        let aligned = [buffer.as_ptr() as u64, buffer.len() as u64, offset_bytes];
        assert!(buffer.is_empty() || aligned.iter().all(|n| n.is_multiple_of(4096)), "{aligned:?}");
        (self.direct)(&*self.inner, file, buffer, offset_bytes)
    }
    fn forget(&self, file: FileId, offset_bytes: u64, len_bytes: u64) {
        self.forgotten_bytes.fetch_add(len_bytes, SeqCst);
        self.inner.forget(file, offset_bytes, len_bytes);
    }
    fn drive(&self, file: FileId) -> u64 {
        self.inner.drive(file)
    }
    fn mirror(&self, file: FileId) -> Option<FileId> {
        self.mirrored.then_some(FileId(file.0 + MIRROR))
    }
    fn checksum(&self, key: ExpertKey) -> Option<u64> {
        if self.mirrored { Some(u64::from(key.expert.0)) } else { self.inner.checksum(key) }
    }
    fn changed(&self, file: FileId) -> Option<FileChange> {
        if self.mirrored { Some(FileChange::Written) } else { self.inner.changed(file) }
    }
}

fn wrapped(inner: Arc<dyn ExpertSource>, mirrored: bool, direct: Direct) -> Arc<Wrapped<Direct>> {
    Arc::new(Wrapped {
        inner,
        direct,
        mirrored,
        direct_calls: AtomicU64::new(0),
        forgotten_bytes: AtomicU64::new(0),
    })
}

/// Reads every expert directly, compares it with what `truth` says, and tells what the drive did.
fn read_directly(
    source: Arc<dyn ExpertSource>,
    truth: &dyn ExpertSource,
) -> Result<DriveTelemetry, LeaseError> {
    let budget = Budget {
        working_slots: 2,
        ..Budget::new(slabs::keys(truth).count() as u64 * 4 * truth.tiers()[0].layout.slot_bytes())
    };
    let plan = ResidencyPlan::new(truth, &budget).unwrap();
    let banks = plan.anonymous_banks().unwrap();
    let reading = ReadOptions { mode: ReadMode::Direct, ..ReadOptions::default() };
    // The double makes its checksums up; the bytes are compared here.
    let options = ManagerOptions { reading, checksums: ChecksumMode::Off, ..ManagerOptions::default() };
    let manager = ResidencyManager::new(source, plan, banks, Lru::boxed, &options).unwrap();
    for key in slabs::keys(truth) {
        let lease = manager.lease_with(key.layer, &[key.expert], |_| {})?;
        let bytes = lease.bytes(0).unwrap();
        for segment in truth.segments(key).unwrap() {
            let at = usize::try_from(segment.slot_offset_bytes).unwrap();
            let len = usize::try_from(segment.len_bytes).unwrap();
            assert_eq!(bytes[at..at + len], slabs::read_slot(truth, key)[at..at + len], "{key}");
        }
    }
    let drives = manager.drives();
    assert_eq!(drives.len(), 1);
    Ok(drives[0])
}

const STOCK: &str = "qwen3_moe-affine4-g64-bf16";

#[test]
fn a_slab_is_read_directly_and_gives_its_own_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let slab: Arc<dyn ExpertSource> = open_source(slabs::packed(directory.path(), STOCK)).unwrap().into();
    let drive = read_directly(Arc::clone(&slab), &*slab).unwrap();
    assert_eq!((drive.unaligned, drive.mode), (0, ReadMode::Direct));
    assert!(
        drive.refused == 0 || drive.refused == drive.reads,
        "the file system takes direct reads, or none"
    );
    let counted =
        wrapped(Arc::clone(&slab), false, |inner, file, buffer, at| inner.read_direct_at(file, buffer, at));
    let drive = read_directly(Arc::clone(&counted) as _, &*slab).unwrap();
    assert!(drive.refused > 0 || counted.direct_calls.load(SeqCst) == drive.reads);
}

#[test]
fn what_cannot_be_read_directly_is_counted_read_otherwise_and_dropped_from_the_page_cache() {
    let stock: Arc<dyn ExpertSource> = slabs::open_fixture(STOCK).into();
    let source = wrapped(Arc::clone(&stock), false, |_, _, _, _| unreachable!("no segment is aligned"));
    let drive = read_directly(Arc::clone(&source) as _, &*stock).unwrap();
    assert_eq!((drive.unaligned, drive.refused), (drive.reads, 0));
    assert_eq!(source.forgotten_bytes.load(SeqCst), drive.bytes());
}

#[test]
fn a_file_system_that_refuses_direct_reads_is_asked_once_and_one_that_fails_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let slab: Arc<dyn ExpertSource> = open_source(slabs::packed(directory.path(), STOCK)).unwrap().into();
    for refuse in [(|_, _, _, _| Err(io::ErrorKind::InvalidInput.into())) as Direct, |_, _, _, _| {
        Err(io::ErrorKind::Unsupported.into())
    }] {
        let source = wrapped(Arc::clone(&slab), false, refuse);
        let drive = read_directly(Arc::clone(&source) as _, &*slab).unwrap();
        assert_eq!((source.direct_calls.load(SeqCst), drive.refused), (1, drive.reads));
        assert_eq!(source.forgotten_bytes.load(SeqCst), drive.bytes());
    }
    let broken = wrapped(Arc::clone(&slab), false, |_, _, _, _| Err(io::ErrorKind::PermissionDenied.into()));
    let error = read_directly(broken, &*slab).unwrap_err();
    assert!(error.to_string().contains("permission denied"), "{error}");
}

#[test]
fn a_direct_read_that_falls_short_is_continued_from_an_odd_place() {
    let directory = tempfile::tempdir().unwrap();
    let slab: Arc<dyn ExpertSource> = open_source(slabs::packed(directory.path(), STOCK)).unwrap().into();
    let short = wrapped(Arc::clone(&slab), false, |inner, file, buffer, at| {
        let len = buffer.len().min(5000);
        inner.read_at(file, &mut buffer[..len], at)
    });
    let drive = read_directly(short, &*slab).unwrap();
    assert!(drive.retries > 0 && drive.unaligned > 0, "{drive:?}");
}

#[test]
fn wrappers_pass_on_what_they_do_not_answer_themselves() {
    let stock: Arc<dyn ExpertSource> = slabs::open_fixture(STOCK).into();
    let report =
        streamed_experts::verify(&*stock, &VerifyOptions::default(), |_| std::ops::ControlFlow::Continue(()));
    let inner = wrapped(Arc::clone(&stock), true, |_, _, _, _| Err(io::ErrorKind::WouldBlock.into()));
    let checked = Checksummed::new(Arc::clone(&inner) as _, report.unwrap().checksums.unwrap()).unwrap();
    let file = FileId(0);
    let kind = |read: io::Result<usize>| read.unwrap_err().kind();
    assert_eq!(kind(checked.read_direct_at(file, &mut [], 0)), io::ErrorKind::WouldBlock);
    assert_eq!(checked.changed(file), Some(FileChange::Written));
    assert_eq!(checked.mirror(file), Some(FileId(MIRROR)));
    assert_eq!(checked.drive(file), stock.drive(file));
    checked.forget(file, 0, 77);
    assert_eq!(inner.forgotten_bytes.load(SeqCst), 77);
    // SAFETY: nobody writes to the fixtures.
    #[expect(unsafe_code, reason = "mapping is the caller's promise")]
    let mapped = unsafe { Mapped::new(Arc::clone(&stock)) }.unwrap();
    assert_eq!(mapped.drive(file), stock.drive(file));
    assert_eq!((mapped.changed(file), mapped.mirror(file)), (None, None));
    assert_eq!(kind(mapped.read_direct_at(file, &mut [], 0)), io::ErrorKind::Unsupported);
    let key = slabs::keys(&*stock).next().unwrap();
    let checksummed = Checksummed::new(Arc::new(mapped), {
        let report = streamed_experts::verify(&*stock, &VerifyOptions::default(), |_| {
            std::ops::ControlFlow::Continue(())
        });
        report.unwrap().checksums.unwrap()
    });
    assert!(checksummed.unwrap().checksum(key).is_some());
}

#[test]
fn a_mirror_is_read_beside_the_first_copy_and_must_be_one() {
    let directory = tempfile::tempdir().unwrap();
    let first = slabs::packed(directory.path(), STOCK);
    let slab: Arc<dyn ExpertSource> = open_source(&first).unwrap().into();
    let (empty, mirror) = (directory.path().join("empty"), directory.path().join("mirror"));
    std::fs::create_dir(&empty).unwrap();
    std::fs::create_dir(&mirror).unwrap();
    let copy = mirror.join(first.file_name().unwrap());
    let open = |source: &Arc<dyn ExpertSource>| Mirrored::open(Arc::clone(source), &[&empty, &mirror]);
    assert!(matches!(open(&slab), Err(SourceError::NoMirror { .. })));
    std::fs::copy(&first, &copy).unwrap();
    let mirrored = open(&slab).unwrap();
    let other = mirrored.mirror(FileId(0)).unwrap();
    assert_eq!((mirrored.path(other), mirrored.mirror(other)), (&*copy, None));
    let (mut ours, mut theirs) = (vec![0; 70_000], vec![1; 70_000]);
    assert_eq!(mirrored.read_at(FileId(0), &mut ours, 16_384).unwrap(), 70_000);
    assert_eq!(mirrored.read_at(other, &mut theirs, 16_384).unwrap(), 70_000);
    assert_eq!(ours, theirs);
    slabs::flip(&copy, 20);
    assert_eq!(mirrored.changed(other), Some(FileChange::Written));
    assert_eq!((mirrored.changed(FileId(0)), mirrored.checksum(key(0, 1))), (None, slab.checksum(key(0, 1))));
    let told = |what: &str| {
        let error = open(&slab).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("mirror"), "{error}");
    };
    told("first bytes");
    std::fs::copy(&first, &copy).unwrap();
    slabs::flip(&copy, std::fs::metadata(&first).unwrap().len() - 1);
    told("bytes");
    std::fs::OpenOptions::new().write(true).open(&copy).unwrap().set_len(100_000).unwrap();
    told("length");
}

#[test]
fn two_drives_with_the_same_bytes_are_both_read() {
    let directory = tempfile::tempdir().unwrap();
    let first = slabs::packed(directory.path(), STOCK);
    let Some(drive) = slabs::Tmpfs::mount("64m") else { return };
    std::fs::copy(&first, drive.path().join(first.file_name().unwrap())).unwrap();
    let slab: Arc<dyn ExpertSource> = open_source(&first).unwrap().into();
    let source: Arc<dyn ExpertSource> = Arc::new(Mirrored::open(Arc::clone(&slab), &[drive.path()]).unwrap());
    let budget = Budget { working_slots: 8, ..Budget::new(10 * slab.tiers()[0].layout.slot_bytes()) };
    let plan = ResidencyPlan::new(&*source, &budget).unwrap();
    let banks = plan.anonymous_banks().unwrap();
    let reading = ReadOptions { mode: ReadMode::Direct, ..ReadOptions::default() };
    let options = ManagerOptions { reading, ..ManagerOptions::default() };
    let manager = ResidencyManager::new(source, plan, banks, Lru::boxed, &options).unwrap();
    let both = || manager.drives().iter().all(|drive| drive.bytes() > 0);
    for _ in 0..200 {
        for layer in [L0, LayerId(1)] {
            let lease = manager.lease_with(layer, &experts([0, 1, 2, 3, 4, 5, 6, 7]), |_| {}).unwrap();
            for position in 0..8 {
                let key = ExpertKey::new(layer, lease.expert(position));
                assert_eq!(lease.bytes(position).unwrap(), slabs::read_slot(&*slab, key), "{key}");
            }
        }
        if both() {
            break;
        }
    }
    assert!(both(), "{:?}", manager.drives());
    manager.close().unwrap();
    drop(manager);
}
