//! Leases, every expert a miss, against bare readers of the same bytes.

use std::{fs::File, ops::ControlFlow, path::Path, sync::Arc, time::Instant};

use memmap2::MmapMut;
use streamed_experts::{
    Budget, Calibration, ExpertId, ExpertSource, LayerId, Lru, ManagerOptions, ReadMode, ReadOptions,
    ResidencyManager, ResidencyPlan, VerifyOptions,
};

use super::{
    Effort, both,
    data::Data,
    median,
    pages::{make_cold, make_warm},
    raw,
};

const L0: LayerId = LayerId(0);
/// Readers and the bytes that each reads at a time, unless a bare reader was found to do better with others.
pub(crate) const SHAPE: (usize, usize) = (8, 4 << 20);
const WORKING: u32 = 24;
/// Experts of one lease; the next is read while one is waited for.
const WAVE: usize = 8;

pub(crate) fn manager(
    source: Arc<dyn ExpertSource>,
    mode: ReadMode,
    (readers, piece_bytes): (usize, usize),
) -> ResidencyManager {
    let slot_bytes = source.tiers()[0].layout.slot_bytes();
    let budget = Budget { working_slots: WORKING, ..Budget::new(u64::from(WORKING + 1) * slot_bytes) };
    let plan = ResidencyPlan::new(&*source, &budget).expect("a plan");
    let banks = plan.anonymous_banks().expect("banks");
    let piece_bytes = piece_bytes as u64;
    let reading = ReadOptions { mode, piece_bytes, calibration: Calibration::Off, ..ReadOptions::default() };
    let options = ManagerOptions { readers: readers as u32, reading, ..ManagerOptions::default() };
    ResidencyManager::new(source, plan, banks, Lru::boxed, &options).expect("a manager")
}

/// Bytes a second of leasing every expert once.
pub(crate) fn rate(manager: &ResidencyManager, experts: u32) -> f64 {
    let all: Vec<_> = (0..experts).map(ExpertId).collect();
    let _ = manager.drain_telemetry();
    let began = Instant::now();
    let mut leases = std::collections::VecDeque::new();
    for wave in all.chunks(WAVE) {
        let mut lease = manager.admit(L0, wave).expect("a lease");
        lease.read_misses();
        leases.push_back(lease);
        if leases.len() == WORKING as usize / WAVE {
            end(leases.pop_front());
        }
    }
    leases.into_iter().for_each(|lease| end(Some(lease)));
    let seconds = began.elapsed().as_secs_f64();
    let telemetry = manager.drain_telemetry();
    assert!(telemetry.requests.hits <= 1, "{} hits: one expert is kept", telemetry.requests.hits);
    telemetry.demand_reads.bytes as f64 / seconds
}

fn end(lease: Option<streamed_experts::Lease>) {
    let mut lease = lease.expect("there is one");
    lease.wait_all().expect("every read succeeds");
    lease.release().expect("every read succeeded");
}

fn cold(path: &Path, measure: impl Fn() -> f64) -> f64 {
    make_cold(path);
    measure()
}

pub(crate) fn cold_direct(data: &Data, effort: Effort) -> Vec<(String, f64)> {
    let path = data.slab_path();
    let file = raw::open_direct(&path);
    // What the drive gives depends on depth and size; the best of these is what we are measured by.
    let shapes = [(2, 4 << 20), (4, 1 << 20), (4, 4 << 20), (8, 1 << 20), (8, 4 << 20)];
    let bare = |(threads, block)| raw::rate(&file, &mut raw::buffers(threads, block));
    make_cold(&path);
    let best = shapes.into_iter().max_by(|&a, &b| bare(a).total_cmp(&bare(b))).expect("there are some");
    let mut buffers = raw::buffers(best.0, best.1);
    let manager = manager(data.slab(), ReadMode::Direct, best);
    rate(&manager, effort.experts); // touches the slots
    println!("  bare direct reader: {} threads, blocks of {} B", best.0, best.1);
    let ratio = median(effort.rounds, |swap| {
        let bare = || cold(&path, || 0.0) + raw::rate(&file, &mut buffers);
        let (ours, bare) = both(swap, || cold(&path, || rate(&manager, effort.experts)), bare);
        println!("  leases {:.2} GB/s, bare {:.2} GB/s", ours / 1e9, bare / 1e9);
        ours / bare
    });
    let drive = manager.drives()[0];
    assert_eq!((drive.refused, drive.unaligned), (0, 0), "every read was direct");
    vec![("cold_direct_vs_raw".into(), ratio)]
}

pub(crate) fn cold_stock(data: &Data, effort: Effort) -> Vec<(String, f64)> {
    let (path, manager) = (data.shard_path(), manager(data.stock(), ReadMode::Buffered, SHAPE));
    let file = File::open(&path).expect("the shard opens");
    let mut buffers = raw::buffers(SHAPE.0, SHAPE.1);
    rate(&manager, effort.experts);
    let ratio = median(effort.rounds, |swap| {
        let bare = || cold(&path, || 0.0) + raw::rate(&file, &mut buffers);
        let (ours, bare) = both(swap, || cold(&path, || rate(&manager, effort.experts)), bare);
        println!("  leases {:.2} GB/s, bare {:.2} GB/s", ours / 1e9, bare / 1e9);
        ours / bare
    });
    vec![("cold_stock_vs_raw".into(), ratio)]
}

pub(crate) fn warm(data: &Data, effort: Effort) -> Vec<(String, f64)> {
    let (path, manager) = (data.slab_path(), manager(data.slab(), ReadMode::Buffered, SHAPE));
    let (file, slot_bytes) = (File::open(&path).expect("the slab opens"), data.slot_bytes() as usize);
    let mut slots = MmapMut::map_anon(slot_bytes * (WORKING as usize + 1)).expect("memory");
    slots.fill(1);
    make_warm(&path);
    rate(&manager, effort.experts);
    let ratio = median(effort.rounds * 3, |swap| {
        let bare = || raw::rate_into_slots(&file, &mut slots, slot_bytes, SHAPE.0);
        let (ours, bare) = both(swap, || rate(&manager, effort.experts), bare);
        ours / bare
    });
    vec![("warm_vs_memcpy".into(), ratio)]
}

pub(crate) fn verify(data: &Data, effort: Effort) -> Vec<(String, f64)> {
    let (path, slab) = (data.slab_path(), data.slab());
    let file = File::open(&path).expect("the slab opens");
    let mut buffers = raw::buffers(SHAPE.0, SHAPE.1);
    let bytes = effort.experts as f64 * data.slot_bytes() as f64;
    let ratio = median(effort.rounds, |swap| {
        let ours = || {
            make_cold(&path);
            let began = Instant::now();
            let options = VerifyOptions { threads: SHAPE.0 as u32 };
            let report =
                streamed_experts::verify(&*slab, &options, |_| ControlFlow::Continue(())).expect("a report");
            assert!(report.is_sound());
            bytes / began.elapsed().as_secs_f64()
        };
        let bare = || cold(&path, || 0.0) + raw::rate(&file, &mut buffers);
        let (ours, bare) = both(swap, ours, bare);
        println!("  verify {:.2} GB/s, bare {:.2} GB/s", ours / 1e9, bare / 1e9);
        ours / bare
    });
    vec![("verify_vs_raw".into(), ratio)]
}
