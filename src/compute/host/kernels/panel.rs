//! Many input rows: a panel of unpacked weights, and tiles of uses × rows that multiply from it.

use std::ops::Range;

use bytemuck::Zeroable;

use super::{
    super::{
        dequantise::dequantise_columns,
        lanes::{BLOCK, Lanes, vectors},
        scratch::grown,
    },
    Decode, Inputs, Matrix, Product, ROWS, Scales, WeightRow, finish,
};

/// Blocks of columns that a panel holds, as far as whole segments allow: with [`ROWS`] rows 8 KiB, a quarter of a small
/// first cache.
const PANEL_BLOCKS: usize = 8;

/// Uses of a tile: with [`ROWS`] rows as many sums as stay in sixteen registers.
const TILE_USES: usize = 3;

/// Half a block: four vectors, the smallest segment.
type Half = [f32; BLOCK / 2];

/// The memory of the blocked path.
#[derive(Debug, Default)]
pub(crate) struct Panel {
    /// Unpacked weights: per row of the tile, the panel's half-blocks.
    weights: Vec<f32>,
    /// Running totals: per weight row, per use, a vector.
    totals: Vec<f32>,
    /// Scales of all weight rows, in groups of [`ROWS`].
    scales: Vec<Scales>,
}

/// How a weight row gets into a panel.
pub(super) trait Unpack<L: Lanes>: Copy {
    /// Writes the blocks `blocks` of weight row `row` to `to`.
    fn unpack(self, lanes: L, matrix: &Matrix<'_>, row: usize, blocks: Range<usize>, to: &mut [Half]);
}

/// Unit by unit, in the format's own way.
#[derive(Clone, Copy)]
pub(super) struct Units<D>(pub(super) D);

impl<L: Lanes, D: Decode<L>> Unpack<L> for Units<D> {
    #[inline(always)]
    fn unpack(self, lanes: L, matrix: &Matrix<'_>, row: usize, blocks: Range<usize>, to: &mut [Half]) {
        let weights = WeightRow::new(matrix.row(row).weights);
        let units: &mut [D::Columns] = bytemuck::cast_slice_mut(to);
        let first = blocks.start * size_of::<[f32; BLOCK]>() / size_of::<D::Columns>();
        for (unit, to) in units.iter_mut().enumerate() {
            let decoded = self.0.decode(lanes, weights.unit(first + unit));
            let vectors = decoded.as_ref();
            let to: &mut [L::Stored] = bytemuck::cast_slice_mut(std::slice::from_mut(to));
            for v in 0..vectors.len() {
                lanes.store(vectors[v], &mut to[v]);
            }
        }
    }
}

/// Value by value, scales and all.
#[derive(Clone, Copy)]
pub(super) struct Values;

impl<L: Lanes> Unpack<L> for Values {
    fn unpack(self, _: L, matrix: &Matrix<'_>, row: usize, blocks: Range<usize>, to: &mut [Half]) {
        let columns = matrix.plan.layout.columns;
        let (first, end) = (blocks.start * BLOCK, (blocks.end * BLOCK).min(columns));
        let (values, padding) = to.as_flattened_mut().split_at_mut(end - first);
        dequantise_columns(matrix.quantisation, matrix.row(row), columns, first, values);
        padding.fill(0.0);
    }
}

/// A product by panels.
#[inline(always)]
pub(super) fn product<L: Lanes, W: Unpack<L>>(lanes: L, unpack: W, product: Product<'_>) {
    let Product { matrix, rows, inputs, out, scratch } = product;
    let Panel { weights, totals, scales } = &mut scratch.panel;
    let (layout, uses) = (matrix.plan.layout, inputs.uses());
    let groups = rows.len().div_ceil(ROWS);
    if scales.len() < groups {
        scales.resize_with(groups, Scales::default);
    }
    for (group, scales) in scales[..groups].iter_mut().enumerate() {
        let first = rows.start + group * ROWS;
        scales.fill(&matrix.plan, &matrix, first, ROWS.min(rows.end - first));
    }
    let totals = grown(totals, rows.len() * uses * size_of::<L::Stored>() / size_of::<f32>());
    totals.fill(0.0);
    let totals: &mut [L::Stored] = bytemuck::cast_slice_mut(totals);
    let segments_at_once = (2 * PANEL_BLOCKS / layout.segment_halves).max(1);
    let mut segment = 0;
    while segment < layout.segments() {
        let segments = segment..(segment + segments_at_once).min(layout.segments());
        segment = segments.end;
        let halves = segments.start * layout.segment_halves
            ..(segments.end * layout.segment_halves).min(2 * layout.blocks());
        // A panel of half-block segments has an even number of them, as blocks are whole.
        let blocks = halves.start / 2..halves.end / 2;
        for (group, scales) in scales[..groups].iter().enumerate() {
            let first = group * ROWS;
            let count = ROWS.min(rows.len() - first);
            let weights = grown(weights, ROWS * halves.len() * BLOCK / 2).as_chunks_mut().0;
            for r in 0..count {
                let to = &mut weights[r * halves.len()..(r + 1) * halves.len()];
                unpack.unpack(lanes, &matrix, rows.start + first + r, blocks.clone(), to);
            }
            let span = Span {
                segments: segments.clone(),
                halves: halves.clone(),
                segment_halves: layout.segment_halves,
                scales,
            };
            let totals = &mut totals[first * uses..(first + count) * uses];
            if count == ROWS {
                tiles::<L, ROWS>(lanes, inputs, &span, weights, totals);
            } else {
                for (r, totals) in totals.chunks_exact_mut(uses).enumerate() {
                    let weights = &weights[r * halves.len()..(r + 1) * halves.len()];
                    tiles_of_one_row(lanes, inputs, &span, r, weights, totals);
                }
            }
        }
    }
    for row in 0..rows.len() {
        let (scales, bias) = (&scales[row / ROWS], matrix.bias(rows.start + row));
        for use_ in 0..uses {
            let sum = lanes.sum(lanes.load(&totals[row * uses + use_]));
            let groups = inputs.row(use_).groups;
            out[use_ * rows.len() + row] =
                finish(lanes, &matrix.plan, sum, scales.biases(row % ROWS), groups, bias);
        }
    }
}

/// The columns of a panel, and the scales of its rows.
struct Span<'a> {
    segments: Range<usize>,
    halves: Range<usize>,
    segment_halves: usize,
    scales: &'a Scales,
}

