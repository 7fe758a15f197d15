//! Activations of eight bits: integers × integers, and one product of floats per 32 columns.
//!
//! # The order of additions
//! Integers are summed exactly. Then, per *step* (nibbles: a block, whose lanes 0 to 3 are its first 32 columns; bytes:
//! half a block) and lane: total + (sum × input scale) × weight scale, each operation rounded. So all instruction sets
//! agree in every bit.

use super::{
    super::{lanes::Lanes, plan::Int8Step},
    Int8Input, Product, ROWS, Scales, UNIT_BYTES, WeightRow, finish,
};

/// Uses that a unit of weights meets at once.
const USES: usize = 4;

/// How far ahead of a row's own bytes to ask for the next ones.
const AHEAD_BYTES: usize = 2048;

/// How a unit of weights is multiplied with a step of inputs.
pub(super) trait Dot<L: Lanes>: Copy {
    fn dot(self, lanes: L, weights: &[u8; UNIT_BYTES], step: &Int8Step<'_>) -> L::Eight;
}

/// Nibbles, by a table.
#[derive(Clone, Copy)]
pub(super) struct Nibbles<T>(pub(super) T);

/// Bytes: two's complement after `flip` is flipped.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    pub(super) flip: u8,
}

impl<L: Lanes> Dot<L> for Nibbles<L::Table> {
    #[inline(always)]
    fn dot(self, lanes: L, weights: &[u8; UNIT_BYTES], step: &Int8Step<'_>) -> L::Eight {
        lanes.dot_nibbles(weights, self.0, step)
    }
}

impl<L: Lanes> Dot<L> for Bytes {
    #[inline(always)]
    fn dot(self, lanes: L, weights: &[u8; UNIT_BYTES], step: &Int8Step<'_>) -> L::Eight {
        lanes.dot_bytes(weights, self.flip, step)
    }
}

/// Every weight row with every use.
#[inline(always)]
pub(super) fn product<L: Lanes, D: Dot<L>>(lanes: L, dot: D, product: Product<'_>) {
    let Product { matrix, rows, inputs, out, scratch } = product;
    let (row_count, uses, scales) = (rows.len(), inputs.uses(), &mut scratch.scales);
    for (i, row) in rows.enumerate() {
        if i.is_multiple_of(ROWS) {
            scales.fill(&matrix.plan, &matrix, row, ROWS.min(row_count - i));
        }
        let weights = WeightRow::new(matrix.row(row).weights);
        let biases = scales.biases(i % ROWS);
        let mut use_ = 0;
        while use_ < uses {
            let mut inputs_at_once = [inputs.int8_row(use_); USES];
            let at_once = if use_ + USES <= uses { USES } else { 1 };
            for (u, input) in inputs_at_once[..at_once].iter_mut().enumerate() {
                *input = inputs.int8_row(use_ + u);
            }
            let mut totals = [lanes.splat_eight(0.0); USES];
            if at_once == USES {
                totals = totals_of(lanes, dot, &weights, &inputs_at_once, scales, i % ROWS);
            } else {
                [totals[0]] = totals_of(lanes, dot, &weights, &[inputs_at_once[0]], scales, i % ROWS);
            }
            for u in 0..at_once {
                out[(use_ + u) * row_count + i] = finish(
                    lanes,
                    &matrix.plan,
                    lanes.total(totals[u]),
                    biases,
                    inputs_at_once[u].groups,
                    matrix.bias(row),
                );
            }
            use_ += at_once;
        }
    }
}

/// The totals of one weight row with `U` uses.
#[inline(always)]
fn totals_of<L: Lanes, D: Dot<L>, const U: usize>(
    lanes: L,
    dot: D,
    weights: &WeightRow<'_>,
    inputs: &[Int8Input<'_>; U],
    scales: &Scales,
    row: usize,
) -> [L::Eight; U] {
    let mut totals = [lanes.splat_eight(0.0); U];
    for step in 0..inputs[0].steps.len() {
        if step.is_multiple_of(2) {
            lanes.prefetch(weights.bytes, step * UNIT_BYTES + AHEAD_BYTES);
        }
        let unit = weights.unit(step);
        let [low, high] = scales.halves(row, step);
        let scale = lanes.splat_halves(low, high);
        for u in 0..U {
            let input = Int8Step::new(&inputs[u].steps[step]);
            let sum = dot.dot(lanes, unit, &input);
            totals[u] = lanes.add_scaled(totals[u], sum, lanes.load_eight(input.scales), scale);
        }
    }
    totals
}
