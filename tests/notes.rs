//! If this fails, what a run learned of its experts is lost, counted wrongly, or changes a result.

#[path = "common/fixture.rs"]
mod fixture;
#[path = "common/pass.rs"]
mod pass;

use std::{fs, path::Path, sync::Arc};

use fixture::Fixture;
use pass::{LayerCase, cases, smallest_budget, source, whole_budget};
use streamed_experts::{
    BatchPlan, Budget, EndedTurn, ExecutorOpenError, ExecutorOptions, ExpertId, ExpertKey, ExpertSource,
    Family, LayerId, RecordOptions, RecorderLimits, Routes, StreamedExpertExecutor, SwapOptions, Trace,
    TurnError,
};

const NAME: &str = "qwen3_moe-affine4-g64-bf16";

fn options(source: &dyn ExpertSource) -> ExecutorOptions {
    ExecutorOptions { family: Family::Host, ..ExecutorOptions::new(Budget::new(whole_budget(source))) }
}

fn open(source: &Arc<dyn ExpertSource>, options: &ExecutorOptions) -> StreamedExpertExecutor {
    StreamedExpertExecutor::open(Arc::clone(source), options).unwrap()
}

fn forward(executor: &mut StreamedExpertExecutor, case: &LayerCase) -> Vec<u32> {
    let out = executor.execute_rows(case.layer, &case.input, &case.plan, case.shared.as_deref()).unwrap();
    out.iter().map(|value| value.to_bits()).collect()
}

/// Uses of each expert in one forward of `case`.
fn uses(case: &LayerCase) -> Vec<(ExpertKey, u64)> {
    let jobs = case.plan.jobs().iter();
    jobs.map(|job| (ExpertKey::new(case.layer, job.expert), job.rows() as u64)).collect()
}

fn requests(path: &Path) -> Vec<(u64, LayerId, Vec<ExpertId>)> {
    let trace = Trace::read(path).unwrap();
    trace.requests().map(|each| (each.forward, each.layer, each.experts.to_vec())).collect()
}

#[test]
fn a_ledger_counts_uses_before_equal_experts_are_merged_and_goes_on_in_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage");
    let (fixture, source) = (Fixture::open(NAME), source(NAME));
    let cases = cases(&fixture);
    let options = ExecutorOptions { ledger: Some(path.clone()), ..options(&*source) };
    for run in 1..=2 {
        let mut executor = open(&source, &options);
        assert!(executor.damaged_ledger().is_none());
        let mut other = executor.share();
        for case in &cases {
            forward(&mut executor, case);
            forward(&mut other, case);
        }
        let before = executor.ledger().unwrap();
        for (key, uses) in cases.iter().flat_map(uses) {
            assert_eq!(before.uses(key), run * 2 * uses, "{key}, both executors together");
        }
        assert_eq!(executor.end_turn().unwrap(), EndedTurn::default());
        let after = executor.ledger().unwrap();
        for (key, _) in cases.iter().flat_map(uses) {
            assert_eq!((after.uses(key), after.heat(key)), (before.uses(key), before.heat(key) * 0.875));
        }
        forward(&mut executor, &cases[0]); // not saved
    }
    fs::write(&path, "something else").unwrap();
    let executor = open(&source, &options);
    assert!(executor.damaged_ledger().is_some());
    assert!(executor.ledger().unwrap().experts().all(|(_, uses, _)| uses == 0));
}

#[test]
fn recorded_routes_are_read_back_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("routes.jsonl");
    let (fixture, source) = (Fixture::open(NAME), source(NAME));
    let cases = cases(&fixture);
    let options = ExecutorOptions { record: Some(RecordOptions::new(&path)), ..options(&*source) };
    let mut executor = open(&source, &options);
    let mut expected = Vec::new();
    for forwards in 0..3 {
        for case in &cases {
            forward(&mut executor, case);
            let experts = case.plan.jobs().iter().map(|job| job.expert).collect();
            expected.push((forwards, case.layer, experts));
        }
    }
    assert_eq!(executor.end_turn().unwrap(), EndedTurn::default());
    assert_eq!(requests(&path), expected);
    let mut other = executor.share();
    forward(&mut executor, &cases[0]);
    forward(&mut other, &cases[1]);
    let forwards: Vec<_> = requests(&path).iter().skip(expected.len()).map(|each| each.0).collect();
    assert_eq!(forwards, [3, 4], "executors that share slots do not continue each other's forwards");
    assert!(matches!(
        StreamedExpertExecutor::open(Arc::clone(&source), &options),
        Err(ExecutorOpenError::Recorder(_))
    ));
}

