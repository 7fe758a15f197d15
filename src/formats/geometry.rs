//! The shape of an expert, and where each of its components lies in a slot.

use std::ops::Range;

use crate::memory::SLOT_ALIGNMENT_BYTES;

use super::quantisation::{FloatType, Quantisation};

/// No slot may be larger than this: a geometry beyond it is a damaged file, not a model.
pub(crate) const MAX_SLOT_BYTES: u64 = 1 << 32;

/// One of the three matrices of an expert, in the order a slot holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Projection {
    /// `[hidden, intermediate]`, back to the residual stream.
    Down,
    /// `[intermediate, hidden]`, passed through the activation.
    Gate,
    /// `[intermediate, hidden]`, multiplied with the activated gate.
    Up,
}

impl Projection {
    /// All three, in slot order.
    pub const ALL: [Self; 3] = [Self::Down, Self::Gate, Self::Up];
}

/// One of the arrays that make up a projection, in the order a slot holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Packed weights.
    Weight,
    /// Scales.
    Scales,
    /// The quantisation's biases (affine).
    Biases,
    /// The linear layer's own bias, one value per output (gpt-oss).
    Bias,
}

impl Part {
    /// All four, in slot order.
    pub const ALL: [Self; 4] = [Self::Weight, Self::Scales, Self::Biases, Self::Bias];
}

/// What stands between the gate and up products and the down product.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Activation {
    /// silu(gate) × up.
    SwiGlu,
    /// gpt-oss: g = min(gate, limit), u = clamp(up, −limit, limit); g × sigmoid(alpha × g) × (u + 1).
    ClampedSwiGlu {
        /// Slope inside the sigmoid (gpt-oss: 1.702).
        alpha: f32,
        /// Bound of both inputs (gpt-oss: 7).
        limit: f32,
    },
}

/// The shape of one projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProjectionGeometry {
    /// Output features.
    pub rows: u32,
    /// Input features.
    pub columns: u32,
    /// How the weights are stored.
    pub quantisation: Quantisation,
}

/// The shape of an expert. All experts of a tier have the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertGeometry {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width between the products.
    pub intermediate: u32,
    /// Storage of the down, gate and up projections (the order of [`Projection::ALL`]).
    pub quantisation: [Quantisation; 3],
    /// Type of the projections' own biases, where the model has them (gpt-oss).
    pub bias: Option<FloatType>,
    /// The function between the products.
    pub activation: Activation,
}

impl ExpertGeometry {
    /// A SwiGLU expert without biases whose three projections are stored alike.
    #[must_use]
    pub const fn uniform(hidden: u32, intermediate: u32, quantisation: Quantisation) -> Self {
        Self {
            hidden,
            intermediate,
            quantisation: [quantisation; 3],
            bias: None,
            activation: Activation::SwiGlu,
        }
    }

    /// The shape and storage of one projection.
    #[must_use]
    pub const fn projection(&self, projection: Projection) -> ProjectionGeometry {
        let quantisation = self.quantisation[projection as usize];
        match projection {
            Projection::Down => {
                ProjectionGeometry { rows: self.hidden, columns: self.intermediate, quantisation }
            }
            Projection::Gate | Projection::Up => {
                ProjectionGeometry { rows: self.intermediate, columns: self.hidden, quantisation }
            }
        }
    }

    /// Bytes of one part of one projection, without padding; 0 where the format has no such part.
    ///
    /// # Errors
    /// As [`Quantisation::weight_row_bytes`] and [`Quantisation::scales_per_row`].
    pub fn part_bytes(&self, projection: Projection, part: Part) -> Result<u64, GeometryError> {
        let ProjectionGeometry { rows, columns, quantisation } = self.projection(projection);
        let row_bytes = match part {
            Part::Weight => quantisation.weight_row_bytes(columns)?,
            Part::Scales => quantisation.scales_per_row(columns)? * quantisation.scale_bytes(),
            Part::Biases if quantisation.has_biases() => {
                quantisation.scales_per_row(columns)? * quantisation.scale_bytes()
            }
            Part::Biases => 0,
            Part::Bias => self.bias.map_or(0, FloatType::bytes),
        };
        Ok(u64::from(rows) * row_bytes)
    }
}

/// Where each component of an expert lies in its slot.
///
/// Weights of down, gate, up; then their scales; then the quantisation's biases; then the projections' own biases, as
/// far as the format has them; each on a [`SLOT_ALIGNMENT_BYTES`] boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    offsets: [[Option<(u64, u64)>; 3]; 4],
    slot_bytes: u64,
    record_bytes: u64,
}

impl SlotLayout {
    /// The layout of `geometry`.
    ///
    /// # Errors
    /// A geometry that its quantisation cannot store, or one larger than any slot may be.
    pub fn new(geometry: &ExpertGeometry) -> Result<Self, GeometryError> {
        let mut offsets = [[None; 3]; 4];
        let (mut slot_bytes, mut record_bytes) = (0u64, 0u64);
        for part in Part::ALL {
            for projection in Projection::ALL {
                let bytes = geometry.part_bytes(projection, part)?;
                if bytes == 0 {
                    if part == Part::Weight {
                        return Err(GeometryError::Empty { projection });
                    }
                    continue;
                }
                offsets[part as usize][projection as usize] = Some((slot_bytes, bytes));
                record_bytes = record_bytes.saturating_add(bytes);
                slot_bytes = slot_bytes
                    .saturating_add(bytes)
                    .div_ceil(SLOT_ALIGNMENT_BYTES)
                    .saturating_mul(SLOT_ALIGNMENT_BYTES);
            }
        }
        if slot_bytes > MAX_SLOT_BYTES {
            return Err(GeometryError::TooLarge { slot_bytes, limit_bytes: MAX_SLOT_BYTES });
        }
        Ok(Self { offsets, slot_bytes, record_bytes })
    }

