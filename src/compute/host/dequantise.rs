//! Any row of weights as f32: the slow, general way that every format can take.

use half::{bf16, f16};

use crate::formats::{FloatType, Quantisation};

/// One value out of a slice of floats of `kind`; any alignment.
///
/// # Panics
/// If the slice has no value `index`.
#[inline]
pub(super) fn float_at(bytes: &[u8], kind: FloatType, index: usize) -> f32 {
    match kind {
        FloatType::F32 => f32::from_le_bytes([
            bytes[4 * index],
            bytes[4 * index + 1],
            bytes[4 * index + 2],
            bytes[4 * index + 3],
        ]),
        FloatType::F16 => f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
        FloatType::Bf16 => bf16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
    }
}

/// E2M1 (OCP MX 1.0, table 5): 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
pub(super) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// E8M0 (OCP MX 1.0, section 5.4.1): 2^(e − 127); 255 is NaN.
#[inline]
pub(super) fn e8m0(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(e) << 23),
    }
}

/// E4M3 (OCP FP8, table 1): bias 7, no infinities, S.1111.111 is NaN.
#[inline]
pub(super) fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (bits >> 3 & 15, bits & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => f32::from(mantissa) * (1.0 / 512.0),
        _ => f32::from_bits((u32::from(exponent) + 120) << 23 | u32::from(mantissa) << 20),
    };
    if bits & 128 == 0 { magnitude } else { -magnitude }
}

/// The bytes of one row of weights and of its scales and biases.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowBytes<'a> {
    pub(super) weights: &'a [u8],
    pub(super) scales: &'a [u8],
    pub(super) biases: &'a [u8],
}

/// Writes the weights from column `first` on, of a row of `columns`, to `out`.
///
/// # Panics
/// If the bytes are fewer than the format's row takes.
pub(super) fn dequantise_columns(
    quantisation: Quantisation,
    row: RowBytes<'_>,
    columns: usize,
    first: usize,
    out: &mut [f32],
) {
    let RowBytes { weights, scales, biases } = row;
    let each = (first..).zip(out);
    match quantisation {
        Quantisation::Affine { bits, group, scales: kind } => {
            for (i, value) in each {
                let (scale, bias) =
                    (float_at(scales, kind, i / group as usize), float_at(biases, kind, i / group as usize));
                *value = unsigned_at(weights, bits as usize, i) as f32 * scale + bias;
            }
        }
        Quantisation::Mxfp4 => {
            for (i, value) in each {
                *value = E2M1[usize::from(nibble_at(weights, i))] * e8m0(scales[i / 32]);
            }
        }
        Quantisation::Nvfp4 => {
            for (i, value) in each {
                *value = E2M1[usize::from(nibble_at(weights, i))] * e4m3(scales[i / 16]);
            }
        }
        Quantisation::Mxfp8 => {
            for (i, value) in each {
                *value = e4m3(weights[i]) * e8m0(scales[i / 32]);
            }
        }
        Quantisation::Signed { bits, group } => {
            let group = group.map_or(columns, |g| g as usize);
            for (i, value) in each {
                let scale = float_at(scales, FloatType::F32, i / group);
                let q = if bits == 8 {
                    i32::from(weights[i].cast_signed())
                } else {
                    i32::from(nibble_at(weights, i)) - 8
                };
                *value = q as f32 * scale;
            }
        }
    }
}

/// Value `index` of a stream of 4-bit values, low nibble first.
#[inline]
fn nibble_at(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 2] >> (4 * (index % 2)) & 15
}

/// Value `index` of a stream of `bits`-bit values (at most 8), packed from the lowest bit up.
#[inline]
fn unsigned_at(bytes: &[u8], bits: usize, index: usize) -> u32 {
    let bit = index * bits;
    let low = u32::from(bytes[bit / 8]);
    let high = bytes.get(bit / 8 + 1).map_or(0, |&b| u32::from(b));
    (low | high << 8) >> (bit % 8) & ((1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_has_its_published_values() {
        assert_eq!(
            [e4m3(0x00), e4m3(0x01), e4m3(0x08), e4m3(0x38), e4m3(0x7e)],
            [0.0, 1.0 / 512.0, 1.0 / 64.0, 1.0, 448.0]
        );
        assert_eq!(e4m3(0xb8), -1.0);
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }

    #[test]
    fn e8m0_is_a_power_of_two() {
        assert_eq!([e8m0(1), e8m0(127), e8m0(128), e8m0(254)], [2f32.powi(-126), 1.0, 2.0, 2f32.powi(127)]);
        assert_eq!(e8m0(0), 2f32.powi(-126) / 2.0);
        assert!(e8m0(255).is_nan());
    }

    #[test]
    fn values_that_cross_bytes_come_out_whole() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let values: Vec<u32> = (0..32).map(|i| (i * 7 + 3) & ((1 << bits) - 1)).collect();
            let mut bytes = vec![0u8; 4 * bits];
            for (i, v) in values.iter().enumerate() {
                for b in 0..bits {
                    bytes[(i * bits + b) / 8] |= ((v >> b & 1) as u8) << ((i * bits + b) % 8);
                }
            }
            let read: Vec<u32> = (0..32).map(|i| unsigned_at(&bytes, bits, i)).collect();
            assert_eq!(read, values, "{bits} bits");
        }
    }
}
