//! Routes and plans. If these fail, a forward computes an expert twice, forgets a row, or adds in another order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use streamed_experts::{BatchPlan, ExpertId, RouteError, Routes};

fn ragged(rows: &[&[(u32, f32)]], experts: u32) -> Result<Routes, RouteError> {
    let rows: Vec<Vec<_>> =
        rows.iter().map(|row| row.iter().map(|&(e, w)| (ExpertId(e), w)).collect()).collect();
    Routes::from_ragged(&rows, experts)
}

#[test]
fn a_plan_lists_experts_as_first_seen_with_their_rows() {
    let routes = Routes::from_top_k(3, 2, &[5, 1, 1, 7, 5, 0], &[0.5, 0.25, 1.0, 2.0, 3.0, 4.0], 8).unwrap();
    let plan = BatchPlan::new(&routes, 8).unwrap();
    assert_eq!(plan.jobs().iter().map(|job| job.expert.0).collect::<Vec<_>>(), [5, 1, 7, 0]);
    let uses: Vec<_> = plan.uses(&plan.jobs()[1]).iter().map(|u| (u.row, u.rank, u.pair, u.weight)).collect();
    assert_eq!(uses, [(0, 1, 1, 0.25), (1, 0, 2, 1.0)]);
    assert_eq!(plan.pair_jobs(), [0, 1, 1, 2, 0, 3]);
    assert_eq!((plan.rows(), plan.pairs(), plan.unique_experts()), (3, 6, 4));
    assert_eq!(plan.waves(3).map(<[_]>::len).collect::<Vec<_>>(), [3, 1]);
    let second: Vec<_> = plan.row(1).map(|term| (term.pair, term.expert.0, term.weight)).collect();
    assert_eq!(second, [(2, 1, 1.0), (3, 7, 2.0)]);
}

#[test]
fn a_batch_without_tokens_is_refused() {
    assert_eq!(Routes::from_top_k(0, 2, &[], &[], 8), Err(RouteError::ZeroRows));
    assert_eq!(ragged(&[], 8), Err(RouteError::ZeroRows));
}

#[test]
fn an_expert_the_layer_does_not_have_is_named_with_its_row_and_rank() {
    let error = ragged(&[&[(1, 1.0)], &[], &[(0, 1.0), (8, 1.0)]], 8).unwrap_err();
    let expected = RouteError::NoSuchExpert { row: 2, rank: 1, expert: ExpertId(8), experts_in_layer: 8 };
    assert_eq!(error, expected);
    assert_eq!(error.to_string(), "row 2 rank 1 is routed to E8, but the layer has 8 experts");
}

#[test]
fn a_plan_for_a_narrower_layer_names_the_row_and_rank_too() {
    let routes = ragged(&[&[(1, 1.0)], &[], &[(0, 1.0), (7, 1.0)]], 8).unwrap();
    let expected = RouteError::NoSuchExpert { row: 2, rank: 1, expert: ExpertId(7), experts_in_layer: 4 };
    assert_eq!(BatchPlan::new(&routes, 4), Err(expected));
}

#[test]
fn an_expert_twice_in_one_row_is_refused_but_not_across_rows() {
    let error = ragged(&[&[(3, 1.0)], &[(2, 1.0), (3, 1.0), (4, 1.0), (3, 1.0)]], 8).unwrap_err();
    assert_eq!(error, RouteError::DuplicateExpert { row: 1, rank: 3, first_rank: 1, expert: ExpertId(3) });
    assert!(ragged(&[&[(3, 1.0)], &[(3, 1.0)]], 8).is_ok());
}

#[test]
fn arrays_of_another_shape_are_refused() {
    for (experts, weights) in [(&[0, 1, 2][..], &[1.0; 4][..]), (&[0, 1, 2, 3], &[1.0; 3])] {
        let error = Routes::from_top_k(2, 2, experts, weights, 8).unwrap_err();
        assert!(matches!(error, RouteError::Lengths { rows: 2, ranks: 2, .. }), "{error}");
    }
    let error = Routes::from_top_k(usize::MAX, 2, &[], &[], 8).unwrap_err();
    assert!(matches!(error, RouteError::Lengths { .. }), "{error}");
}

#[test]
fn sizes_beyond_any_model_are_refused_before_memory_is_taken() {
    assert!(matches!(ragged(&[&[]], u32::MAX), Err(RouteError::TooManyExperts { .. })));
    let error = Routes::from_top_k(usize::MAX, 0, &[], &[], 8).unwrap_err();
    assert!(matches!(error, RouteError::TooManyPairs { .. }), "{error}");
}

