//! Routers by hand. If these fail, a model's tokens go to other experts than the model was trained with.

use proptest::prelude::*;
use streamed_experts::{NoAuxTc, RouteError, Router, RouterError, Routes};

fn row(routes: &Routes, row: usize) -> (Vec<u32>, Vec<f32>) {
    routes.row(row).map(|(expert, weight)| (expert.0, weight)).unzip()
}

fn close(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    let fits = got.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs().max(1e-6));
    assert!(fits, "{got:?} {expected:?}");
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The logit whose sigmoid is `score`.
fn logit(score: f32) -> f32 {
    (score / (1.0 - score)).ln()
}

/// One of each kind, for `top_k` of 8 experts.
fn every_kind(top_k: u32) -> [Router; 5] {
    let noaux = NoAuxTc { top_k, correction: vec![0.0; 8], ..NoAuxTc::default() };
    let grouped = NoAuxTc { groups: 4, groups_kept: 2, ..noaux.clone() };
    [
        Router::SoftmaxTopK { top_k, renormalise: true },
        Router::SoftmaxTopK { top_k, renormalise: false },
        Router::TopKSoftmax { top_k },
        Router::NoAuxTc(noaux),
        Router::NoAuxTc(grouped),
    ]
}

#[test]
fn softmax_weights_are_probabilities_of_all_experts() {
    let logits = [1f32, 3.0, 2.0, 6.0].map(f32::ln);
    let routes = Router::SoftmaxTopK { top_k: 2, renormalise: false }.route(&logits, 1).unwrap();
    let (experts, weights) = row(&routes, 0);
    assert_eq!(experts, [3, 1]);
    close(&weights, &[0.5, 0.25]);
}

#[test]
fn renormalised_softmax_equals_softmax_over_the_chosen() {
    let logits = [1f32, 3.0, 2.0, 6.0].map(f32::ln);
    for router in [Router::SoftmaxTopK { top_k: 2, renormalise: true }, Router::TopKSoftmax { top_k: 2 }] {
        let (experts, weights) = row(&router.route(&logits, 1).unwrap(), 0);
        assert_eq!(experts, [3, 1]);
        close(&weights, &[2.0 / 3.0, 1.0 / 3.0]);
    }
}

#[test]
fn large_logits_do_not_overflow() {
    for router in &every_kind(2)[..3] {
        let mut logits = [-1e30f32; 8];
        (logits[2], logits[5]) = (3e38, 3e38);
        let (experts, weights) = row(&router.route(&logits, 1).unwrap(), 0);
        assert_eq!((experts, weights), (vec![2, 5], vec![0.5, 0.5]));
    }
}

#[test]
fn of_equal_scores_the_lower_expert_wins() {
    for router in every_kind(3) {
        let routes = router.route(&[0.5; 16], 2).unwrap();
        assert_eq!(row(&routes, 1).0, [0, 1, 2], "{router:?}");
    }
    // Zeros of either sign are equal.
    let routes = Router::TopKSoftmax { top_k: 1 }.route(&[-0.0, 0.0], 1).unwrap();
    assert_eq!(row(&routes, 0).0, [0]);
}

#[test]
fn a_correction_chooses_but_does_not_weigh() {
    let scores = [0.9f32, 0.8, 0.1, 0.2];
    let options =
        NoAuxTc { top_k: 2, correction: vec![0.0, -1.0, 0.5, 0.0], scale: 2.5, ..NoAuxTc::default() };
    let (experts, weights) = row(&Router::NoAuxTc(options.clone()).route(&scores.map(logit), 1).unwrap(), 0);
    assert_eq!(experts, [0, 2]);
    close(&weights, &[2.5 * 0.9, 2.5 * 0.1]);

    let options = NoAuxTc { renormalise: false, ..options };
    let (_, weights) = row(&Router::NoAuxTc(options).route(&scores.map(logit), 1).unwrap(), 0);
    close(&weights, &[2.5 * 0.9, 2.5 * 0.1]);
}

#[test]
fn chosen_scores_are_divided_by_their_sum() {
    let scores = [0.6f32, 0.2, 0.1, 0.05];
    let options = NoAuxTc { top_k: 3, scale: 2.0, ..NoAuxTc::default() };
    let (experts, weights) = row(&Router::NoAuxTc(options).route(&scores.map(logit), 1).unwrap(), 0);
    assert_eq!(experts, [0, 1, 2]);
    close(&weights, &[2.0 * 0.6 / 0.9, 2.0 * 0.2 / 0.9, 2.0 * 0.1 / 0.9]);
}

#[test]
fn scores_that_are_all_zero_give_zero_weights_not_nan() {
    let options = NoAuxTc { top_k: 2, ..NoAuxTc::default() };
    let (_, weights) = row(&Router::NoAuxTc(options).route(&[-1e4; 4], 1).unwrap(), 0);
    assert_eq!(weights, [0.0, 0.0]);
}

#[test]
fn a_group_is_worth_its_two_best() {
    // The best expert is in group 0, but groups 1 and 2 have the better pairs.
    let scores = [0.9f32, 0.1, 0.1, 0.6, 0.7, 0.1, 0.65, 0.6, 0.2];
    let options = NoAuxTc { top_k: 3, groups: 3, groups_kept: 2, ..NoAuxTc::default() };
    let routes = Router::NoAuxTc(options).route(&scores.map(logit), 1).unwrap();
    assert_eq!(row(&routes, 0).0, [4, 6, 3]);
}