#[test]
fn a_full_recording_stops_and_disturbs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("routes.jsonl");
    let (fixture, source) = (Fixture::open(NAME), source(NAME));
    let cases = cases(&fixture);
    let limits = RecorderLimits { file_bytes: 400, ..RecorderLimits::default() };
    let record = Some(RecordOptions { limits, ..RecordOptions::new(&path) });
    let mut executor = open(&source, &ExecutorOptions { record, ..options(&*source) });
    let first = forward(&mut executor, &cases[0]);
    for _ in 0..40 {
        assert_eq!(forward(&mut executor, &cases[0]), first);
    }
    executor.end_turn().unwrap();
    let bytes = fs::metadata(&path).unwrap().len();
    assert!(bytes > 0 && bytes <= 400, "{bytes}");
}

#[test]
fn a_ledger_that_cannot_be_saved_is_told_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let gone = folder.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let (fixture, source) = (Fixture::open(NAME), source(NAME));
    let case = &cases(&fixture)[0];
    let ledger = Some(gone.join("usage"));
    let mut executor = open(&source, &ExecutorOptions { ledger, ..options(&*source) });
    forward(&mut executor, case);
    fs::remove_dir(&gone).unwrap();
    assert!(matches!(executor.end_turn(), Err(TurnError::Ledger(_))));
    fs::create_dir(&gone).unwrap();
    executor.end_turn().unwrap();
    let (key, count) = uses(case)[0];
    assert_eq!(executor.ledger().unwrap().uses(key), count);
    assert!(gone.join("usage").exists());
}

#[test]
fn pinned_experts_that_are_not_used_give_their_place_to_resident_ones_that_are() {
    let folder = tempfile::tempdir().unwrap();
    let (fixture, source) = (Fixture::open(NAME), source(NAME));
    let case = &cases(&fixture)[0];
    let used: Vec<_> = case.plan.jobs().iter().map(|job| job.expert).collect();
    let unused = (0..fixture.experts()).map(ExpertId).find(|expert| !used.contains(expert)).unwrap();
    let swaps = SwapOptions { min_heat: 8.0, ..SwapOptions::default() };
    let mut options = ExecutorOptions {
        ledger: Some(folder.path().join("usage")),
        swap_pins: Some(swaps),
        ..options(&*source)
    };
    options.budget.pinned = vec![ExpertKey::new(case.layer, unused)];
    let mut executor = open(&source, &options);
    let first = forward(&mut executor, case);
    assert_eq!(executor.end_turn().unwrap().pin_swaps, 0, "too little heat");
    for _ in 0..20 {
        assert_eq!(forward(&mut executor, case), first);
    }
    let ended = executor.end_turn().unwrap();
    assert_eq!(ended.pin_swaps, 1);
    let pinned = executor.manager().pinned_experts(case.layer);
    assert!(pinned.len() == 1 && used.contains(&pinned[0]), "{pinned:?} of {used:?}");
    assert!(executor.manager().is_resident(ExpertKey::new(case.layer, unused)), "it is resident now");
    executor.manager().check_invariants();
    for _ in 0..20 {
        assert_eq!(forward(&mut executor, case), first);
        assert_eq!(executor.end_turn().unwrap().pin_swaps, 0, "two that are alike do not take turns");
    }
    assert_eq!(executor.manager().telemetry().policy.pin_swaps, 1);
}

#[test]
fn leaked_slots_make_waves_smaller_and_nothing_else() {
    let (fixture, source) = (Fixture::open(NAME), source(NAME));
    let case = &cases(&fixture)[0];
    assert!(case.plan.unique_experts() > 3);
    let budget = Budget { working_slots: 4, ..Budget::new(smallest_budget(&*source, 4)) };
    let options = ExecutorOptions { family: Family::Host, ..ExecutorOptions::new(budget) };
    let mut executor = open(&source, &options);
    let expected = forward(&mut executor, case);
    let mut lease = executor.manager().admit(LayerId(1), &[ExpertId(0), ExpertId(1)]).unwrap();
    lease.wait_all().unwrap();
    let working = |executor: &StreamedExpertExecutor| executor.manager().request_limit(case.layer).unwrap();
    lease.leak();
    assert!(working(&executor) < 4);
    assert_eq!(forward(&mut executor, case), expected);
}

