//! The whole way from files to rows. If this fails, an engine gets other numbers than the model's, or numbers that change
//! with what happens to be resident.

#[path = "common/fixture.rs"]
mod fixture;
#[path = "common/pass.rs"]
mod pass;

use fixture::Fixture;
use pass::{FAMILIES, Setting, cases, fixtures, open, relative_error, smallest_budget, source, whole_budget};
use streamed_experts::{Budget, ExecutorOptions, ExpertId, ExpertKey, LayerId, StreamedExpertExecutor};

#[test]
fn every_source_gives_its_answers_in_f32() {
    let names = fixtures();
    assert_eq!(names.len(), 34);
    for name in names {
        let (fixture, source) = (Fixture::open(&name), source(&name));
        for &family in FAMILIES {
            let budget_bytes = whole_budget(&*source);
            let mut executor = open(&source, &Setting { family, budget_bytes, working: 64, readers: 2 });
            for case in cases(&fixture) {
                let rows = executor.execute_rows(case.layer, &case.repeated(), &case.alone, None).unwrap();
                let error = relative_error(&rows, &case.expert_rows);
                assert!(error <= 1e-5, "{name} {} {family:?} expert rows: {error:.1e}", case.layer);
                let out = executor
                    .execute_rows(case.layer, &case.input, &case.plan, case.shared.as_deref())
                    .unwrap();
                let error = relative_error(&out, &case.output);
                assert!(error <= 1e-5, "{name} {} {family:?} output: {error:.1e}", case.layer);
            }
            executor.close().unwrap();
        }
    }
}

/// The bits of every layer's output, twice over, so that the second pass meets what the first has left behind.
fn bits(name: &str, setting: &Setting) -> Vec<Vec<u32>> {
    let (fixture, source) = (Fixture::open(name), source(name));
    let mut executor = open(&source, setting);
    let mut outputs = Vec::new();
    for _ in 0..2 {
        for case in cases(&fixture) {
            let out =
                executor.execute_rows(case.layer, &case.input, &case.plan, case.shared.as_deref()).unwrap();
            outputs.push(out.iter().map(|value| value.to_bits()).collect());
        }
    }
    executor.manager().check_invariants();
    executor.close().unwrap();
    outputs
}

#[test]
fn where_an_expert_lives_does_not_change_one_bit() {
    for name in fixtures() {
        let source = source(&name);
        for &family in FAMILIES {
            let whole = whole_budget(&*source);
            let resident = bits(&name, &Setting { family, budget_bytes: whole, working: 64, readers: 4 });
            let passes = resident.len() / 2;
            assert_eq!(resident[..passes], resident[passes..], "{name} {family:?}: misses and hits differ");
            for working in [1, 3, 64] {
                for readers in [1, 4] {
                    let budget_bytes = smallest_budget(&*source, working);
                    let streamed = bits(&name, &Setting { family, budget_bytes, working, readers });
                    assert_eq!(
                        streamed, resident,
                        "{name} {family:?}, waves of {working}, {readers} readers"
                    );
                }
            }
        }
    }
}

#[test]
fn resident_experts_are_hits_and_are_not_read_again() {
    let name = "qwen3_moe-affine4-g64-bf16";
    let (fixture, source) = (Fixture::open(name), source(name));
    for &family in FAMILIES {
        let mut executor =
            open(&source, &Setting { family, budget_bytes: whole_budget(&*source), working: 64, readers: 2 });
        for case in cases(&fixture) {
            executor.execute_rows(case.layer, &case.input, &case.plan, None).unwrap();
        }
        let cold = executor.manager().drain_telemetry();
        assert_eq!((cold.requests.hits, cold.policy.evictions), (0, 0));
        assert!(cold.requests.misses > 0 && cold.demand_reads.experts == cold.requests.misses);
        for case in cases(&fixture) {
            executor.execute_rows(case.layer, &case.input, &case.plan, None).unwrap();
        }
        let warm = executor.manager().telemetry();
        assert_eq!((warm.requests.hits, warm.requests.misses), (cold.requests.misses, 0));
        assert_eq!((warm.demand_reads.reads, warm.demand_reads.bytes), (0, 0));
        assert_eq!(warm.forward_time.count, cases(&fixture).len() as u64);
    }
}

#[test]
fn uses_are_counted_before_experts_are_deduplicated() {
    let name = "qwen3_moe-affine4-g64-bf16";
    let (fixture, source) = (Fixture::open(name), source(name));
    let family = FAMILIES[0];
    let mut executor =
        open(&source, &Setting { family, budget_bytes: whole_budget(&*source), working: 64, readers: 2 });
    let case = &cases(&fixture)[0];
    for _ in 0..3 {
        executor.execute_rows(case.layer, &case.input, &case.plan, None).unwrap();
    }
    let mut expected = vec![0; fixture.experts() as usize];
    for each in case.plan.jobs() {
        expected[each.expert.index()] += 3 * case.plan.uses(each).len() as u64;
    }
    assert_eq!(executor.usage(case.layer).unwrap(), expected);
    assert_eq!(expected.iter().sum::<u64>(), 3 * case.plan.pairs() as u64);
    assert_eq!(executor.usage(LayerId(99)), None);
}

