//! The path that takes every format: one weight row at a time as f32, then its product with each input row.
//!
//! Slow, for unpacking goes value by value. The order of additions: four sums of eight lanes each, over columns
//! 32 i + 8 j + lane; then (0+1)+(2+3), then the lanes.

use std::ops::Range;

use super::{
    super::{dequantise::dequantise_row, lanes::Lanes, scratch::ThreadScratch},
    Inputs, Matrix,
};

pub(super) fn product<L: Lanes>(
    lanes: L,
    matrix: &Matrix<'_>,
    rows: Range<usize>,
    inputs: Inputs<'_>,
    out: &mut [f32],
    scratch: &mut ThreadScratch,
) {
    let row_count = rows.len();
    assert_eq!(out.len() * inputs.padded, inputs.values.len() * row_count, "out is [inputs, rows]");
    let unpacked = &mut scratch.panel;
    unpacked.clear();
    unpacked.resize(inputs.padded, 0.0);
    for (i, row) in rows.enumerate() {
        dequantise_row(matrix.quantisation, matrix.row(row), matrix.columns, unpacked);
        let bias = matrix.bias(row);
        lanes.run(|| {
            for (use_, x) in inputs.values.chunks_exact(inputs.padded).enumerate() {
                out[use_ * row_count + i] = dot(lanes, unpacked, x) + bias;
            }
        });
    }
}

#[inline(always)]
fn dot<L: Lanes>(lanes: L, a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [lanes.splat(0.0); 4];
    for (a, b) in a.as_chunks::<32>().0.iter().zip(b.as_chunks::<32>().0) {
        for ((sum, a), b) in sums.iter_mut().zip(a.as_chunks::<8>().0).zip(b.as_chunks::<8>().0) {
            *sum = lanes.mul_add(lanes.load(a), lanes.load(b), *sum);
        }
    }
    lanes.sum(lanes.add(lanes.add(sums[0], sums[1]), lanes.add(sums[2], sums[3])))
}
