//! The oracle and the routers on real files. If these fail, every kernel is checked against a wrong reference.

use streamed_experts::{BatchPlan, Routes, oracle};

#[path = "common/fixture.rs"]
mod fixture;
use fixture::Fixture;

/// ‖got − expected‖ / ‖expected‖.
fn relative_error(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

/// Computes the layer along `routes` and compares expert rows and output with the answers of those names.
fn check(fixture: &Fixture, layer: u32, routes: &Routes, names: [&str; 3], limit: f64) {
    let [input, rows, output] = names.map(|name| fixture.answer(layer, name).f64s());
    let plan = BatchPlan::new(routes, fixture.experts()).unwrap();
    let geometry = fixture.geometry(layer);
    let got_rows =
        oracle::expert_rows(&geometry, &plan, &input, |expert| Ok(fixture.slot(layer, expert.0))).unwrap();
    let shared = fixture.shared(layer);
    let got = oracle::compose(&plan, geometry.hidden as usize, &got_rows, shared.as_deref()).unwrap();
    let whole =
        oracle::layer(
            &geometry,
            &plan,
            &input,
            shared.as_deref(),
            |expert| Ok(fixture.slot(layer, expert.0)),
        );
    assert_eq!(whole.unwrap(), got);
    for (what, error) in
        [(names[1], relative_error(&got_rows, &rows)), (names[2], relative_error(&got, &output))]
    {
        println!("{} L{layer} {what}: {error:.1e}", fixture.name);
        assert!(error <= limit, "{} L{layer} {what}: {error:.1e}", fixture.name);
    }
}

#[test]
fn routers_choose_the_experts_that_mlx_lm_chose() {
    for name in fixture::names("oracle.safetensors") {
        let fixture = Fixture::open(&name);
        let ranks = fixture.integer("num_experts_per_tok") as usize;
        for layer in fixture.layers() {
            let indices = fixture.answer(layer, "indices").ids();
            let routes = fixture.router(layer).route(&fixture.logits(layer), indices.len() / ranks).unwrap();
            assert_eq!(routes.experts_in_layer(), fixture.experts());
            for (row, stored) in indices.chunks_exact(ranks).enumerate() {
                let mut expected = stored.to_vec();
                let mut chosen: Vec<u32> = routes.row(row).map(|(expert, _)| expert.0).collect();
                expected.sort_unstable();
                chosen.sort_unstable();
                assert_eq!(chosen, expected, "{name} L{layer} row {row}");
            }
        }
    }
}

#[test]
fn checkpoints_give_mlx_lms_answers() {
    let names = fixture::names("oracle.safetensors");
    assert_eq!(names.len(), 26);
    for name in names {
        let fixture = Fixture::open(&name);
        let ranks = fixture.integer("num_experts_per_tok") as usize;
        let layers = fixture.layers();
        assert!(!layers.is_empty());
        for layer in layers {
            // The answers are in the stored order of choice, which is not best first.
            let indices = fixture.answer(layer, "indices").ids();
            let rows = indices.len() / ranks;
            let routed = fixture.router(layer).route(&fixture.logits(layer), rows).unwrap();
            let weight = |pair: usize| {
                let mut row = routed.row(pair / ranks);
                row.find(|(expert, _)| expert.0 == indices[pair]).expect("the same choice").1
            };
            let weights: Vec<f32> = (0..indices.len()).map(weight).collect();
            let routes = Routes::from_top_k(rows, ranks, &indices, &weights, fixture.experts()).unwrap();
            check(&fixture, layer, &routes, ["input", "switch", "output"], 1e-6);
        }
    }
}

#[test]
fn colibri_containers_give_their_answers() {
    let names = fixture::names("answers.safetensors");
    assert_eq!(names.len(), 8);
    for name in names {
        let fixture = Fixture::open(&name);
        let layers = fixture.layers();
        assert!(!layers.is_empty());
        for layer in layers {
            let indices = fixture.answer(layer, "indices");
            let (rows, ranks) = (indices.shape[0], indices.shape[1]);
            let weights = fixture.answer(layer, "weights").f32s();
            let routes =
                Routes::from_top_k(rows, ranks, &indices.ids(), &weights, fixture.experts()).unwrap();
            // These answers are float64 on the stored bytes: nothing but the order of sums may differ.
            check(&fixture, layer, &routes, ["x", "expert", "out"], 1e-14);
        }
    }
}
