//! How a matrix of weights is stored: one enum for every format, and the bytes a row of it takes.

use super::geometry::GeometryError;

/// A floating-point type of stored scales or of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of binary32.
    Bf16,
}

impl FloatType {
    /// Bytes of one value.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// How the weights of one projection are stored.
///
/// Rows are output features; each row is packed on its own. `columns` below is the input width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Quantisation {
    /// MLX affine: value = q × scale + bias, with one scale and one bias per group of columns.
    ///
    /// q are unsigned `bits`-bit integers packed little-endian from the lowest bit up into u32 words (3, 5 and 6 bits
    /// cross word borders). Scales and biases are `[rows, columns / group]`.
    Affine {
        /// Bits per weight: 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Columns per scale: 32, 64 or 128.
        group: u32,
        /// Type of scales and biases.
        scales: FloatType,
    },
    /// OCP MXFP4: E2M1 values, two in a byte, low nibble first; one E8M0 scale (u8) per 32 columns.
    Mxfp4,
    /// NVFP4 as MLX stores it: E2M1 values; one E4M3 scale (u8) per 16 columns.
    Nvfp4,
    /// OCP MXFP8: E4M3 values, one in a byte; one E8M0 scale (u8) per 32 columns.
    Mxfp8,
    /// Colibri: signed integers × scale, scales in f32.
    ///
    /// 4 bits: two in a byte, low nibble = even column, value = nibble − 8; a row takes ceil(columns / 2) bytes.
    /// 8 bits: two's complement.
    Signed {
        /// Bits per weight: 4 or 8.
        bits: u32,
        /// Columns per scale (the last group of a row may be short); `None`: one scale per row. 8 bits: always `None`.
        group: Option<u32>,
    },
}

impl Quantisation {
    /// Bytes that one row of `columns` packed weights takes.
    ///
    /// # Errors
    /// A bit width that the format does not have, or a row that does not fill whole words (affine and the MX formats
    /// pack into u32).
    pub fn weight_row_bytes(self, columns: u32) -> Result<u64, GeometryError> {
        let bits = u64::from(columns) * u64::from(self.bits());
        match self {
            Self::Affine { bits: width, .. } if !matches!(width, 2 | 3 | 4 | 5 | 6 | 8) => {
                Err(GeometryError::Bits { quantisation: self })
            }
            Self::Signed { bits: 4, .. } | Self::Signed { bits: 8, group: None } => Ok(bits.div_ceil(8)),
            Self::Signed { .. } => Err(GeometryError::Bits { quantisation: self }),
            _ if columns == 0 || !bits.is_multiple_of(32) => {
                Err(GeometryError::PartialWord { columns, bits: self.bits() })
            }
            _ => Ok(bits / 8),
        }
    }

    /// Number of scales of one row of `columns` weights.
    ///
    /// # Errors
    /// A group size that is not one of the format's, or (all but Colibri's) does not divide the row.
    pub fn scales_per_row(self, columns: u32) -> Result<u64, GeometryError> {
        let group = match self {
            Self::Signed { group: None, .. } => return Ok(1),
            Self::Signed { group: Some(0), .. } => return Err(GeometryError::Group { columns, group: 0 }),
            Self::Signed { group: Some(group), .. } => return Ok(u64::from(columns.div_ceil(group))),
            Self::Affine { group, .. } if !matches!(group, 32 | 64 | 128) => {
                return Err(GeometryError::Group { columns, group });
            }
            Self::Affine { group, .. } => group,
            Self::Mxfp4 | Self::Mxfp8 => 32,
            Self::Nvfp4 => 16,
        };
        if columns == 0 || !columns.is_multiple_of(group) {
            return Err(GeometryError::Group { columns, group });
        }
        Ok(u64::from(columns / group))
    }

    /// Bytes of one stored scale.
    #[must_use]
    pub const fn scale_bytes(self) -> u64 {
        match self {
            Self::Affine { scales, .. } => scales.bytes(),
            Self::Mxfp4 | Self::Nvfp4 | Self::Mxfp8 => 1,
            Self::Signed { .. } => 4,
        }
    }

    /// Whether each scale comes with a bias of the same type (affine only).
    #[must_use]
    pub const fn has_biases(self) -> bool {
        matches!(self, Self::Affine { .. })
    }

    /// Bits per weight.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Affine { bits, .. } | Self::Signed { bits, .. } => bits,
            Self::Mxfp4 | Self::Nvfp4 => 4,
            Self::Mxfp8 => 8,
        }
    }
}
