//! What the kernels need to know of a storage format at a width: how weights unpack, where scales change, and what
//! input rows must look like.
//!
//! # The order of additions
//! A row's columns are cut into *segments*: all weights of a lane in a segment have one scale. Where a format has one
//! scale per row or wide groups, segments end at fixed places. Within a segment a lane sums weight × input, unscaled,
//! from its first column to its last; the *centre*, what zero weights would have summed to, is taken off; and the
//! difference × scale is added to the lane's total. After the last segment the lanes are added up. Groups that have a
//! bias add bias × (sum of the group's inputs), summed over groups in eight lanes of their own.
//!
//! All of this follows from the format, the width and the instruction set, and from nothing else.

use crate::formats::{ExpertGeometry, Projection, Quantisation};

use super::{
    dequantise::E2M1,
    lanes::{BLOCK, EIGHTS, LANES, NIBBLE_CENTRE},
    options::HostActivations,
};

/// Half-blocks of a segment where scales do not end it sooner.
const LONGEST_SEGMENT: usize = 8;

/// How weights become floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// Nibbles that mean n − 8.
    IntegerNibbles,
    /// Nibbles that mean E2M1.
    E2m1Nibbles,
    /// Two's complement bytes.
    SignedBytes,
    /// Bytes that mean q − 128.
    UnsignedBytes,
    /// Anything else: rows are dequantised value by value, scales and all.
    Values,
}

/// The table of [`Coding::E2m1Nibbles`]: 64 + 8 × value.
#[expect(clippy::cast_possible_truncation, reason = "64 + 8 × (−6 to 6) are bytes")]
#[expect(clippy::cast_sign_loss, reason = "64 + 8 × (−6 to 6) are bytes")]
pub(super) const E2M1_TABLE: [u8; 16] = {
    let mut table = EIGHTS;
    let mut i = 0;
    while i < 16 {
        table[i] = (64.0 + 8.0 * E2M1[i]) as u8;
        i += 1;
    }
    table
};

/// What nibbles mean with eight-bit inputs, 12 more than twice the value of E2M1.
#[expect(clippy::cast_possible_truncation, reason = "12 + 2 × (−6 to 6) are bytes")]
#[expect(clippy::cast_sign_loss, reason = "12 + 2 × (−6 to 6) are bytes")]
pub(super) const E2M1_HALVES: [u8; 16] = {
    let mut table = EIGHTS;
    let mut i = 0;
    while i < 16 {
        table[i] = (12.0 + 2.0 * E2M1[i]) as u8;
        i += 1;
    }
    table
};

/// The table of nibbles that mean themselves.
pub(super) const NIBBLES: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

impl Coding {
    /// What a zero weight is for eight-bit inputs: in the table, or as an unsigned byte.
    pub(super) const fn int8_centre(self) -> i32 {
        match self {
            Self::IntegerNibbles => 8,
            Self::E2m1Nibbles => 12,
            Self::SignedBytes | Self::UnsignedBytes => 128,
            Self::Values => 0,
        }
    }

    const fn is_nibbles(self) -> bool {
        matches!(self, Self::IntegerNibbles | Self::E2m1Nibbles)
    }

    /// The vectors of a block of zero weights where they are not centred.
    pub(super) const fn centre(self) -> [f32; 8] {
        match self {
            Self::IntegerNibbles | Self::E2m1Nibbles => NIBBLE_CENTRE,
            Self::UnsignedBytes => [128.0; 8],
            Self::SignedBytes | Self::Values => [0.0; 8],
        }
    }

    /// What the quantised value of a zero weight is.
    pub(super) const fn zero(self) -> f32 {
        match self {
            Self::IntegerNibbles => 8.0,
            Self::UnsignedBytes => 128.0,
            _ => 0.0,
        }
    }
}

/// In which order the columns of a block lie in vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// From the first to the last: bytes and values.
    Straight,
    /// [`spread_column`](super::lanes::spread_column): the lower half of the lanes has the block's first 32 columns.
    Spread,
    /// [`paired_column`](super::lanes::paired_column): the lower half of the lanes has the first 16 of 32 columns.
    Paired,
}

/// How input rows lie in memory for a plan. Two plans that agree in this share their packed rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowLayout {
    /// Values of an input row.
    pub(super) columns: usize,
    pub(super) order: Order,
    /// Whether unpacked weights are centred. If not, the row holds what zero weights sum to.
    pub(super) centred: bool,
    /// The vectors of a block of zero weights, as bits.
    centre: [u32; 8],
    /// [`Coding::int8_centre`].
    pub(super) int8_centre: i32,
    /// Half-blocks of 32 columns per segment: 1 or an even number. The scale of a lane's weights in a segment is one.
    pub(super) segment_halves: usize,
    /// Columns of a group that has a bias; 0 if none has.
    pub(super) bias_group: usize,
    /// Whether values are eight bits: the row is then a [`Int8Step`] per segment, and the sums of its groups.
    pub(super) int8: bool,
}

