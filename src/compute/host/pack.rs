//! Input rows in the form that the kernels read.

use bytemuck::Zeroable;

use super::{
    lanes::{BLOCK, Kernel, LANES, Lanes, SPILL, paired_column, spread_column, vectors},
    plan::{INT8_STEP, Order, RowLayout},
};

/// Packs one input row.
///
/// # Panics
/// If `row` has not the layout's columns or `packed` not its stride.
pub(super) struct Pack<'a> {
    pub(super) layout: RowLayout,
    pub(super) row: &'a [f32],
    pub(super) packed: &'a mut [f32],
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { layout, row, packed } = self;
        assert_eq!((row.len(), packed.len()), (layout.columns, layout.stride()));
        if layout.int8 {
            let (steps, groups) = packed.split_at_mut(layout.segments() * INT8_STEP);
            pack_int8(layout, row, steps.as_chunks_mut().0);
            sum_groups(layout, row, groups);
            return;
        }
        let (values, sums) = packed.split_at_mut(layout.padded());
        let (centres, groups) = sums.split_at_mut(layout.centre_lanes());
        pack_values(layout, row, values);
        if !L::CENTRED {
            centre_segments(lanes, layout, values, centres);
        }
        sum_groups(layout, row, groups);
    }
}

fn pack_values(layout: RowLayout, row: &[f32], values: &mut [f32]) {
    if layout.order == Order::Straight {
        values[..row.len()].copy_from_slice(row);
        values[row.len()..].fill(0.0);
        return;
    }
    for (block, to) in values.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let mut padded = [0.0; BLOCK];
        let from = match row[block * BLOCK..].first_chunk() {
            Some(whole) => whole,
            None => {
                let rest = &row[block * BLOCK..];
                padded[..rest.len()].copy_from_slice(rest);
                &padded
            }
        };
        match layout.order {
            Order::Paired => pack_paired_block(from, to),
            _ => pack_spread_block(from, to),
        }
    }
}

#[inline(always)]
fn pack_paired_block(from: &[f32; BLOCK], to: &mut [f32; BLOCK]) {
    for (vector, to) in to.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut().enumerate() {
        for (lane, to) in to.iter_mut().enumerate() {
            *to = from[paired_column(vector, lane)];
        }
    }
}

#[inline(always)]
fn pack_spread_block(from: &[f32; BLOCK], to: &mut [f32; BLOCK]) {
    for (pair, to) in to.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut().enumerate() {
        for lane in 0..LANES {
            let upper = from[spread_column(2 * pair, lane)];
            let lower = from[spread_column(2 * pair + 1, lane)];
            to[lane] = upper;
            // The lower weight spills into the upper one's float: take that out here.
            to[LANES + lane] = lower - SPILL * upper;
        }
    }
}

/// Per segment, what a row of zero weights sums to, in the order in which the kernels sum, in eight lanes.
#[inline(always)]
fn centre_segments<L: Lanes>(lanes: L, layout: RowLayout, values: &[f32], centres: &mut [f32]) {
    let mut centre = [L::Stored::zeroed(); 8];
    for (centre, value) in centre.iter_mut().zip(layout.centre()) {
        bytemuck::cast_slice_mut(std::slice::from_mut(centre)).fill(value);
    }
    let zero = lanes.load(&L::Stored::zeroed());
    let halves = values.as_chunks::<{ BLOCK / 2 }>().0;
    let segments = halves.chunks(layout.segment_halves).zip(bytemuck::cast_slice_mut(centres)).enumerate();
    for (segment, (halves, to)) in segments {
        let mut sum = zero;
        for (i, half) in halves.iter().enumerate() {
            let first = (segment * layout.segment_halves + i) % 2 * 4;
            for (vector, x) in vectors::<L, _>(half).iter().enumerate() {
                sum = lanes.mul_add(lanes.load(&centre[first + vector]), lanes.load(x), sum);
            }
        }
        lanes.store(sum, to);
    }
}

/// Rounds a row to eight bits, 32 columns at a time.
fn pack_int8(layout: RowLayout, row: &[f32], steps: &mut [[f32; INT8_STEP]]) {
    let columns = layout.segment_halves * BLOCK / 2;
    for (step, to) in steps.iter_mut().enumerate() {
        let [values @ .., scales, centres]: &mut [[f32; LANES]; 4] = bytemuck::cast_mut(to);
        let values: &mut [i8; 64] = bytemuck::cast_mut(values);
        let centres: &mut [i32; LANES] = bytemuck::cast_mut(centres);
        values.fill(0);
        centres.fill(0);
        for half in 0..columns / 32 {
            let begin = (step * columns + 32 * half).min(row.len());
            let group = &row[begin..(begin + 32).min(row.len())];
            let (rounded, scale) = round_int8(group);
            if layout.order == Order::Spread {
                scales[4 * half..4 * half + 4].fill(scale);
                for (i, value) in rounded.into_iter().enumerate() {
                    values[i % 2 * 32 + 16 * half + i / 2] = value;
                    centres[4 * half + i / 8] -= layout.int8_centre * i32::from(value);
                }
            } else {
                scales.fill(scale);
                values[..32].copy_from_slice(&rounded);
                for (centre, values) in centres.iter_mut().zip(rounded.as_chunks::<4>().0) {
                    *centre = -layout.int8_centre * values.iter().map(|&value| i32::from(value)).sum::<i32>();
                }
            }
        }
    }
}

/// Up to 32 values as eight bits × scale. Where one is not finite the scale is NaN.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the quotient is at most 127 in size, but for its rounding"
)]
fn round_int8(group: &[f32]) -> ([i8; 32], f32) {
    let largest = group.iter().fold(0.0, |largest, x| if x.abs() > largest { x.abs() } else { largest });
    let mut rounded = [0; 32];
    if !group.iter().all(|x| x.is_finite()) {
        return (rounded, f32::NAN);
    }
    let scale = largest / 127.0;
    if scale > 0.0 {
        for (to, x) in rounded.iter_mut().zip(group) {
            *to = (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
        }
    }
    (rounded, scale)
}

/// The sum of the inputs of each group, rounded once.
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
fn sum_groups(layout: RowLayout, row: &[f32], groups: &mut [f32]) {
    if layout.bias_group == 0 {
        return;
    }
    groups.fill(0.0);
    for (sum, group) in groups.iter_mut().zip(row.chunks(layout.bias_group)) {
        *sum = group.iter().map(|&x| f64::from(x)).sum::<f64>() as f32;
    }
}