#[test]
fn threads_that_share_slots_compute_what_each_computes_alone() {
    let name = "qwen3_moe-affine4-g64-bf16";
    let (fixture, source) = (Fixture::open(name), source(name));
    for &family in FAMILIES {
        // One working slot: the threads wait for each other at every wave.
        let budget_bytes = smallest_budget(&*source, 1);
        let executor = open(&source, &Setting { family, budget_bytes, working: 1, readers: 2 });
        let expected = bits(name, &Setting { family, budget_bytes, working: 1, readers: 2 });
        let cases = cases(&fixture);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let mut executor = executor.share();
                let (cases, expected) = (&cases, &expected);
                scope.spawn(move || {
                    for (case, expected) in cases.iter().zip(expected).cycle().take(8 * cases.len()) {
                        let shared = case.shared.as_deref();
                        let out = executor.execute_rows(case.layer, &case.input, &case.plan, shared).unwrap();
                        let out: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
                        assert_eq!(&out, expected, "{family:?} {}", case.layer);
                    }
                    let uses: u64 = executor.usage(cases[0].layer).unwrap().iter().sum();
                    assert_eq!(uses, 8 * cases[0].plan.pairs() as u64, "uses of this thread alone");
                });
            }
        });
        executor.manager().check_invariants();
        assert_eq!(executor.manager().telemetry().forward_time.count, 3 * 8 * cases.len() as u64);
        let other = executor.share();
        executor.close().unwrap();
        assert!(other.manager().admit(cases[0].layer, &[ExpertId(0)]).is_err(), "closed for all");
    }
}

#[test]
fn pinned_experts_are_loaded_at_open_and_stay() {
    let name = "qwen3_moe-affine4-g64-bf16";
    let (fixture, source) = (Fixture::open(name), source(name));
    for &family in FAMILIES {
        let pinned = vec![ExpertKey::new(LayerId(1), ExpertId(5)), ExpertKey::new(LayerId(0), ExpertId(2))];
        let budget_bytes = smallest_budget(&*source, 1) + 2 * source.tiers()[0].layout.slot_bytes();
        let budget = Budget { working_slots: 1, pinned: pinned.clone(), ..Budget::new(budget_bytes) };
        let options = ExecutorOptions { family, ..ExecutorOptions::new(budget) };
        let mut executor = StreamedExpertExecutor::open(source.clone(), &options).unwrap();
        assert!(pinned.iter().all(|&key| executor.manager().is_resident(key)));
        for case in cases(&fixture) {
            executor.execute_rows(case.layer, &case.input, &case.plan, None).unwrap();
        }
        assert!(pinned.iter().all(|&key| executor.manager().is_resident(key)));
    }
}

#[test]
fn memory_pressure_between_forwards_changes_speed_alone() {
    let name = "qwen3_moe-affine4-g64-bf16";
    let (fixture, source) = (Fixture::open(name), source(name));
    for &family in FAMILIES {
        let setting = Setting { family, budget_bytes: whole_budget(&*source), working: 64, readers: 2 };
        let expected = bits(name, &setting);
        let mut executor = open(&source, &setting);
        let slot_bytes = source.tiers()[0].layout.slot_bytes();
        let limits = [None, Some(3 * slot_bytes), Some(0), None];
        for limit in limits {
            executor.manager().set_resident_limit_bytes(limit);
            for (case, expected) in cases(&fixture).iter().zip(&expected) {
                let out = executor
                    .execute_rows(case.layer, &case.input, &case.plan, case.shared.as_deref())
                    .unwrap();
                let out: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
                assert_eq!(&out, expected, "{family:?} with the resident part limited to {limit:?}");
            }
        }
        executor.manager().check_invariants();
    }
}

#[cfg(not(feature = "mlx"))]
#[test]
fn a_family_that_is_not_in_the_build_says_what_to_build_with() {
    let source = source("qwen3_moe-affine4-g64-bf16");
    let budget = Budget::new(whole_budget(&*source));
    let options = ExecutorOptions { family: streamed_experts::Family::Stock, ..ExecutorOptions::new(budget) };
    let error = StreamedExpertExecutor::open(source, &options).unwrap_err().to_string();
    assert_eq!(error, "the stock family is not in this build; it needs the feature `mlx`");
}
