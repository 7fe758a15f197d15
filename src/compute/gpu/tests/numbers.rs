//! What the kernels compute, against f64, and which bits it has.

use super::bench::{BF16, Bench, F16, F32, Run, Size, decode, relative_error};
use crate::formats::{Activation, ExpertGeometry, FloatType, Quantisation};

const fn signed(bits: u32, group: Option<u32>) -> Quantisation {
    Quantisation::Signed { bits, group }
}

const fn affine(bits: u32, group: u32, scales: FloatType) -> Quantisation {
    Quantisation::Affine { bits, group, scales }
}

fn tolerance(kind: FloatType, geometry: &ExpertGeometry) -> f64 {
    match kind {
        FloatType::F32 => 1e-6 * f64::from(geometry.hidden.max(geometry.intermediate)).sqrt(),
        FloatType::F16 => 2e-3,
        FloatType::Bf16 => 1e-2,
    }
}

/// Both forms of the layer, within tolerance of f64 and with the same bits.
fn check(geometry: ExpertGeometry, kind: FloatType, size: Size) {
    let bench = Bench::new(geometry, kind, size);
    let run = Run::fast(size.seed);
    let fused = bench.fused(&run);
    let jobs = bench.plan.jobs().len();
    let split = bench.split(&run, 1, size.seed as usize % (jobs + 1));
    assert_eq!(fused, split, "{geometry:?}: hits and misses apart have other bits than together");
    let error = relative_error(&decode(kind, &fused), &bench.oracle());
    assert!(error <= tolerance(kind, &geometry), "{geometry:?} {kind:?} {size:?}: relative error {error:e}");
    assert!(error > 0.0, "{geometry:?}: exact in f64 is too good to be true");
}

fn check_seeds(geometry: ExpertGeometry, kinds: &[FloatType]) {
    for &kind in kinds {
        for seed in 1..=4 {
            let size = Size { rows: 1 + seed as usize % 3, ranks: 3, experts: 5, shared: true, seed };
            check(geometry, kind, size);
        }
    }
}

#[test]
fn signed_rows_and_groups_match_f64() {
    check_seeds(ExpertGeometry::uniform(528, 80, signed(4, None)), &[F32, BF16, F16]);
    check_seeds(ExpertGeometry::uniform(80, 1040, signed(8, None)), &[F32, BF16, F16]);
    check_seeds(ExpertGeometry::uniform(208, 80, signed(4, Some(48))), &[F32]);
    check_seeds(ExpertGeometry::uniform(64, 576, signed(4, Some(64))), &[BF16]);
}

#[test]
fn affine_groups_match_f64() {
    check_seeds(ExpertGeometry::uniform(544, 96, affine(4, 32, F32)), &[F32]);
    check_seeds(ExpertGeometry::uniform(64, 576, affine(4, 64, BF16)), &[F32, BF16]);
    check_seeds(ExpertGeometry::uniform(128, 640, affine(4, 128, F16)), &[F16]);
    check_seeds(ExpertGeometry::uniform(96, 32, affine(8, 32, BF16)), &[BF16]);
    check_seeds(ExpertGeometry::uniform(640, 64, affine(8, 64, F16)), &[F16]);
    check_seeds(ExpertGeometry::uniform(128, 128, affine(8, 128, F32)), &[F32]);
}

#[test]
fn projections_may_differ_in_storage() {
    let quantisation = [affine(8, 32, F16), affine(4, 64, BF16), affine(4, 64, BF16)];
    check_seeds(
        ExpertGeometry { quantisation, ..ExpertGeometry::uniform(128, 96, affine(4, 32, F32)) },
        &[F32],
    );
}

#[test]
fn clamped_swiglu_with_biases_matches_f64() {
    let geometry = ExpertGeometry {
        bias: Some(BF16),
        activation: Activation::ClampedSwiGlu { alpha: 1.702, limit: 1.0 },
        ..ExpertGeometry::uniform(96, 160, affine(4, 32, BF16))
    };
    check_seeds(geometry, &[F32, BF16]);
}

