//! The oracle's sums and shapes by hand. If these fail, kernels are held to a wrong formula or an error passes unseen.

use std::io;

use proptest::prelude::*;
use streamed_experts::{
    Activation, BatchPlan, DecodeError, ExpertGeometry, ExpertId, FloatType, GeometryError, Part, Projection,
    ProjectionGeometry, Quantisation, Routes, SlotLayout,
    oracle::{self, Linear, Mlp, OracleError},
};

const SIGNED: Quantisation = Quantisation::Signed { bits: 8, group: None };

/// An expert of width 2 and 2 whose gate, up and down are these integer matrices.
fn slot(geometry: &ExpertGeometry, matrices: [[i8; 4]; 3]) -> Vec<u8> {
    let layout = SlotLayout::new(geometry).unwrap();
    let mut slot = vec![0xA5; usize::try_from(layout.slot_bytes()).unwrap()];
    let mut put = |projection, part, bytes: &[u8]| {
        let first = usize::try_from(layout.range(projection, part).unwrap().start).unwrap();
        slot[first..first + bytes.len()].copy_from_slice(bytes);
    };
    for (projection, matrix) in [Projection::Gate, Projection::Up, Projection::Down].into_iter().zip(matrices)
    {
        put(projection, Part::Weight, &matrix.map(i8::cast_unsigned));
        put(projection, Part::Scales, &[1f32.to_le_bytes(), 1f32.to_le_bytes()].concat());
        if geometry.bias.is_some() {
            let bias: f32 = if projection == Projection::Down { 100.0 } else { 1.0 };
            put(projection, Part::Bias, &[bias.to_le_bytes(), bias.to_le_bytes()].concat());
        }
    }
    slot
}

