//! The scales and biases of a few weight rows, spread out the way the kernels read them.

use super::{
    super::{
        dequantise::{e4m3, e8m0},
        lanes::LANES,
        plan::Plan,
    },
    Matrix,
};
use crate::formats::{FloatType, Quantisation};

/// Scales of up to [`super::ROWS`] weight rows.
#[derive(Debug, Default)]
pub(crate) struct Scales {
    /// Per row and segment, the scale of each lane. One vector per row where the row has one scale.
    lanes: Vec<[f32; LANES]>,
    /// Vectors per row.
    per_row: usize,
    /// Per row and group, what the group's inputs add beyond the centred weights.
    biases: Vec<f32>,
    /// Biases per row.
    biases_per_row: usize,
    /// A row's scales and biases as f32.
    row: [Vec<f32>; 2],
}

impl Scales {
    /// Takes the scales of `rows` weight rows from `first` on.
    pub(super) fn fill(&mut self, plan: &Plan, matrix: &Matrix<'_>, first: usize, rows: usize) {
        self.per_row = if plan.group == 0 { 1 } else { plan.layout.segments() };
        self.biases_per_row = plan.layout.group_lanes();
        self.lanes.clear();
        self.biases.clear();
        for row in first..first + rows {
            let bytes = matrix.row(row);
            let [scales, biases] = &mut self.row;
            match plan.coding {
                super::Coding::Values => {
                    self.lanes.push([1.0; LANES]);
                    continue;
                }
                _ => decode(matrix.quantisation, bytes.scales, scales),
            }
            if plan.group == 0 {
                self.lanes.push([scales[0]; LANES]);
                continue;
            }
            for segment in 0..self.per_row {
                let scale =
                    |half| scales[(plan.scale_column(segment, half) / plan.group).min(scales.len() - 1)];
                let [low, high] = [scale(0), scale(1)];
                self.lanes.push([low, low, low, low, high, high, high, high]);
            }
            if plan.layout.bias_group != 0 {
                decode(matrix.quantisation, bytes.biases, biases);
                let zero = plan.coding.zero();
                let groups = scales.iter().zip(&*biases).map(|(scale, bias)| zero * scale + bias);
                let padding = self.biases_per_row - scales.len();
                self.biases.extend(groups.chain(std::iter::repeat_n(0.0, padding)));
            }
        }
    }

    /// The scale of each lane of row `row` (counted from the first one taken) in segment `segment`.
    #[inline(always)]
    pub(super) fn lanes(&self, row: usize, segment: usize) -> &[f32; LANES] {
        &self.lanes[row * self.per_row + if self.per_row == 1 { 0 } else { segment }]
    }

    /// The biases of row `row`, counted from the first one taken.
    #[inline(always)]
    pub(super) fn biases(&self, row: usize) -> &[[f32; LANES]] {
        self.biases[row * self.biases_per_row..(row + 1) * self.biases_per_row].as_chunks().0
    }
}

/// Stored scales (or biases) as f32.
fn decode(quantisation: Quantisation, bytes: &[u8], to: &mut Vec<f32>) {
    to.clear();
    match quantisation {
        Quantisation::Mxfp4 | Quantisation::Mxfp8 => to.extend(bytes.iter().map(|&e| e8m0(e))),
        Quantisation::Nvfp4 => to.extend(bytes.iter().map(|&b| e4m3(b))),
        Quantisation::Signed { .. } => to.extend(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
        Quantisation::Affine { scales, .. } => match scales {
            FloatType::F32 => to.extend(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
            FloatType::Bf16 => {
                to.extend(
                    bytes
                        .as_chunks()
                        .0
                        .iter()
                        .map(|&b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
                );
            }
            FloatType::F16 => {
                to.extend(bytes.as_chunks().0.iter().map(|&b| widen_f16(u16::from_le_bytes(b))))
            }
        },
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