#[test]
fn a_dropped_group_counts_as_zero_so_it_beats_a_negative_score() {
    let scores = [0.5f32, 0.4, 0.3, 0.2];
    let correction = vec![0.0, -0.9, -0.8, -0.8];
    let options = NoAuxTc { top_k: 2, correction, groups: 2, groups_kept: 1, ..NoAuxTc::default() };
    let (experts, weights) = row(&Router::NoAuxTc(options).route(&scores.map(logit), 1).unwrap(), 0);
    // Group 0 is kept; its expert 1 stands at -0.5, the dropped experts 2 and 3 at 0.
    assert_eq!(experts, [0, 2]);
    close(&weights, &[0.5 / 0.8, 0.3 / 0.8]);
}

#[test]
fn groups_of_one_expert_are_worth_that_expert() {
    let options = NoAuxTc { top_k: 2, groups: 4, groups_kept: 2, ..NoAuxTc::default() };
    let routes = Router::NoAuxTc(options).route(&[0.0, 1.0, 3.0, 2.0], 1).unwrap();
    assert_eq!(row(&routes, 0).0, [2, 3]);
}

#[test]
fn nan_ranks_below_every_number() {
    let mut logits = [f32::NEG_INFINITY; 8];
    (logits[0], logits[7]) = (f32::NAN, 1.0);
    for router in every_kind(2) {
        let (experts, _) = row(&router.route(&logits, 1).unwrap(), 0);
        assert!(!experts.contains(&0), "{router:?}: {experts:?}");
    }
    // A sum over all experts is NaN; one over the chosen alone is not.
    let [_, softmax, top_k, ..] = every_kind(2);
    assert!(row(&softmax.route(&logits, 1).unwrap(), 0).1.iter().all(|weight| weight.is_nan()));
    assert_eq!(row(&top_k.route(&logits, 1).unwrap(), 0).1, [1.0, 0.0]);
}

#[test]
fn a_row_of_nan_still_has_a_choice() {
    for router in every_kind(2) {
        let (experts, weights) = row(&router.route(&[f32::NAN; 8], 1).unwrap(), 0);
        assert_eq!(experts, [0, 1], "{router:?}");
        assert!(weights.iter().all(|weight| weight.is_nan()), "{router:?}");
    }
}

#[test]
fn logits_that_are_not_whole_rows_are_refused() {
    let router = Router::TopKSoftmax { top_k: 1 };
    assert_eq!(router.route(&[0.0; 7], 2), Err(RouterError::Logits { logits: 7, rows: 2 }));
    assert_eq!(router.route(&[], 2), Err(RouterError::Logits { logits: 0, rows: 2 }));
    assert_eq!(router.route(&[], 0), Err(RouteError::ZeroRows.into()));
}

#[test]
fn a_choice_of_none_or_of_more_than_there_are_is_refused() {
    for top_k in [0, 9] {
        for router in every_kind(top_k) {
            assert_eq!(router.route(&[0.0; 8], 1), Err(RouterError::TopK { top_k, experts: 8 }));
        }
    }
    for router in every_kind(8) {
        assert_eq!(router.route(&[0.0; 8], 1).unwrap().pairs(), 8);
    }
}

#[test]
fn groups_and_corrections_that_do_not_fit_are_refused() {
    let route = |options: NoAuxTc| Router::NoAuxTc(options).route(&[0.0; 8], 1);
    for (groups, groups_kept) in [(0, 1), (3, 1), (4, 0), (4, 5), (16, 1)] {
        let error = route(NoAuxTc { top_k: 2, groups, groups_kept, ..NoAuxTc::default() });
        assert_eq!(error, Err(RouterError::Groups { groups, groups_kept, experts: 8 }));
    }
    let error = route(NoAuxTc { top_k: 2, correction: vec![0.0; 7], ..NoAuxTc::default() });
    assert_eq!(error, Err(RouterError::Correction { correction: 7, experts: 8 }));
}

#[test]
fn a_layer_wider_than_any_model_is_refused() {
    let error = Router::TopKSoftmax { top_k: 1 }.route(&vec![0.0; 65_537], 1);
    assert!(matches!(error, Err(RouterError::Routes(RouteError::TooManyExperts { .. }))), "{error:?}");
}

proptest! {
    #[test]
    fn every_router_chooses_as_a_full_sort_does(
        logits in proptest::collection::vec(-3i8..3, 16..=16),
        top_k in 1u32..=8,
    ) {
        // Few different values, so that ties are common.
        let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
        for router in &every_kind(top_k)[..4] {
            let routes = router.route(&logits, 2).unwrap();
            for (index, logits) in logits.chunks_exact(8).enumerate() {
                let mut order: Vec<u32> = (0..8).collect();
                order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
                prop_assert_eq!(row(&routes, index).0, &order[..top_k as usize]);
            }
        }
    }

    #[test]
    fn a_rows_routes_do_not_depend_on_the_rows_beside_it(
        logits in proptest::collection::vec(-8.0f32..8.0, 24..=24),
    ) {
        for router in every_kind(3) {
            let together = router.route(&logits, 3).unwrap();
            for (index, logits) in logits.chunks_exact(8).enumerate() {
                prop_assert_eq!(row(&together, index), row(&router.route(logits, 1).unwrap(), 0));
            }
        }
    }

    #[test]
    fn normalised_weights_sum_to_the_scale(logits in proptest::collection::vec(-8.0f32..8.0, 8..=8)) {
        for router in [0, 2, 3, 4].map(|kind| every_kind(3)[kind].clone()) {
            let sum: f32 = row(&router.route(&logits, 1).unwrap(), 0).1.iter().sum();
            prop_assert!((sum - 1.0).abs() < 1e-5, "{:?} {}", router, sum);
        }
        let plain = Router::NoAuxTc(NoAuxTc { top_k: 1, scale: 2.0, ..NoAuxTc::default() });
        let (experts, weights) = row(&plain.route(&logits, 1).unwrap(), 0);
        prop_assert_eq!(weights[0], 2.0 * sigmoid(logits[experts[0] as usize]));
    }
}