    /// Bytes from the beginning of one slot to the next.
    #[must_use]
    pub const fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Bytes of the expert itself, without padding: what a miss reads.
    #[must_use]
    pub const fn record_bytes(&self) -> u64 {
        self.record_bytes
    }

    /// The bytes of one component within the slot; `None` where the format has no such part.
    #[must_use]
    pub fn range(&self, projection: Projection, part: Part) -> Option<Range<u64>> {
        let (offset, bytes) = self.offsets[part as usize][projection as usize]?;
        Some(offset..offset + bytes)
    }

    /// The bytes of every component, in the order they lie in the slot.
    pub(crate) fn components(&self) -> impl Iterator<Item = Range<u64>> {
        self.offsets.iter().flatten().flatten().map(|&(offset, bytes)| offset..offset + bytes)
    }
}

/// A shape that cannot be stored or computed as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// A bit width that the format does not have.
    #[error(
        "{quantisation:?} is not a storage format that exists (affine: 2, 3, 4, 5, 6, 8 bits; signed: 4, or 8 per row)"
    )]
    Bits {
        /// The format asked for.
        quantisation: Quantisation,
    },
    /// A packed row that ends inside a u32 word.
    #[error("a row of {columns} weights at {bits} bits does not fill whole u32 words")]
    PartialWord {
        /// Input width.
        columns: u32,
        /// Bits per weight.
        bits: u32,
    },
    /// A group size that the format does not have or that does not divide the row.
    #[error("groups of {group} do not divide a row of {columns} weights, or the format has no such group")]
    Group {
        /// Input width.
        columns: u32,
        /// Columns per scale.
        group: u32,
    },
    /// A projection without weights.
    #[error("{projection:?} has no weights: hidden and intermediate must be at least 1")]
    Empty {
        /// The projection.
        projection: Projection,
    },
    /// A slot beyond any model's size.
    #[error("a slot of {slot_bytes} B is larger than the limit of {limit_bytes} B")]
    TooLarge {
        /// What the geometry would need.
        slot_bytes: u64,
        /// What no model exceeds.
        limit_bytes: u64,
    },
    /// Fewer bytes than the layout needs.
    #[error("an expert of this geometry needs {needed_bytes} B, but {given_bytes} B were given")]
    Short {
        /// Slot bytes of the layout.
        needed_bytes: u64,
        /// Length of the slice.
        given_bytes: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(layout: &SlotLayout, part: Part) -> [u64; 3] {
        Projection::ALL.map(|p| layout.range(p, part).unwrap().start)
    }

    #[test]
    fn glm_5_2_q4_slots_have_the_published_offsets() {
        let geometry = ExpertGeometry::uniform(6144, 2048, Quantisation::Signed { bits: 4, group: None });
        let layout = SlotLayout::new(&geometry).unwrap();
        assert_eq!(starts(&layout, Part::Weight), [0, 6_291_456, 12_582_912]);
        assert_eq!(starts(&layout, Part::Scales), [18_874_368, 18_907_136, 18_923_520]);
        assert_eq!((layout.slot_bytes(), layout.record_bytes()), (18_939_904, 18_915_328));
    }

    #[test]
    fn glm_5_2_q8_slots_have_the_published_offsets() {
        let geometry = ExpertGeometry::uniform(6144, 2048, Quantisation::Signed { bits: 8, group: None });
        let layout = SlotLayout::new(&geometry).unwrap();
        assert_eq!(starts(&layout, Part::Weight), [0, 12_582_912, 25_165_824]);
        assert_eq!(starts(&layout, Part::Scales), [37_748_736, 37_781_504, 37_797_888]);
        assert_eq!(layout.slot_bytes(), 37_814_272);
    }

    #[test]
    fn qwen3_30b_experts_have_the_published_size() {
        let affine = Quantisation::Affine { bits: 4, group: 64, scales: FloatType::Bf16 };
        let layout = SlotLayout::new(&ExpertGeometry::uniform(2048, 768, affine)).unwrap();
        assert_eq!(layout.record_bytes(), 2_654_208);
    }

    #[test]
    fn a_row_that_ends_inside_a_word_is_refused() {
        let affine = Quantisation::Affine { bits: 4, group: 32, scales: FloatType::F32 };
        assert_eq!(affine.weight_row_bytes(60), Err(GeometryError::PartialWord { columns: 60, bits: 4 }));
    }

    #[test]
    fn a_group_that_does_not_divide_the_row_is_refused() {
        let geometry = ExpertGeometry::uniform(
            96,
            64,
            Quantisation::Affine { bits: 4, group: 64, scales: FloatType::F16 },
        );
        assert_eq!(SlotLayout::new(&geometry), Err(GeometryError::Group { columns: 96, group: 64 }));
    }

    #[test]
    fn absurd_shapes_are_refused_without_overflow() {
        let signed = Quantisation::Signed { bits: 8, group: None };
        let error = SlotLayout::new(&ExpertGeometry::uniform(u32::MAX, u32::MAX, signed)).unwrap_err();
        assert!(matches!(error, GeometryError::TooLarge { .. }), "{error}");
    }
}