#[test]
fn what_is_foreseen_rightly_is_read_ahead_and_what_is_not_is_soon_left() {
    let (fixture, source) = (Fixture::open(NAME), source(NAME));
    let case = &cases(&fixture)[0];
    let used: Vec<_> = case.plan.jobs().iter().map(|job| job.expert).collect();
    let unused: Vec<_> = (0..fixture.experts()).map(ExpertId).filter(|id| !used.contains(id)).collect();
    let working = 2 * fixture.experts();
    let budget = Budget { working_slots: working, ..Budget::new(smallest_budget(&*source, working)) };
    let options = ExecutorOptions { family: Family::Host, ..ExecutorOptions::new(budget) };
    let mut executor = open(&source, &options);
    let expected = forward(&mut executor, case);
    let resident = executor.manager().resident_experts(case.layer).len() as u64;
    let absent = used.len() as u64 - resident;
    assert!(executor.read_ahead(case.layer, &used).unwrap());
    assert_eq!(forward(&mut executor, case), expected);
    let (foresight, ahead) = (executor.foresight(), executor.manager().telemetry().ahead);
    assert_eq!((foresight.right, foresight.wrong, foresight.missed), (absent, 0, 0));
    assert_eq!((ahead.used, ahead.wasted + ahead.cancelled), (absent, 0));
    assert_eq!((foresight.precision(), foresight.recall()), (1.0, 1.0));
    assert!(!unused.is_empty());
    let mut read = 0;
    for _ in 0..200 {
        read += u64::from(executor.read_ahead(case.layer, &unused).unwrap());
        assert_eq!(forward(&mut executor, case), expected);
    }
    let foresight = executor.foresight();
    assert!(!foresight.on && foresight.switched_off == 1 && foresight.precision() < 0.25, "{foresight:?}");
    assert!(read < 200);
    let ahead = executor.manager().telemetry().ahead;
    assert!(ahead.wasted + ahead.cancelled <= read * unused.len() as u64);
    assert_eq!(ahead.wasted_bytes, ahead.wasted * source.tiers()[0].layout.slot_bytes());
    while !executor.foresight().on {
        assert!(!executor.read_ahead(case.layer, &used).unwrap(), "judged, not read");
        assert_eq!(forward(&mut executor, case), expected);
    }
}

#[test]
fn each_layer_may_be_foreseen_before_the_one_before_it_is_executed() {
    let source = source(NAME);
    let budget = Budget { working_slots: 8, ..Budget::new(smallest_budget(&*source, 8)) };
    let options = ExecutorOptions { family: Family::Host, ..ExecutorOptions::new(budget) };
    let (mut executor, mut plain) = (open(&source, &options), open(&source, &options));
    let row = vec![0.5; source.tiers()[0].geometry.hidden as usize];
    // Steps go through both layers in turn; each wants two experts that the last time it did not.
    let wanted = |step: u32| [(2 * step) % 8, (2 * step + 1) % 8];
    for step in 0..40 {
        executor.read_ahead(LayerId((step + 1) % 2), &wanted(step + 1).map(ExpertId)).unwrap();
        let plan = Routes::from_top_k(1, 2, &wanted(step), &[0.5, 0.5], 8).unwrap();
        let plan = BatchPlan::new(&plan, 8).unwrap();
        let out = executor.execute_rows(LayerId(step % 2), &row, &plan, None).unwrap();
        assert_eq!(out, plain.execute_rows(LayerId(step % 2), &row, &plan, None).unwrap());
        executor.manager().check_invariants();
    }
    let (foresight, ahead) = (executor.foresight(), executor.manager().telemetry().ahead);
    assert_eq!((foresight.right, foresight.wrong, foresight.missed), (2 * 39, 0, 0));
    assert_eq!((ahead.used, ahead.wasted + ahead.cancelled + ahead.refused), (2 * 39, 0));
    assert!(!executor.read_ahead(LayerId(0), &[]).unwrap());
    assert_eq!(executor.manager().telemetry().slots.leases, 0, "naming nothing gives up everything");
}
