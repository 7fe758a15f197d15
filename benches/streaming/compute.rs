//! Reading beside computing, and what a hit costs beside computing.

use std::{sync::Arc, time::Instant};

use streamed_experts::{
    BatchPlan, Budget, ExecutorOptions, ExpertId, ExpertSource, ExpertView, Family, HostFamily, HostJob,
    HostOptions, LayerId, ReadMode, Routes, StreamedExpertExecutor,
};

use super::{
    Effort,
    data::{Data, HIDDEN},
    lease, median,
    pages::make_cold,
};

const L0: LayerId = LayerId(0);
const RANKS: u32 = 8;

/// Rows such that every expert has `uses` of them.
fn sweep(experts: u32, uses: u32) -> BatchPlan {
    let ids: Vec<u32> = (0..experts * uses).map(|pair| pair % experts).collect();
    let rows = ids.len() / RANKS as usize;
    let routes = Routes::from_top_k(rows, RANKS as usize, &ids, &vec![0.125; ids.len()], experts);
    BatchPlan::new(&routes.expect("routes"), experts).expect("a plan")
}

fn executor(source: &Arc<dyn ExpertSource>, working_slots: u32, resident: u32) -> StreamedExpertExecutor {
    let slot_bytes = source.tiers()[0].layout.slot_bytes();
    let budget = Budget { working_slots, ..Budget::new(u64::from(working_slots + resident) * slot_bytes) };
    let mut options = ExecutorOptions { family: Family::Host, ..ExecutorOptions::new(budget) };
    options.manager.reading.mode = ReadMode::Direct;
    options.manager.readers = lease::SHAPE.0 as u32;
    StreamedExpertExecutor::open(Arc::clone(source), &options).expect("an executor")
}

fn seconds(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

/// A sweep over all experts ÷ the longer of reading them and computing them, with as many rows as make the two alike.
pub(crate) fn overlap(data: &Data, effort: Effort) -> Vec<(String, f64)> {
    let (source, path) = (data.slab(), data.slab_path());
    let reader = lease::manager(Arc::clone(&source), ReadMode::Direct, lease::SHAPE);
    let mut resident = executor(&source, effort.experts, effort.experts);
    let mut streaming = executor(&source, 24, 1);
    let read =
        |reader| effort.experts as f64 * data.slot_bytes() as f64 / lease::rate(reader, effort.experts);
    let run = |executor: &mut StreamedExpertExecutor, plan: &BatchPlan| {
        let input = vec![0.5; plan.rows() * HIDDEN];
        seconds(|| {
            executor.execute_rows(L0, &input, plan, None).expect("a forward");
        })
    };
    run(&mut resident, &sweep(effort.experts, 1));
    let read_once = read(&reader).min(read(&reader));
    let alike = [1, 2, 4, 8, 16, 32]
        .into_iter()
        .find(|&uses| run(&mut resident, &sweep(effort.experts, uses)) >= read_once);
    let uses = alike.unwrap_or(32);
    let mut figures = Vec::new();
    for (name, uses) in [("overlap", uses), ("overlap_read_bound", 1)] {
        let plan = sweep(effort.experts, uses);
        run(&mut streaming, &plan);
        println!("  {uses} rows an expert");
        let ratio = median(effort.rounds, |_| {
            make_cold(&path);
            let reading = read(&reader);
            let computing = run(&mut resident, &plan);
            let both = run(&mut streaming, &plan);
            println!("  read {reading:.3} s, compute {computing:.3} s, sweep {both:.3} s");
            both / reading.max(computing)
        });
        figures.push((name.into(), ratio));
    }
    figures
}

/// Leasing and releasing 8 resident experts ÷ computing one of them for one row.
pub(crate) fn hit_overhead(data: &Data, effort: Effort) -> Vec<(String, f64)> {
    const TIMES: u32 = 2000;
    let source = data.slab();
    let executor = executor(&source, 8, 16);
    let manager = executor.manager();
    let experts: Vec<_> = (0..8).map(ExpertId).collect();
    manager.lease_with(L0, &experts, |_| {}).expect("a lease").release().expect("every read succeeds");
    let family = HostFamily::new(HostOptions::default()).expect("the host family");
    let (tier, input) = (&source.tiers()[0], vec![0.5; HIDDEN]);
    let mut output = vec![0.0; HIDDEN];
    let held = manager.lease_with(L0, &experts, |_| {}).expect("a lease");
    let ratio = median(effort.rounds, |_| {
        let hits = seconds(|| {
            for _ in 0..TIMES {
                let lease = manager.admit(L0, &experts).expect("a lease");
                assert_eq!(lease.hits().count(), 8);
                lease.release().expect("nothing was read");
            }
        }) / f64::from(TIMES);
        let computing = seconds(|| {
            for time in 0..64 {
                let bytes = held.bytes(time % 8).expect("it is in memory");
                let expert = ExpertView::new(&tier.geometry, &tier.layout, bytes).expect("a view");
                family
                    .run(&[HostJob { expert, rows: &[0], pairs: &[0] }], &input, &mut output)
                    .expect("rows");
            }
        }) / 64.0;
        println!("  8 hits {:.2} us, one expert {:.0} us", hits * 1e6, computing * 1e6);
        hits / computing
    });
    vec![("hit_overhead".into(), ratio)]
}
