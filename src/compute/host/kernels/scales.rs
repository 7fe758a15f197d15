//! The scales and biases of a few weight rows, spread out the way the kernels read them.

use super::{
    super::{
        dequantise::{e4m3, e8m0},
        lanes::LANES,
        plan::{Coding, Plan},
    },
    Matrix,
};
use crate::formats::{FloatType, Quantisation};

/// Scales of up to [`super::ROWS`] weight rows.
#[derive(Debug, Default)]
pub(crate) struct Scales {
    /// Per segment, which of a row's scales the lower and the upper half of the lanes have. One entry where a row has one scale.
    indices: Vec<[u32; 2]>,
    /// The plan that `indices` belong to.
    plan: Option<Plan>,
    /// Per row, its scales.
    scales: Vec<f32>,
    /// Per row and group, what the group's inputs add beyond the centred weights.
    biases: Vec<f32>,
    /// Scales per row.
    per_row: usize,
    /// Biases per row.
    biases_per_row: usize,
}

impl Scales {
    /// Takes the scales of `rows` weight rows from `first` on.
    pub(super) fn fill(&mut self, plan: &Plan, matrix: &Matrix<'_>, first: usize, rows: usize) {
        if self.plan != Some(*plan) {
            self.prepare(plan);
        }
        self.scales.resize(rows * self.per_row, 1.0);
        self.biases.resize(rows * self.biases_per_row, 0.0);
        if plan.coding == Coding::Values {
            self.scales.fill(1.0);
            return;
        }
        for (row, scales) in self.scales.chunks_exact_mut(self.per_row).enumerate() {
            let bytes = matrix.row(first + row);
            decode(matrix.quantisation, bytes.scales, scales);
            if self.biases_per_row != 0 {
                let biases = &mut self.biases[row * self.biases_per_row..(row + 1) * self.biases_per_row];
                let (biases, padding) = biases.split_at_mut(self.per_row);
                decode(matrix.quantisation, bytes.biases, biases);
                for (bias, scale) in biases.iter_mut().zip(scales) {
                    *bias += plan.coding.zero() * *scale;
                }
                padding.fill(0.0);
            }
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a row has fewer columns than u32::MAX")]
    fn prepare(&mut self, plan: &Plan) {
        self.plan = Some(*plan);
        self.biases_per_row = plan.layout.group_lanes();
        self.indices.clear();
        if plan.group == 0 {
            self.per_row = 1;
            self.indices.resize(plan.layout.segments(), [0; 2]);
            return;
        }
        self.per_row = plan.layout.columns.div_ceil(plan.group);
        for segment in 0..plan.layout.segments() {
            // Lanes beyond the row's end have inputs of zero: any scale does.
            let index = |half| (plan.scale_column(segment, half) / plan.group).min(self.per_row - 1) as u32;
            self.indices.push([index(0), index(1)]);
        }
    }

    /// The scales of the lower and the upper half of the lanes of row `row` (counted from the first one taken) in
    /// segment `segment`.
    #[inline(always)]
    pub(super) fn halves(&self, row: usize, segment: usize) -> [f32; 2] {
        let scales = &self.scales[row * self.per_row..(row + 1) * self.per_row];
        let [low, high] = self.indices[segment];
        [scales[low as usize], scales[high as usize]]
    }

    /// The biases of row `row`, counted from the first one taken.
    #[inline(always)]
    pub(super) fn biases(&self, row: usize) -> &[[f32; LANES]] {
        self.biases[row * self.biases_per_row..(row + 1) * self.biases_per_row].as_chunks().0
    }
}

/// Stored scales (or biases) as f32.
fn decode(quantisation: Quantisation, bytes: &[u8], to: &mut [f32]) {
    match quantisation {
        Quantisation::Mxfp4 | Quantisation::Mxfp8 => each(bytes, to, |[e]| e8m0(e)),
        Quantisation::Nvfp4 => each(bytes, to, |[b]| e4m3(b)),
        Quantisation::Signed { .. } | Quantisation::Affine { scales: FloatType::F32, .. } => {
            each(bytes, to, f32::from_le_bytes);
        }
        Quantisation::Affine { scales: FloatType::Bf16, .. } => {
            each(bytes, to, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16));
        }
        Quantisation::Affine { scales: FloatType::F16, .. } => {
            each(bytes, to, |b| widen_f16(u16::from_le_bytes(b)))
        }
    }
}

#[inline(always)]
fn each<const N: usize>(bytes: &[u8], to: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (to, bytes) in to.iter_mut().zip(bytes.as_chunks().0) {
        *to = value(*bytes);
    }
}

/// An f16 as f32, without a branch: the exponent's offset is made good by a product.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | u32::from(bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (got, want) = (widen_f16(bits), half::f16::from_bits(bits).to_f32());
            assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{bits:#x}");
        }
    }
}
