//! Products of a block of weight rows with the input rows of some uses.

mod generic;

use std::ops::Range;

use crate::formats::{ExpertView, FloatType, Part, Projection, Quantisation};

use super::{dequantise::RowBytes, dequantise::float_at, lanes::Lanes, scratch::ThreadScratch};

/// Input widths are padded with zeros to a multiple of this.
pub(super) const BLOCK: usize = 64;

/// A projection's bytes and shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix<'a> {
    quantisation: Quantisation,
    columns: usize,
    weights: &'a [u8],
    scales: &'a [u8],
    biases: &'a [u8],
    bias: Option<(FloatType, &'a [u8])>,
    weight_row_bytes: usize,
    scale_row_bytes: usize,
}

impl<'a> Matrix<'a> {
    /// One projection of an expert whose parts were checked against its geometry.
    pub(super) fn new(expert: &ExpertView<'a>, projection: Projection) -> Self {
        let shape = expert.geometry().projection(projection);
        let [weights, scales, biases, bias] = Part::ALL.map(|part| expert.part(projection, part));
        Self {
            quantisation: shape.quantisation,
            columns: shape.columns as usize,
            weights,
            scales,
            biases,
            bias: expert.geometry().bias.map(|kind| (kind, bias)),
            weight_row_bytes: weights.len() / shape.rows as usize,
            scale_row_bytes: scales.len() / shape.rows as usize,
        }
    }

    /// The bytes of row `row`.
    #[inline]
    fn row(&self, row: usize) -> RowBytes<'a> {
        let scales = row * self.scale_row_bytes..(row + 1) * self.scale_row_bytes;
        RowBytes {
            weights: &self.weights[row * self.weight_row_bytes..(row + 1) * self.weight_row_bytes],
            scales: &self.scales[scales.clone()],
            biases: if self.biases.is_empty() { &[] } else { &self.biases[scales] },
        }
    }

    /// The projection's own bias of row `row`; 0 where the model has none.
    #[inline]
    fn bias(&self, row: usize) -> f32 {
        self.bias.map_or(0.0, |(kind, bytes)| float_at(bytes, kind, row))
    }
}

/// Input rows of one width, packed for the kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs<'a> {
    /// Per use, `padded` values.
    pub(super) values: &'a [f32],
    /// The width of the inputs, rounded up to whole blocks.
    pub(super) padded: usize,
}

/// Writes the products of the weight rows `rows` with every input row to `out`, `[inputs, rows]`.
///
/// # Panics
/// If a row does not exist, or `out` is not `[inputs, rows]`.
pub(super) fn product<L: Lanes>(
    lanes: L,
    matrix: &Matrix<'_>,
    rows: Range<usize>,
    inputs: Inputs<'_>,
    out: &mut [f32],
    scratch: &mut ThreadScratch,
) {
    generic::product(lanes, matrix, rows, inputs, out, scratch);
}
