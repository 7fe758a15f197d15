//! From stored bytes to numbers, in f64 and without regard to alignment: the definition that every kernel is checked
//! against.
//!
//! Sources: E2M1, E8M0 and the MX blocks are from the OCP Microscaling Formats (MX) Specification 1.0; E4M3 from the OCP
//! 8-bit Floating Point Specification (OFP8) 1.0. Affine packing, and NVFP4 with one scale per 16 columns and no scale
//! of the whole tensor, are as MLX stores them.

use half::{bf16, f16};

use super::{
    geometry::{GeometryError, Part},
    quantisation::{FloatType, Quantisation},
};

/// The 16 values of E2M1 (MXFP4, NVFP4), by code.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The value of an E4M3 code: 1 sign, 4 exponent (bias 7) and 3 mantissa bits; no infinities, 0x7F and 0xFF are NaN.
fn e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa / 8.0 * 2.0f64.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2.0f64.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The value of an E8M0 scale: 2^(code − 127); 0xFF is NaN.
fn e8m0(code: u8) -> f64 {
    if code == u8::MAX { f64::NAN } else { 2.0f64.powi(i32::from(code) - 127) }
}

/// Widens stored floating-point values to f64, exactly.
///
/// # Errors
/// [`DecodeError::Floats`] if `bytes` are not exactly one value of type `kind` for each of `out`.
pub fn decode_floats(kind: FloatType, bytes: &[u8], out: &mut [f64]) -> Result<(), DecodeError> {
    let (needed_bytes, given_bytes) = (out.len() as u64 * kind.bytes(), bytes.len() as u64);
    if needed_bytes != given_bytes {
        return Err(DecodeError::Floats { needed_bytes, given_bytes });
    }
    for (index, value) in out.iter_mut().enumerate() {
        *value = float(kind, bytes, index);
    }
    Ok(())
}

/// Dequantises one row of `out.len()` weights into f64.
///
/// `weights`, `scales` and `biases` are the row's own bytes, at any alignment; `biases` are the quantisation's (affine)
/// and empty for the other formats. Stored values are widened exactly, and each product and sum is rounded once, in f64.
///
/// # Errors
/// A row that the format cannot store, or bytes of another length than the row has.
pub fn dequantise_row(
    quantisation: Quantisation,
    weights: &[u8],
    scales: &[u8],
    biases: &[u8],
    out: &mut [f64],
) -> Result<(), DecodeError> {
    let columns = u32::try_from(out.len()).map_err(|_| DecodeError::TooWide { columns: out.len() })?;
    let scales_bytes = quantisation.scales_per_row(columns)? * quantisation.scale_bytes();
    check_length(Part::Weight, quantisation.weight_row_bytes(columns)?, weights)?;
    check_length(Part::Scales, scales_bytes, scales)?;
    check_length(Part::Biases, if quantisation.has_biases() { scales_bytes } else { 0 }, biases)?;
    match quantisation {
        Quantisation::Affine { bits, group, scales: kind } => {
            for (index, group) in groups(out, group) {
                let (scale, bias) = (float(kind, scales, index), float(kind, biases, index));
                for (column, value) in group {
                    *value = f64::from(code(weights, bits, column)) * scale + bias;
                }
            }
        }
        Quantisation::Mxfp4 => scaled(out, 32, |index| e8m0(scales[index]), |column| e2m1(weights, column)),
        Quantisation::Nvfp4 => scaled(out, 16, |index| e4m3(scales[index]), |column| e2m1(weights, column)),
        Quantisation::Mxfp8 => scaled(out, 32, |index| e8m0(scales[index]), |column| e4m3(weights[column])),
        Quantisation::Signed { bits, group } => {
            let scale = |index| float(FloatType::F32, scales, index);
            let group = group.unwrap_or(columns.max(1));
            if bits == 4 {
                scaled(out, group, scale, |column| f64::from(code(weights, 4, column)) - 8.0);
            } else {
                scaled(out, group, scale, |column| f64::from(weights[column].cast_signed()));
            }
        }
    }
    Ok(())
}

/// Writes value × scale of its group to every column.
fn scaled(out: &mut [f64], group: u32, scale: impl Fn(usize) -> f64, value: impl Fn(usize) -> f64) {
    for (index, group) in groups(out, group) {
        let scale = scale(index);
        for (column, out) in group {
            *out = value(column) * scale;
        }
    }
}

/// The groups of a row, each with its columns. The last group may be short.
fn groups(
    out: &mut [f64],
    group: u32,
) -> impl Iterator<Item = (usize, impl Iterator<Item = (usize, &mut f64)>)> {
    let group = group as usize;
    out.chunks_mut(group)
        .enumerate()
        .map(move |(index, values)| (index, (index * group..).zip(values.iter_mut())))
}

/// Code `column` of a row packed as one little-endian bit stream, lowest bits first. `bits` is at most 8.
fn code(weights: &[u8], bits: u32, column: usize) -> u32 {
    let first_bit = column * bits as usize;
    let (byte, shift) = (first_bit / 8, first_bit % 8);
    let high = weights.get(byte + 1).copied().unwrap_or(0);
    u32::from(u16::from_le_bytes([weights[byte], high])) >> shift & ((1 << bits) - 1)
}

fn e2m1(weights: &[u8], column: usize) -> f64 {
    f64::from(E2M1[code(weights, 4, column) as usize])
}

/// Stored value `index` of `bytes`.
fn float(kind: FloatType, bytes: &[u8], index: usize) -> f64 {
    match kind {
        FloatType::F32 => f64::from(f32::from_le_bytes(array(bytes, index))),
        FloatType::F16 => f64::from(f16::from_le_bytes(array(bytes, index))),
        FloatType::Bf16 => f64::from(bf16::from_le_bytes(array(bytes, index))),
    }
}

fn array<const N: usize>(bytes: &[u8], index: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[index * N..(index + 1) * N]);
    value
}

/// Refuses an array that has not exactly the bytes of its shape.
pub(crate) fn check_length(part: Part, needed_bytes: u64, bytes: &[u8]) -> Result<(), DecodeError> {
    let given_bytes = bytes.len() as u64;
    if given_bytes == needed_bytes {
        Ok(())
    } else {
        Err(DecodeError::Length { part, needed_bytes, given_bytes })
    }
}

/// Bytes that are not the weights they are said to be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A row that its format cannot store.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// More or fewer bytes than the shape has.
    #[error("{part:?} takes {needed_bytes} B in this shape, but {given_bytes} B were given")]
    Length {
        /// Which array.
        part: Part,
        /// Bytes that the shape takes.
        needed_bytes: u64,
        /// Bytes given.
        given_bytes: u64,
    },
    /// More or fewer bytes than there are numbers to widen.
    #[error("the numbers take {needed_bytes} B, but {given_bytes} B were given")]
    Floats {
        /// Bytes that the numbers take.
        needed_bytes: u64,
        /// Bytes given.
        given_bytes: u64,
    },
    /// A row wider than any model's.
    #[error("a row of {columns} weights is wider than 2^32 - 1")]
    TooWide {
        /// Weights asked for.
        columns: usize,
    },
}