/// Values of a packed row that a step of eight-bit inputs takes.
pub(super) const INT8_STEP: usize = 32;

/// A step of eight-bit inputs: 64 columns (of nibbles: even ones, then odd ones) or 32 columns (of bytes).
#[derive(Clone, Copy, Debug)]
pub(super) struct Int8Step<'a> {
    /// The columns; of bytes, the first 32.
    pub(super) values: &'a [i8; 64],
    /// What a lane's values are to be multiplied by.
    pub(super) scales: &'a [f32; LANES],
    /// What is to be added to a lane's sum of nibbles (or unsigned bytes) × values, so that a zero weight counts for
    /// nothing.
    pub(super) centres: &'a [i32; LANES],
}

impl<'a> Int8Step<'a> {
    #[inline(always)]
    pub(super) fn new(step: &'a [f32; INT8_STEP]) -> Self {
        let [values @ .., scales, centres]: &[[f32; LANES]; 4] = bytemuck::cast_ref(step);
        Self { values: bytemuck::cast_ref(values), scales, centres: bytemuck::cast_ref(centres) }
    }
}

impl RowLayout {
    /// Blocks of a row, the last one padded with zeros.
    pub(super) const fn blocks(&self) -> usize {
        self.columns.div_ceil(BLOCK)
    }

    /// Values of a row with its padding.
    pub(super) const fn padded(&self) -> usize {
        self.blocks() * BLOCK
    }

    /// Segments of a row.
    pub(super) const fn segments(&self) -> usize {
        (2 * self.blocks()).div_ceil(self.segment_halves)
    }

    /// Groups with a bias, rounded up to whole vectors.
    pub(super) const fn group_lanes(&self) -> usize {
        match self.bias_group {
            0 => 0,
            group => self.columns.div_ceil(group).next_multiple_of(LANES),
        }
    }

    /// Values of a packed row: the padded row (or its steps), the centres of its segments if there are any, the sums of its
    /// groups.
    pub(super) const fn stride(&self) -> usize {
        let values =
            if self.int8 { self.segments() * INT8_STEP } else { self.padded() + self.centre_lanes() };
        // Whole cache lines, so that every row begins with one.
        (values + self.group_lanes()).next_multiple_of(2 * LANES)
    }

    /// Values that the centres of segments take.
    pub(super) const fn centre_lanes(&self) -> usize {
        if self.centred { 0 } else { self.segments() * LANES }
    }

    /// The vectors of a block of zero weights.
    pub(super) fn centre(&self) -> [f32; 8] {
        self.centre.map(f32::from_bits)
    }
}

/// How one projection is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) coding: Coding,
    pub(super) layout: RowLayout,
    /// Columns per scale; 0 for one scale per row (and for [`Coding::Values`], which has none left).
    pub(super) group: usize,
}

impl Plan {
    /// The plan of one projection, for an instruction set with `centred` weights or another.
    pub(super) fn new(
        geometry: &ExpertGeometry,
        projection: Projection,
        activations: HostActivations,
        centred: bool,
    ) -> Self {
        let shape = geometry.projection(projection);
        let columns = shape.columns as usize;
        let (coding, group) = coding(shape.quantisation);
        let int8 =
            activations == HostActivations::Int8 && coding != Coding::Values && group.is_multiple_of(32);
        let order = match coding.is_nibbles() {
            false => Order::Straight,
            true if centred && !int8 => Order::Paired,
            true => Order::Spread,
        };
        let segment_halves = match (order, group) {
            (order, _) if int8 => 1 + usize::from(order == Order::Spread),
            (_, 0) => LONGEST_SEGMENT,
            (_, group) if group.is_multiple_of(BLOCK) => segment_of(group),
            (Order::Spread, group) if group.is_multiple_of(32) => 2,
            _ => 1,
        };
        let bias_group = if shape.quantisation.has_biases() && coding != Coding::Values { group } else { 0 };
        let centre = coding.centre().map(f32::to_bits);
        let layout = RowLayout {
            columns,
            order,
            centred: centred && !int8,
            centre,
            int8_centre: coding.int8_centre(),
            segment_halves,
            bias_group,
            int8,
        };
        Self { coding, layout, group }
    }

    /// What totals are multiplied by in the end.
    pub(super) const fn factor(&self) -> f32 {
        match (self.coding, self.layout.int8) {
            (Coding::IntegerNibbles | Coding::E2m1Nibbles, false) => 8.0,
            (Coding::E2m1Nibbles, true) => 0.5,
            _ => 1.0,
        }
    }