#[test]
fn glm_5_2_and_qwen3_sized_experts_match_f64() {
    let size = Size { rows: 1, ranks: 2, experts: 2, shared: true, seed: 3 };
    check(ExpertGeometry::uniform(6144, 2048, signed(4, None)), BF16, size);
    check(ExpertGeometry::uniform(6144, 2048, signed(8, None)), F32, size);
    check(
        ExpertGeometry::uniform(2048, 768, affine(4, 64, BF16)),
        BF16,
        Size { ranks: 8, experts: 9, ..size },
    );
}

#[test]
fn a_rows_bits_do_not_depend_on_the_rows_beside_it() {
    for (quantisation, kind) in [(signed(4, None), F32), (affine(4, 32, BF16), BF16)] {
        let geometry = ExpertGeometry::uniform(544, 96, quantisation);
        for (rows, per_tile) in [(2, 1), (5, 2), (32, 4)] {
            let bench = Bench::new(
                geometry,
                kind,
                Size { rows, ranks: 3, experts: 6, shared: true, seed: rows as u64 },
            );
            let together = bench.split(&Run::fast(9), per_tile, 2);
            let alone = (0..rows).flat_map(|row| bench.one_row(row).fused(&Run::fast(4)));
            assert_eq!(
                together,
                alone.collect::<Vec<_>>(),
                "{quantisation:?}, {rows} rows, tiles of {per_tile}"
            );
        }
    }
}

#[test]
fn rows_are_added_in_rank_order_with_one_rounding_each() {
    let geometry = ExpertGeometry::uniform(528, 80, signed(4, None));
    let bench = Bench::new(geometry, F32, Size { rows: 4, ranks: 5, experts: 7, shared: true, seed: 11 });
    let run = Run::fast(2);
    let hidden = geometry.hidden as usize;
    let mut tiles = bench.all_tiles(2);
    let inner = bench.gate_up(&run, &tiles, 2);
    let weighted = decode(F32, &bench.down(&run, &tiles, 2, &inner));
    let weights = std::mem::replace(&mut tiles.weights, vec![1.0; tiles.rows.len()]);
    let plain = decode(F32, &bench.down(&run, &tiles, 2, &inner));
    for (index, (weighted, plain)) in weighted.iter().zip(&plain).enumerate() {
        assert_eq!(weighted.to_bits(), (weights[index / hidden] * plain).to_bits(), "element {index}");
    }
    let mut expected = Vec::new();
    for row in 0..bench.plan.rows() {
        for column in 0..hidden {
            let terms = bench.plan.row(row).map(|term| {
                let position = tiles.pairs.iter().position(|&pair| pair == term.pair).unwrap();
                term.weight * plain[position * hidden + column]
            });
            let sum = terms.reduce(|sum, term| sum + term).unwrap();
            expected.push(sum + bench.shared.as_ref().unwrap()[row * hidden + column]);
        }
    }
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&decode(F32, &bench.fused(&run))), bits(&expected));
}

#[test]
fn a_row_without_experts_is_its_shared_row() {
    let geometry = ExpertGeometry::uniform(64, 32, signed(4, None));
    let mut bench = Bench::new(geometry, BF16, Size { rows: 3, ranks: 2, experts: 3, shared: true, seed: 5 });
    let terms = |row: usize| bench.plan.row(row).map(|term| (term.expert, term.weight)).collect::<Vec<_>>();
    let routes = crate::routing::Routes::from_ragged(&[terms(0), Vec::new(), terms(2)], 3).unwrap();
    bench.plan = crate::routing::BatchPlan::new(&routes, 3).unwrap();
    let (fused, split) = (bench.fused(&Run::fast(1)), bench.split(&Run::fast(1), 1, 1));
    assert_eq!(fused, split);
    assert_eq!(decode(BF16, &fused)[64..128], bench.shared.as_ref().unwrap()[64..128]);
}