fn plan(rows: &[&[(u32, f32)]], experts: u32) -> BatchPlan {
    let rows: Vec<Vec<_>> =
        rows.iter().map(|row| row.iter().map(|&(e, w)| (ExpertId(e), w)).collect()).collect();
    BatchPlan::new(&Routes::from_ragged(&rows, experts).unwrap(), experts).unwrap()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[test]
fn gate_is_activated_and_rows_come_before_columns() {
    let geometry = ExpertGeometry::uniform(2, 2, SIGNED);
    let bytes = slot(&geometry, [[1, 2, 3, 4], [5, 6, 7, 8], [1, -1, 2, 0]]);
    let rows =
        oracle::expert_rows(&geometry, &plan(&[&[(0, 0.5)]], 1), &[1f32, -2.0], |_| Ok(&bytes)).unwrap();
    let middle = [silu(-3.0) * -7.0, silu(-5.0) * -9.0];
    assert_eq!(rows, [middle[0] - middle[1], 2.0 * middle[0]]);
}

#[test]
fn biases_come_before_the_activation_and_after_down() {
    let clamped = Activation::ClampedSwiGlu { alpha: 2.0, limit: 7.0 };
    let geometry = ExpertGeometry {
        bias: Some(FloatType::F32),
        activation: clamped,
        ..ExpertGeometry::uniform(2, 2, SIGNED)
    };
    let bytes = slot(&geometry, [[1, 0, 0, 1], [1, 0, 0, 1], [1, 0, 0, 1]]);
    let rows = oracle::expert_rows(&geometry, &plan(&[&[(0, 1.0)]], 1), &[1.0, 2.0], |_| Ok(&bytes)).unwrap();
    assert_eq!(rows, [2f64, 3.0].map(|x| x / (1.0 + (-2.0 * x).exp()) * (x + 1.0) + 100.0));
}

#[test]
fn the_clamp_bounds_gate_above_and_up_on_both_sides() {
    let clamped = Activation::ClampedSwiGlu { alpha: 0.0, limit: 7.0 };
    // With a slope of 0 the sigmoid is one half.
    for ((gate, up), expected) in [
        ((8.0, 9.0), 7.0 / 2.0 * 8.0),
        ((-8.0, -9.0), -8.0 / 2.0 * -6.0),
        ((7.0, 7.0), 7.0 / 2.0 * 8.0),
        ((2.0, -7.0), -6.0),
    ] {
        assert_eq!(oracle::activate(clamped, gate, up), expected);
    }
    for (gate, up) in [(f64::NAN, 1.0), (1.0, f64::NAN)] {
        assert!(oracle::activate(clamped, gate, up).is_nan());
        assert!(oracle::activate(Activation::SwiGlu, gate, up).is_nan());
    }
}

#[test]
fn terms_are_added_in_rank_order_and_the_shared_row_last() {
    // 2^53 + 1 is lost unless the large terms cancel first.
    let large = 2f32.powi(53);
    let plan = plan(&[&[(0, large), (1, -large), (2, 1.0)], &[(2, 1.0), (0, large), (1, -large)]], 3);
    let ones = [1.0; 6];
    assert_eq!(oracle::compose(&plan, 1, &ones, None).unwrap(), [1.0, 0.0]);
    assert_eq!(oracle::compose(&plan, 1, &ones, Some(&[0.5, 0.25])).unwrap(), [1.5, 0.25]);
}

#[test]
fn a_row_without_experts_is_its_shared_row_and_an_error_without_one() {
    let plan = plan(&[&[(0, 2.0)], &[]], 1);
    let shared = [1.0, 2.0, 3.0, 4.0];
    assert_eq!(oracle::compose(&plan, 2, &[10.0, 20.0], Some(&shared)).unwrap(), [21.0, 42.0, 3.0, 4.0]);
    let error = oracle::compose(&plan, 2, &[10.0, 20.0], None).unwrap_err();
    assert!(matches!(error, OracleError::EmptyRow { row: 1 }), "{error}");
}

#[test]
fn a_weight_that_is_not_a_number_spoils_its_own_row_only() {
    let plan = plan(&[&[(0, f32::NAN), (1, 1.0)], &[(0, 1.0), (1, 1.0)]], 2);
    let output = oracle::compose(&plan, 1, &[1.0; 4], None).unwrap();
    assert!(output[0].is_nan());
    assert_eq!(output[1], 2.0);
}

#[test]
fn each_expert_is_read_once_in_the_order_of_the_jobs() {
    let geometry = ExpertGeometry::uniform(2, 2, SIGNED);
    let bytes = slot(&geometry, [[1; 4]; 3]);
    let plan = plan(&[&[(3, 1.0), (1, 1.0)], &[(1, 1.0), (0, 1.0)], &[(3, 1.0)]], 4);
    let mut read = Vec::new();
    oracle::layer(&geometry, &plan, &[0.5f32; 6], None, |expert| {
        read.push(expert.0);
        Ok(&bytes)
    })
    .unwrap();
    assert_eq!(read, [3, 1, 0]);
}

#[test]
fn an_expert_that_cannot_be_read_is_named() {
    let geometry = ExpertGeometry::uniform(2, 2, SIGNED);
    let gone = |_| Err::<Vec<u8>, _>(io::Error::from(io::ErrorKind::NotFound));
    let error = oracle::layer(&geometry, &plan(&[&[(1, 1.0)]], 2), &[0.0; 2], None, gone).unwrap_err();
    assert!(matches!(error, OracleError::Read { expert: ExpertId(1), .. }));
    assert_eq!(error.to_string(), "E1 cannot be read");
}

#[test]
fn bytes_and_inputs_of_another_shape_are_refused() {
    let geometry = ExpertGeometry::uniform(2, 2, SIGNED);
    let plan = plan(&[&[(0, 1.0)]], 1);
    let bytes = slot(&geometry, [[1; 4]; 3]);
    let short = oracle::layer(&geometry, &plan, &[0.0; 2], None, |_| Ok(&bytes[1..])).unwrap_err();
    assert!(matches!(short, OracleError::Geometry(GeometryError::Short { .. })), "{short}");
    for input in [&[0.0; 3][..], &[0.0; 1], &[]] {
        let error = oracle::layer(&geometry, &plan, input, None, |_| Ok(&bytes)).unwrap_err();
        assert!(matches!(error, OracleError::Length { what: "input", needed: 2, .. }), "{error}");
    }
    let error = oracle::layer(&geometry, &plan, &[0.0; 2], Some(&[0.0; 3]), |_| Ok(&bytes)).unwrap_err();
    assert!(matches!(error, OracleError::Length { what: "shared rows", .. }), "{error}");
    let error = oracle::compose(&plan, 2, &[0.0; 3], None).unwrap_err();
    assert!(matches!(error, OracleError::Length { what: "expert rows", .. }), "{error}");
}

#[test]
fn a_linear_layer_multiplies_rows_and_adds_its_bias() {
    let weights: Vec<u8> = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let bias: Vec<u8> = [10f32, 20.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let plain = Linear::plain(2, 3, FloatType::F32, &weights).unwrap();
    assert_eq!((plain.rows(), plain.columns()), (2, 3));
    assert_eq!(plain.forward(&[1.0, 0.0, -1.0, 0.0, 1.0, 0.0]).unwrap(), [-2.0, -2.0, 2.0, 5.0]);
    let biased = plain.with_bias(FloatType::F32, &bias).unwrap();
    assert_eq!(biased.forward(&[1.0, 0.0, -1.0]).unwrap(), [8.0, 18.0]);
    assert!(biased.forward(&[]).unwrap().is_empty());
    assert!(matches!(plain.forward(&[1.0; 4]), Err(OracleError::Length { what: "input", .. })));
}

#[test]
fn tensors_that_do_not_fit_a_linear_layer_are_refused() {
    let bytes = [0; 64];
    let error = Linear::plain(2, 3, FloatType::F32, &bytes[..20]).unwrap_err();
    assert_eq!(error, DecodeError::Length { part: Part::Weight, needed_bytes: 24, given_bytes: 20 });
    let geometry = ProjectionGeometry { rows: 2, columns: 3, quantisation: SIGNED };
    assert!(Linear::quantised(geometry, &bytes[..6], &bytes[..8], &[]).is_ok());
    assert!(Linear::quantised(geometry, &bytes[..6], &bytes[..4], &[]).is_err());
    let error = Linear::plain(u32::MAX, u32::MAX, FloatType::F32, &bytes).unwrap_err();
    assert!(matches!(error, DecodeError::Length { part: Part::Weight, .. }), "{error}");
    let linear = Linear::plain(2, 3, FloatType::F32, &bytes[..24]).unwrap();
    assert!(linear.with_bias(FloatType::F16, &bytes[..6]).is_err());
    assert!(linear.row(1, &mut [0.0; 2]).is_err());
}

#[test]
fn projections_that_do_not_follow_one_another_are_refused() {
    let bytes = [0; 64];
    let linear = |rows, columns: u32| {
        Linear::plain(rows, columns, FloatType::F32, &bytes[..(rows * columns * 4) as usize]).unwrap()
    };
    let mlp = |up, down| Mlp::new(linear(2, 3), up, down, Activation::SwiGlu);
    assert_eq!(mlp(linear(2, 3), linear(3, 2)).unwrap().forward(&[1.0; 6]).unwrap(), [0.0; 6]);
    for (up, down) in
        [(linear(2, 2), linear(3, 2)), (linear(1, 3), linear(3, 2)), (linear(2, 3), linear(2, 3))]
    {
        assert!(matches!(mlp(up, down), Err(OracleError::Length { .. })));
    }
}

proptest! {
    #[test]
    fn every_row_is_the_sum_of_its_terms_whatever_rows_come_with_it(
        rows in proptest::collection::vec(
            proptest::collection::btree_map((0u32..9).prop_map(ExpertId), -4.0f32..4.0, 0..=5),
            1..8,
        ),
        values in proptest::collection::vec(-4.0f64..4.0, 96..=96),
    ) {
        let rows: Vec<Vec<_>> = rows.into_iter().map(|row| row.into_iter().rev().collect()).collect();
        let plan = BatchPlan::new(&Routes::from_ragged(&rows, 9).unwrap(), 9).unwrap();
        let (pair_rows, shared) = (&values[..2 * plan.pairs()], &values[80..80 + 2 * rows.len()]);
        let output = oracle::compose(&plan, 2, pair_rows, Some(shared)).unwrap();
        let mut pair = 0;
        for (index, row) in rows.iter().enumerate() {
            for column in 0..2 {
                let mut sum = 0.0;
                for (rank, &(_, weight)) in row.iter().enumerate() {
                    sum += f64::from(weight) * pair_rows[2 * (pair + rank) + column];
                }
                let expected = sum + shared[2 * index + column];
                prop_assert_eq!(output[2 * index + column].to_bits(), expected.to_bits());
            }
            pair += row.len();
        }
    }
}