    /// The column whose scale the lanes of half `lane_half` have in segment `segment`.
    pub(super) const fn scale_column(&self, segment: usize, lane_half: usize) -> usize {
        let half_block = segment * self.layout.segment_halves;
        let (block, part) = (half_block / 2, half_block % 2);
        match self.layout.order {
            Order::Straight => BLOCK * block + 32 * part,
            Order::Spread => BLOCK * block + 32 * lane_half + 16 * part,
            Order::Paired => BLOCK * block + 32 * part + 16 * lane_half,
        }
    }

    /// Whether the two halves of the lanes may have different scales.
    pub(super) const fn splits_scales(&self) -> bool {
        match self.layout.order {
            Order::Straight => false,
            Order::Spread => !self.group.is_multiple_of(BLOCK),
            Order::Paired => !self.group.is_multiple_of(BLOCK / 2),
        }
    }
}

/// Half-blocks per segment of a group of whole blocks: the largest even divisor of the group up to the longest.
const fn segment_of(group: usize) -> usize {
    let halves = group / BLOCK * 2;
    let mut segment = LONGEST_SEGMENT;
    while !halves.is_multiple_of(segment) {
        segment -= 2;
    }
    segment
}

/// A format's coding and group; [`Coding::Values`] where no kernel was made for it.
fn coding(quantisation: Quantisation) -> (Coding, usize) {
    match quantisation {
        Quantisation::Signed { bits: 4, group: None } => (Coding::IntegerNibbles, 0),
        Quantisation::Signed { bits: 4, group: Some(group) } if group % 16 == 0 => {
            (Coding::IntegerNibbles, group as usize)
        }
        Quantisation::Signed { bits: 8, group: None } => (Coding::SignedBytes, 0),
        Quantisation::Affine { bits: 4, group, .. } => (Coding::IntegerNibbles, group as usize),
        Quantisation::Affine { bits: 8, group, .. } => (Coding::UnsignedBytes, group as usize),
        Quantisation::Mxfp4 => (Coding::E2m1Nibbles, 32),
        Quantisation::Nvfp4 => (Coding::E2m1Nibbles, 16),
        _ => (Coding::Values, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::lanes::{paired_column, spread_column},
        *,
    };
    use crate::formats::FloatType;

    fn plan(quantisation: Quantisation, centred: bool) -> Plan {
        let geometry = ExpertGeometry::uniform(1024, 512, quantisation);
        Plan::new(&geometry, Projection::Gate, HostActivations::Exact, centred)
    }

    #[test]
    fn segments_end_where_scales_change() {
        let q4 =
            |centred, group| plan(Quantisation::Signed { bits: 4, group }, centred).layout.segment_halves;
        let short = [None, Some(16), Some(48), Some(32), Some(96), Some(64)];
        assert_eq!(short.map(|group| q4(false, group)), [8, 1, 1, 2, 2, 2]);
        assert_eq!(short.map(|group| q4(true, group)), [8, 1, 1, 1, 1, 2]);
        for centred in [false, true] {
            let long = [Some(128), Some(192), Some(256), Some(512), Some(320)];
            assert_eq!(long.map(|group| q4(centred, group)), [4, 6, 8, 8, 2]);
            let affine8 =
                |group| plan(Quantisation::Affine { bits: 8, group, scales: FloatType::F16 }, centred).layout;
            assert_eq!([32, 64, 128].map(|group| affine8(group).segment_halves), [1, 2, 4]);
        }
    }

    #[test]
    fn lanes_of_a_segment_share_a_scale() {
        for (group, centred) in
            [16, 32, 48, 64, 96, 128, 192, 256].into_iter().flat_map(|group| [(group, false), (group, true)])
        {
            let plan = plan(Quantisation::Signed { bits: 4, group: Some(group) }, centred);
            let (lanes, column): (_, fn(usize, usize) -> usize) =
                if centred { (16, paired_column) } else { (8, spread_column) };
            let vectors = BLOCK / 2 / lanes;
            for half_block in 0..1024 / 32 {
                let segment = half_block / plan.layout.segment_halves;
                for (vector, lane) in (0..vectors).flat_map(|v| (0..lanes).map(move |lane| (v, lane))) {
                    let column = half_block / 2 * BLOCK + column(half_block % 2 * vectors + vector, lane);
                    let of_lanes = |half| plan.scale_column(segment, half) / group as usize;
                    assert_eq!(column / group as usize, of_lanes(lane / (lanes / 2)), "{group}: {column}");
                    assert!(plan.splits_scales() || of_lanes(0) == of_lanes(1), "{group}: {segment}");
                }
            }
        }
    }
}
