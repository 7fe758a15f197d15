//! What an engine may get wrong. If this fails, a mistake of the caller is a panic, a wrong result, or a lease that is
//! never given back.

#[path = "common/fixture.rs"]
mod fixture;
#[path = "common/pass.rs"]
mod pass;

use fixture::Fixture;
use pass::{LayerCase, Setting, cases, families, open, source, whole_budget};
use streamed_experts::{BatchPlan, ExpertId, LayerId, Routes, StreamedExpertExecutor};

const NAME: &str = "qwen3_moe-affine4-g64-bf16";

fn executors() -> impl Iterator<Item = StreamedExpertExecutor> {
    families().into_iter().map(|family| {
        let source = source(NAME);
        let budget_bytes = whole_budget(&*source);
        open(&source, &Setting { family, budget_bytes, working: 64, readers: 2 })
    })
}

fn first_case() -> LayerCase {
    cases(&Fixture::open(NAME)).swap_remove(0)
}

/// Nothing is leased, and the next correct call gives what the first gives.
fn still_works(executor: &mut StreamedExpertExecutor, case: &LayerCase) {
    assert_eq!(executor.manager().telemetry().slots.leases, 0);
    let out = executor.execute_rows(case.layer, &case.input, &case.plan, None).unwrap();
    assert!(out.iter().all(|value| value.is_finite()));
    executor.manager().check_invariants();
}

/// The message of a call on layer 0 that must fail.
fn refused(
    executor: &mut StreamedExpertExecutor,
    input: &[f32],
    plan: &BatchPlan,
    shared: Option<&[f32]>,
) -> String {
    executor.execute_rows(LayerId(0), input, plan, shared).unwrap_err().to_string()
}

#[test]
fn rows_of_another_width_are_refused() {
    let case = first_case();
    for mut executor in executors() {
        let message = refused(&mut executor, &case.input[1..], &case.plan, None);
        assert_eq!(message, "the input is 127 wide, but the experts of L0 take rows of 128");
        let message = refused(&mut executor, &case.input, &case.plan, Some(&case.input[..7]));
        assert_eq!(message, "the shared row is 1 wide, but the experts of L0 take rows of 128");
        // Rows of another layer may be a multiple of this one's width: the message must say what the width is.
        let wide = case.input.repeat(8);
        let message = refused(&mut executor, &wide, &case.plan, None);
        assert_eq!(
            message,
            "the plan routes 5 rows, but the input has 40 of width 128, which the experts of L0 take"
        );
        still_works(&mut executor, &case);
    }
}

#[test]
fn a_plan_with_more_or_fewer_rows_than_the_input_is_refused() {
    let case = first_case();
    for mut executor in executors() {
        let message = refused(&mut executor, &case.input[128..], &case.plan, None);
        assert_eq!(
            message,
            "the plan routes 5 rows, but the input has 4 of width 128, which the experts of L0 take"
        );
        let message =
            refused(&mut executor, &[&case.input[..], &case.input[..128]].concat(), &case.plan, None);
        assert_eq!(
            message,
            "the plan routes 5 rows, but the input has 6 of width 128, which the experts of L0 take"
        );
        let message = refused(&mut executor, &[], &case.plan, None);
        assert_eq!(
            message,
            "the plan routes 5 rows, but the input has 0 of width 128, which the experts of L0 take"
        );
        still_works(&mut executor, &case);
    }
}

#[test]
fn an_expert_that_the_layer_does_not_have_is_refused() {
    let case = first_case();
    let routes = Routes::from_top_k(1, 2, &[3, 8], &[0.5, 0.5], 9).unwrap();
    let plan = BatchPlan::new(&routes, 9).unwrap();
    for mut executor in executors() {
        let message = refused(&mut executor, &case.input[..128], &plan, None);
        assert_eq!(message, "the plan asks for expert 8 of L0, which has 8");
        still_works(&mut executor, &case);
    }
}

#[test]
fn a_layer_without_experts_is_refused_with_those_that_have_some() {
    let case = first_case();
    for mut executor in executors() {
        let message =
            executor.execute_rows(LayerId(7), &case.input, &case.plan, None).unwrap_err().to_string();
        assert_eq!(message, "L7 has no routed experts in this source; the layers that have are L0 to L1");
        still_works(&mut executor, &case);
    }
}

#[test]
fn a_row_with_neither_experts_nor_a_shared_row_is_refused_and_with_one_it_is_the_shared_row() {
    let case = first_case();
    let ragged = [vec![(ExpertId(1), 1.0)], vec![]];
    let plan = BatchPlan::new(&Routes::from_ragged(&ragged, 8).unwrap(), 8).unwrap();
    for mut executor in executors() {
        let input = &case.input[..256];
        assert_eq!(refused(&mut executor, input, &plan, None), "row 1 has neither experts nor a shared row");
        let shared: Vec<f32> = input.iter().map(|value| value * 3.0).collect();
        let out = executor.execute_rows(LayerId(0), input, &plan, Some(&shared)).unwrap();
        assert_eq!(out[128..], shared[128..]);
        still_works(&mut executor, &case);
    }
}

#[test]
fn nan_weights_pass_through_to_their_rows_and_to_no_other() {
    let case = first_case();
    let rows = [vec![(ExpertId(1), f32::NAN), (ExpertId(2), 0.5)], vec![(ExpertId(1), 0.25)]];
    let plan = BatchPlan::new(&Routes::from_ragged(&rows, 8).unwrap(), 8).unwrap();
    for mut executor in executors() {
        let out = executor.execute_rows(LayerId(0), &case.input[..256], &plan, None).unwrap();
        assert!(out[..128].iter().all(|value| value.is_nan()));
        assert!(out[128..].iter().all(|value| value.is_finite()));
        still_works(&mut executor, &case);
    }
}

#[cfg(feature = "mlx")]
mod arrays {
    use streamed_experts::mlx_rs::{Array, Dtype};

    use super::*;

    fn refused(
        executor: &mut StreamedExpertExecutor,
        case: &LayerCase,
        input: &Array,
        shared: Option<&Array>,
    ) -> String {
        executor.execute(case.layer, input, &case.plan, shared).unwrap_err().to_string()
    }

    #[test]
    fn arrays_of_another_rank_width_or_dtype_are_refused() {
        let case = first_case();
        let good = Array::from_slice(&case.input, &[1, 5, 128]);
        for mut executor in executors() {
            let flat = Array::from_slice(&case.input, &[5, 128]);
            assert_eq!(
                refused(&mut executor, &case, &flat, None),
                "the input has shape [5, 128], not [batch, tokens, hidden]"
            );
            assert_eq!(
                refused(&mut executor, &case, &good, Some(&flat)),
                "the shared row has shape [5, 128], not [batch, tokens, hidden]"
            );
            let narrow = Array::from_slice(&case.input, &[1, 10, 64]);
            assert_eq!(
                refused(&mut executor, &case, &narrow, None),
                "the input is 64 wide, but the experts of L0 take rows of 128"
            );
            let whole = good.as_dtype(Dtype::Int32).unwrap();
            assert_eq!(
                refused(&mut executor, &case, &whole, None),
                "the input is Int32; experts take f32, f16 or bf16"
            );
            let none = Array::zeros::<f32>(&[1, 0, 128]).unwrap();
            assert_eq!(
                refused(&mut executor, &case, &none, None),
                "the plan routes 5 rows, but the input has 0 of width 128, which the experts of L0 take"
            );
            still_works(&mut executor, &case);
        }
    }
}
