//! Products of a block of weight rows with the input rows of some uses.
//!
//! Few input rows: weights are unpacked in registers, and every use multiplies them there. Many: some rows × columns of
//! weights are unpacked into a panel that stays in the first cache, and tiles of uses × rows multiply from it. Both
//! follow the order of additions of the plan, so a row gets the same bits from either.

mod direct;
mod int8;
mod panel;
mod scales;

use std::ops::Range;

use bytemuck::Pod;

use crate::formats::{ExpertView, FloatType, Part, Projection, Quantisation};

use super::{
    dequantise::{RowBytes, float_at},
    lanes::{BLOCK, Kernel, LANES, Lanes, UNIT_BYTES},
    plan::{self, Coding, INT8_STEP, Plan, RowLayout},
};

pub(super) use panel::Panel;
pub(super) use scales::Scales;

/// Weight rows that are computed together.
const ROWS: usize = 4;

/// With as many uses as this, weights go through a panel.
const PANEL_USES: usize = 12;

/// A projection's bytes and plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix<'a> {
    plan: Plan,
    quantisation: Quantisation,
    weights: &'a [u8],
    scales: &'a [u8],
    biases: &'a [u8],
    bias: Option<(FloatType, &'a [u8])>,
    weight_row_bytes: usize,
    scale_row_bytes: usize,
}

impl<'a> Matrix<'a> {
    /// One projection, by the plan `plan`, of an expert whose parts were checked against its geometry.
    pub(super) fn new(expert: &ExpertView<'a>, projection: Projection, plan: Plan) -> Self {
        let shape = expert.geometry().projection(projection);
        let [weights, scales, biases, bias] = Part::ALL.map(|part| expert.part(projection, part));
        Self {
            plan,
            quantisation: shape.quantisation,
            weights,
            scales,
            biases,
            bias: expert.geometry().bias.map(|kind| (kind, bias)),
            weight_row_bytes: weights.len() / shape.rows as usize,
            scale_row_bytes: scales.len() / shape.rows as usize,
        }
    }

    /// The bytes of row `row`.
    #[inline(always)]
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

/// Packed input rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs<'a> {
    /// Per use, a packed row.
    rows: &'a [f32],
    layout: RowLayout,
}

/// One packed row in its parts.
#[derive(Clone, Copy, Debug)]
struct Input<'a> {
    /// Whole blocks.
    values: &'a [f32],
    centres: &'a [[f32; LANES]],
    groups: &'a [[f32; LANES]],
}

impl<'a> Inputs<'a> {
    pub(super) fn new(rows: &'a [f32], layout: RowLayout) -> Self {
        debug_assert!(rows.len().is_multiple_of(layout.stride()));
        Self { rows, layout }
    }

    fn uses(&self) -> usize {
        self.rows.len() / self.layout.stride()
    }

    #[inline(always)]
    fn packed(&self, use_: usize) -> &'a [f32] {
        &self.rows[use_ * self.layout.stride()..(use_ + 1) * self.layout.stride()]
    }

    #[inline(always)]
    fn int8_row(&self, use_: usize) -> Int8Input<'a> {
        let (steps, groups) = self.packed(use_).split_at(self.layout.segments() * INT8_STEP);
        Int8Input { steps: steps.as_chunks().0, groups: groups.as_chunks().0 }
    }

    #[inline(always)]
    fn row(&self, use_: usize) -> Input<'a> {
        let row = self.packed(use_);
        let (values, sums) = row.split_at(self.layout.padded());
        let (centres, groups) = sums.split_at(self.layout.centre_lanes());
        Input { values, centres: centres.as_chunks().0, groups: groups.as_chunks().0 }
    }
}

/// One packed row of eight-bit values in its parts.
#[derive(Clone, Copy, Debug)]
struct Int8Input<'a> {
    steps: &'a [[f32; INT8_STEP]],
    groups: &'a [[f32; LANES]],
}

/// How a unit of weights becomes vectors.
trait Decode<L: Lanes>: Copy {
    /// The input columns of a unit.
    type Columns: Pod;
    /// As many vectors of weights.
    type Unit: Copy + AsRef<[L::F]>;

    fn decode(self, lanes: L, unit: &[u8; UNIT_BYTES]) -> Self::Unit;
}

#[derive(Clone, Copy)]
struct IntegerNibbles;
#[derive(Clone, Copy)]
struct TableNibbles<T>(T);
#[derive(Clone, Copy)]
struct SignedBytes;
#[derive(Clone, Copy)]
struct UnsignedBytes;

impl<L: Lanes> Decode<L> for IntegerNibbles {
    type Columns = [f32; BLOCK];
    type Unit = L::Nibbles;

    #[inline(always)]
    fn decode(self, lanes: L, unit: &[u8; UNIT_BYTES]) -> L::Nibbles {
        lanes.integer_nibbles(unit)
    }
}

impl<L: Lanes> Decode<L> for TableNibbles<L::Table> {
    type Columns = [f32; BLOCK];
    type Unit = L::Nibbles;