#[test]
fn a_weight_that_is_not_a_number_passes_through() {
    let routes = ragged(&[&[(0, f32::NAN), (1, f32::INFINITY)]], 2).unwrap();
    let plan = BatchPlan::new(&routes, 2).unwrap();
    assert!(plan.all_uses()[0].weight.is_nan());
    assert!(plan.row(0).nth(1).unwrap().weight.is_infinite());
}

#[test]
fn a_batch_in_which_no_row_has_experts_has_no_jobs() {
    let plan = BatchPlan::new(&ragged(&[&[], &[]], 4).unwrap(), 4).unwrap();
    assert_eq!((plan.rows(), plan.pairs(), plan.unique_experts()), (2, 0, 0));
    assert_eq!(plan.waves(3).count(), 0);
    assert!(!plan.row_has_experts(1));
}

/// Rows of 0 to 6 different experts out of 12, in any order.
fn any_rows() -> impl Strategy<Value = Vec<Vec<(ExpertId, f32)>>> {
    let expert = (0u32..12).prop_map(ExpertId);
    let row = proptest::collection::btree_map(expert, -4.0f32..4.0, 0..=6)
        .prop_map(|row| row.into_iter().collect::<Vec<_>>())
        .prop_shuffle();
    proptest::collection::vec(row, 1..20)
}

proptest! {
    #[test]
    fn every_row_and_rank_is_computed_exactly_once(rows in any_rows()) {
        let plan = BatchPlan::new(&Routes::from_ragged(&rows, 12).unwrap(), 12).unwrap();
        let mut seen = BTreeMap::new();
        for job in plan.jobs() {
            prop_assert!(job.rows() > 0);
            for used in plan.uses(job) {
                let place = (used.row as usize, used.rank as usize);
                prop_assert_eq!(rows[place.0][place.1], (job.expert, used.weight));
                prop_assert_eq!(seen.insert(place, used.pair), None);
            }
        }
        // In row-major order, the pair indices count up from 0.
        prop_assert!(seen.values().copied().eq(0..u32::try_from(plan.pairs()).unwrap()));
        prop_assert_eq!(plan.pairs(), rows.iter().map(Vec::len).sum::<usize>());
    }

    #[test]
    fn jobs_are_in_first_seen_order_and_their_uses_ascend(rows in any_rows()) {
        let plan = BatchPlan::new(&Routes::from_ragged(&rows, 12).unwrap(), 12).unwrap();
        let mut met = BTreeSet::new();
        let first_seen: Vec<_> = rows.iter().flatten().map(|&(e, _)| e).filter(|&e| met.insert(e)).collect();
        prop_assert_eq!(plan.jobs().iter().map(|job| job.expert).collect::<Vec<_>>(), first_seen);
        for job in plan.jobs() {
            prop_assert!(plan.uses(job).is_sorted_by(|a, b| a.row < b.row && a.pair < b.pair));
        }
        for (pair, &job) in plan.pair_jobs().iter().enumerate() {
            prop_assert_eq!(plan.jobs()[job as usize].expert, plan.routes().experts()[pair]);
        }
    }

    #[test]
    fn waves_cover_the_jobs_in_order_and_fit(rows in any_rows(), working_slots in 1usize..14) {
        let plan = BatchPlan::new(&Routes::from_ragged(&rows, 12).unwrap(), 12).unwrap();
        let waves: Vec<_> = plan.waves(working_slots).collect();
        prop_assert_eq!(waves.concat(), plan.jobs());
        prop_assert!(waves.iter().all(|wave| !wave.is_empty() && wave.len() <= working_slots));
        prop_assert_eq!(waves.len(), plan.unique_experts().div_ceil(working_slots));
    }

    #[test]
    fn a_rows_terms_are_its_ranks_in_order(rows in any_rows()) {
        let plan = BatchPlan::new(&Routes::from_ragged(&rows, 12).unwrap(), 12).unwrap();
        let mut pair = 0;
        for (index, row) in rows.iter().enumerate() {
            prop_assert_eq!(plan.row_has_experts(index), !row.is_empty());
            prop_assert_eq!(plan.row(index).len(), row.len());
            for (term, &(expert, weight)) in plan.row(index).zip(row) {
                prop_assert_eq!((term.pair, term.expert, term.weight), (pair, expert, weight));
                pair += 1;
            }
        }
    }
}