/// `R` weight rows with every use.
#[inline(always)]
fn tiles<L: Lanes, const R: usize>(
    lanes: L,
    inputs: Inputs<'_>,
    span: &Span<'_>,
    weights: &[Half],
    totals: &mut [L::Stored],
) {
    let uses = inputs.uses();
    let mut use_ = 0;
    while use_ + TILE_USES <= uses {
        tile::<L, R, TILE_USES>(lanes, inputs, span, 0, weights, totals, use_);
        use_ += TILE_USES;
    }
    while use_ < uses {
        tile::<L, R, 1>(lanes, inputs, span, 0, weights, totals, use_);
        use_ += 1;
    }
}

/// One weight row, the `row`-th of the span's scales, with every use.
#[inline(always)]
fn tiles_of_one_row<L: Lanes>(
    lanes: L,
    inputs: Inputs<'_>,
    span: &Span<'_>,
    row: usize,
    weights: &[Half],
    totals: &mut [L::Stored],
) {
    for use_ in 0..inputs.uses() {
        tile::<L, 1, 1>(lanes, inputs, span, row, weights, totals, use_);
    }
}

/// `R` weight rows, from the `first_row`-th of the span's scales on, with `U` uses from `first_use` on.
#[inline(always)]
fn tile<L: Lanes, const R: usize, const U: usize>(
    lanes: L,
    inputs: Inputs<'_>,
    span: &Span<'_>,
    first_row: usize,
    weights: &[Half],
    totals: &mut [L::Stored],
    first_use: usize,
) {
    let uses = inputs.uses();
    let inputs: [_; U] = std::array::from_fn(|u| inputs.row(first_use + u));
    let weights: [&[Half]; R] =
        std::array::from_fn(|r| &weights[r * span.halves.len()..(r + 1) * span.halves.len()]);
    let x: [&[Half]; U] = std::array::from_fn(|u| &inputs[u].values.as_chunks().0[span.halves.clone()]);
    let zero = lanes.load(&L::Stored::zeroed());
    for (i, segment) in span.segments.clone().enumerate() {
        let mut sums = [[zero; U]; R];
        for half in i * span.segment_halves..((i + 1) * span.segment_halves).min(span.halves.len()) {
            for v in 0..size_of::<Half>() / size_of::<L::Stored>() {
                let mut inputs = [zero; U];
                for u in 0..U {
                    inputs[u] = lanes.load(&vectors::<L, _>(&x[u][half])[v]);
                }
                for r in 0..R {
                    let w = lanes.load(&vectors::<L, _>(&weights[r][half])[v]);
                    for u in 0..U {
                        sums[r][u] = lanes.mul_add(w, inputs[u], sums[r][u]);
                    }
                }
            }
        }
        for r in 0..R {
            let scale = span.scales.halves(first_row + r, segment);
            for u in 0..U {
                let total = &mut totals[r * uses + first_use + u];
                let sum = lanes.add_segment(lanes.load(total), sums[r][u], inputs[u].centres, segment, scale);
                lanes.store(sum, total);
            }
        }
    }
}