    #[inline(always)]
    fn decode(self, lanes: L, unit: &[u8; UNIT_BYTES]) -> L::Nibbles {
        lanes.nibbles(unit, self.0)
    }
}

impl<L: Lanes> Decode<L> for SignedBytes {
    type Columns = [f32; BLOCK / 2];
    type Unit = L::Bytes;

    #[inline(always)]
    fn decode(self, lanes: L, unit: &[u8; UNIT_BYTES]) -> L::Bytes {
        lanes.signed_bytes(unit)
    }
}

impl<L: Lanes> Decode<L> for UnsignedBytes {
    type Columns = [f32; BLOCK / 2];
    type Unit = L::Bytes;

    #[inline(always)]
    fn decode(self, lanes: L, unit: &[u8; UNIT_BYTES]) -> L::Bytes {
        lanes.unsigned_bytes(unit)
    }
}

/// A weight row as units: whole ones, and a padded copy of the last one if it is short.
#[derive(Clone, Copy)]
struct WeightRow<'a> {
    bytes: &'a [u8],
    whole: &'a [[u8; UNIT_BYTES]],
    last: [u8; UNIT_BYTES],
}

impl<'a> WeightRow<'a> {
    #[inline(always)]
    fn new(bytes: &'a [u8]) -> Self {
        let (whole, rest) = bytes.as_chunks();
        let mut last = [0; UNIT_BYTES];
        last[..rest.len()].copy_from_slice(rest);
        Self { bytes, whole, last }
    }

    /// Unit `unit`. Beyond the row's end, where inputs are zeros, it is any unit.
    #[inline(always)]
    fn unit(&self, unit: usize) -> &[u8; UNIT_BYTES] {
        self.whole.get(unit).unwrap_or(&self.last)
    }
}

/// The sum of the lanes, made into the product's value.
#[inline(always)]
fn finish<L: Lanes>(
    lanes: L,
    plan: &Plan,
    sum: f32,
    biases: &[[f32; LANES]],
    groups: &[[f32; LANES]],
    bias: f32,
) -> f32 {
    let product = sum * plan.factor();
    if plan.layout.bias_group == 0 {
        return product + bias;
    }
    let mut sum = lanes.splat_eight(0.0);
    let one = lanes.splat_eight(1.0);
    for (b, x) in biases.iter().zip(groups) {
        sum = lanes.add_scaled(sum, lanes.load_eight(b), lanes.load_eight(x), one);
    }
    product + lanes.total(sum) + bias
}

/// What a thread keeps between products.
#[derive(Debug, Default)]
pub(super) struct ProductScratch {
    scales: Scales,
    panel: Panel,
}

/// The products of the weight rows `rows` with every input row, to `out`, `[uses, rows]`.
///
/// # Panics
/// If a row does not exist, `out` is not `[uses, rows]`, or the inputs are packed for another layout.
pub(super) struct Product<'a> {
    pub(super) matrix: Matrix<'a>,
    pub(super) rows: Range<usize>,
    pub(super) inputs: Inputs<'a>,
    pub(super) out: &'a mut [f32],
    pub(super) scratch: &'a mut ProductScratch,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let matrix_plan = self.matrix.plan;
        assert_eq!(self.inputs.layout, matrix_plan.layout);
        assert_eq!(self.out.len(), self.inputs.uses() * self.rows.len());
        if matrix_plan.layout.int8 {
            self.int8(lanes);
            return;
        }
        match matrix_plan.coding {
            Coding::IntegerNibbles => self.decoded(lanes, IntegerNibbles),
            Coding::E2m1Nibbles => self.decoded(lanes, TableNibbles(lanes.table(&plan::E2M1_TABLE))),
            Coding::SignedBytes => self.decoded(lanes, SignedBytes),
            Coding::UnsignedBytes => self.decoded(lanes, UnsignedBytes),
            Coding::Values => panel::product(lanes, panel::Values, self),
        }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn int8<L: Lanes>(self, lanes: L) {
        match self.matrix.plan.coding {
            Coding::IntegerNibbles => int8::product(lanes, int8::Nibbles(lanes.table(&plan::NIBBLES)), self),
            Coding::E2m1Nibbles => int8::product(lanes, int8::Nibbles(lanes.table(&plan::E2M1_HALVES)), self),
            Coding::SignedBytes => int8::product(lanes, int8::Bytes { flip: 0 }, self),
            Coding::UnsignedBytes => int8::product(lanes, int8::Bytes { flip: 0x80 }, self),
            Coding::Values => unreachable!("values are never computed in eight bits"),
        }
    }

    #[inline(always)]
    fn decoded<L: Lanes, D: Decode<L>>(self, lanes: L, decode: D) {
        if self.inputs.uses() < PANEL_USES {
            direct::product(lanes, decode, self);
        } else {
            panel::product(lanes, panel::Units(decode), self);
        }
    }
}
