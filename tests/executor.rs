//! The whole way from files to rows. If this fails, an engine gets other numbers than the model's, or numbers that change
//! with what happens to be resident.

#[path = "common/fixture.rs"]
mod fixture;
#[path = "common/pass.rs"]
mod pass;

use fixture::Fixture;
use pass::{Setting, cases, families, fixtures, open, relative_error, smallest_budget, source, whole_budget};
use streamed_experts::{
    BatchPlan, Budget, ExecutorOptions, ExpertId, ExpertKey, Family, LayerId, Routes, StreamedExpertExecutor,
};

#[test]
fn every_source_gives_its_answers_in_f32() {
    let names = fixtures();
    assert_eq!(names.len(), 34);
    for name in names {
        let (fixture, source) = (Fixture::open(&name), source(&name));
        for family in families() {
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
        for family in families() {
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
    for family in families() {
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
    let family = families()[0];
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
    for family in families() {
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
    for family in families() {
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
    for family in families() {
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
    let options = ExecutorOptions { family: Family::Stock, ..ExecutorOptions::new(budget) };
    let error = StreamedExpertExecutor::open(source, &options).unwrap_err().to_string();
    assert_eq!(error, "the stock family is not in this build; it needs the feature `mlx`");
}

/// The stock family's products may be other kernels for many rows than for one; `fixed_family` says which are taken.
#[test]
fn a_fixed_family_gives_a_row_the_same_bits_in_any_company() {
    for name in ["qwen3_moe-affine4-g64-bf16", "gpt_oss-mxfp4", "colibri-q4-row", "colibri-q8-row"] {
        let (fixture, source) = (Fixture::open(name), source(name));
        for family in families() {
            let budget = Budget::new(whole_budget(&*source));
            let options = ExecutorOptions { family, fixed_family: true, ..ExecutorOptions::new(budget) };
            let mut executor = StreamedExpertExecutor::open(source.clone(), &options).unwrap();
            for case in cases(&fixture) {
                let together = executor.execute_rows(case.layer, &case.input, &case.plan, None).unwrap();
                let error = relative_error(
                    &executor.execute_rows(case.layer, &case.repeated(), &case.alone, None).unwrap(),
                    &case.expert_rows,
                );
                assert!(error <= 1e-5, "{name} {} {family:?}: {error:.1e}", case.layer);
                for (row, expected) in together.chunks(case.hidden).enumerate() {
                    let terms = case.plan.row(row).map(|term| (term.expert, term.weight)).collect::<Vec<_>>();
                    let routes = Routes::from_ragged(&[terms], fixture.experts()).unwrap();
                    let plan = BatchPlan::new(&routes, fixture.experts()).unwrap();
                    let input = &case.input[row * case.hidden..][..case.hidden];
                    let alone = executor.execute_rows(case.layer, input, &plan, None).unwrap();
                    let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&alone), bits(expected), "{name} {} {family:?} row {row}", case.layer);
                }
            }
        }
    }
}

#[test]
fn every_tier_says_who_computes_it_and_counts_our_dispatches() {
    for name in ["qwen3_moe-affine4-g64-bf16", "qwen3_moe-mxfp4"] {
        let (fixture, source) = (Fixture::open(name), source(name));
        for family in families().into_iter().chain([Family::Auto]) {
            let budget_bytes = whole_budget(&*source);
            let mut executor = open(&source, &Setting { family, budget_bytes, working: 64, readers: 2 });
            let ours = family == Family::Auto || Some(family) == Family::of_gpu();
            let expected = match (Family::of_gpu(), name) {
                (Some(gpu), "qwen3_moe-affine4-g64-bf16") if ours => gpu,
                (Some(_), _) if ours => Family::Stock,
                (None, _) if family == Family::Auto => Family::Host,
                _ => family,
            };
            for tier in executor.families() {
                assert_eq!(tier.family, expected, "{name} {family:?}");
                let instead = tier.instead_of_kernels.unwrap_or_default();
                assert_eq!(!instead.is_empty(), expected == Family::Stock && ours, "{instead}");
                assert!(instead.is_empty() || instead.contains("Mxfp4"), "{instead}");
            }
            for case in cases(&fixture) {
                assert_eq!(executor.family(case.layer), Some(expected));
                let row = &case.input[..case.hidden];
                let terms = case.plan.row(0).map(|term| (term.expert, term.weight)).collect::<Vec<_>>();
                let routes = Routes::from_ragged(&[terms], fixture.experts()).unwrap();
                let plan = BatchPlan::new(&routes, fixture.experts()).unwrap();
                executor.execute_rows(case.layer, row, &plan, None).unwrap();
                let _ = executor.manager().drain_telemetry();
                executor.execute_rows(case.layer, row, &plan, None).unwrap();
                let dispatches = executor.manager().drain_telemetry().dispatches;
                let kernels = matches!(expected, Family::Metal | Family::Cuda);
                assert_eq!(dispatches, if kernels { 2 } else { 0 }, "{name} {family:?}");
            }
            assert_eq!(executor.manager().telemetry().dispatches, 0);
        }
    }
}
