//! Few input rows: weights meet them in registers.

use super::{
    super::lanes::{LANES, Lanes},
    Decode, Input, Matrix, Product, ROWS, Scales, WeightRow, finish,
};

#[inline(always)]
pub(super) fn product<L: Lanes, D: Decode<L>>(lanes: L, decode: D, product: Product<'_>) {
    match product.inputs.uses() {
        1 => rows::<L, D, ROWS, 1>(lanes, decode, product),
        2 => rows::<L, D, 2, 2>(lanes, decode, product),
        3 => rows::<L, D, 2, 3>(lanes, decode, product),
        4 => rows::<L, D, 2, 4>(lanes, decode, product),
        uses => unreachable!("{uses} uses go through a panel"),
    }
}

/// All weight rows, `R` at a time, with `U` input rows.
#[inline(always)]
fn rows<L: Lanes, D: Decode<L>, const R: usize, const U: usize>(lanes: L, decode: D, product: Product<'_>) {
    let Product { matrix, rows, inputs, out, scratch } = product;
    let row_count = rows.len();
    let inputs: [Input<'_>; U] = std::array::from_fn(|use_| inputs.row(use_));
    let scales = &mut scratch.scales;
    let mut first = rows.start;
    while first < rows.end {
        if first + R <= rows.end {
            scales.fill(&matrix.plan, &matrix, first, R);
            let products = tile::<L, D, R, U>(lanes, decode, &matrix, first, &inputs, scales);
            for (use_, products) in products.iter().enumerate() {
                let at = use_ * row_count + first - rows.start;
                out[at..at + R].copy_from_slice(products);
            }
            first += R;
        } else {
            scales.fill(&matrix.plan, &matrix, first, 1);
            let products = tile::<L, D, 1, U>(lanes, decode, &matrix, first, &inputs, scales);
            for (use_, products) in products.iter().enumerate() {
                out[use_ * row_count + first - rows.start] = products[0];
            }
            first += 1;
        }
    }
}

/// The products of `R` weight rows from `first` on with `U` input rows.
#[inline(always)]
fn tile<L: Lanes, D: Decode<L>, const R: usize, const U: usize>(
    lanes: L,
    decode: D,
    matrix: &Matrix<'_>,
    first: usize,
    inputs: &[Input<'_>; U],
    scales: &Scales,
) -> [[f32; R]; U] {
    let weights: [WeightRow<'_, D::Block>; R] =
        std::array::from_fn(|r| WeightRow::new(matrix.row(first + r).weights));
    let layout = matrix.plan.layout;
    let zero = lanes.splat(0.0);
    let mut totals = [[zero; U]; R];
    if layout.segment_halves == 1 {
        for block in 0..layout.blocks() {
            ask_ahead(lanes, &weights, block);
            for r in 0..R {
                let vectors = decode.decode(lanes, weights[r].block(block));
                for half in 0..2 {
                    let segment = 2 * block + half;
                    let vectors: [L::F; 4] = std::array::from_fn(|v| vectors[4 * half + v]);
                    for u in 0..U {
                        let sum = add_vectors(lanes, &vectors, &inputs[u].blocks[block], 4 * half, zero);
                        totals[r][u] = end_segment(
                            lanes,
                            sum,
                            &inputs[u],
                            segment,
                            scales.lanes(r, segment),
                            totals[r][u],
                        );
                    }
                }
            }
        }
    } else {
        let segment_blocks = layout.segment_halves / 2;
        for segment in 0..layout.segments() {
            let mut sums = [[zero; U]; R];
            for block in segment * segment_blocks..((segment + 1) * segment_blocks).min(layout.blocks()) {
                ask_ahead(lanes, &weights, block);
                for r in 0..R {
                    let vectors = decode.decode(lanes, weights[r].block(block));
                    for u in 0..U {
                        sums[r][u] = add_vectors(lanes, &vectors, &inputs[u].blocks[block], 0, sums[r][u]);
                    }
                }
            }
            for r in 0..R {
                for u in 0..U {
                    totals[r][u] = end_segment(
                        lanes,
                        sums[r][u],
                        &inputs[u],
                        segment,
                        scales.lanes(r, segment),
                        totals[r][u],
                    );
                }
            }
        }
    }
    std::array::from_fn(|u| {
        std::array::from_fn(|r| {
            let bias = matrix.bias(first + r);
            finish(lanes, &matrix.plan, totals[r][u], scales.biases(r), inputs[u].groups, bias)
        })
    })
}

/// Asks for the block as far ahead as the rows at hand are long, where the next rows begin.
#[inline(always)]
fn ask_ahead<L: Lanes, B: bytemuck::Pod, const R: usize>(
    lanes: L,
    weights: &[WeightRow<'_, B>; R],
    block: usize,
) {
    let offset = block * size_of::<B>();
    if !offset.is_multiple_of(64) {
        return;
    }
    for row in weights {
        lanes.prefetch(row.bytes, offset + R * row.bytes.len());
    }
}

/// `sum` with the products of `vectors` and the input's vectors from `first` on added, in order.
#[inline(always)]
fn add_vectors<L: Lanes, const V: usize>(
    lanes: L,
    vectors: &[L::F; V],
    input: &[f32; 64],
    first: usize,
    mut sum: L::F,
) -> L::F {
    let input = &input.as_chunks::<LANES>().0[first..first + V];
    for (weights, x) in vectors.iter().zip(input) {
        sum = lanes.mul_add(*weights, lanes.load(x), sum);
    }
    sum
}

/// `total` with a segment's sum added: less its centre, times its scale.
#[inline(always)]
fn end_segment<L: Lanes>(
    lanes: L,
    sum: L::F,
    input: &Input<'_>,
    segment: usize,
    scale: &[f32; LANES],
    total: L::F,
) -> L::F {
    let centred = lanes.sub(sum, lanes.load(&input.centres[segment]));
    lanes.mul_add(centred, lanes.load(scale), total)
}
