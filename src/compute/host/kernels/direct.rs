//! Few input rows: weights meet them in registers.

use super::{
    super::lanes::{BLOCK, LANES, Lanes, UNIT_BYTES},
    Decode, Input, Matrix, Product, ROWS, Scales, WeightRow, finish,
};

/// All weight rows with all input rows, two at a time. (Four at a time cost as much per row.)
#[inline(always)]
pub(super) fn product<L: Lanes, D: Decode<L, V>, const V: usize>(
    lanes: L,
    decode: D,
    mut product: Product<'_>,
) {
    let uses = product.inputs.uses();
    let mut first = 0;
    while first + 2 <= uses {
        rows::<L, D, V, 2, 2>(lanes, decode, &mut product, first);
        first += 2;
    }
    if first < uses {
        rows::<L, D, V, ROWS, 1>(lanes, decode, &mut product, first);
    }
}

/// All weight rows, `R` at a time, with `U` input rows from `first_use` on.
#[inline(always)]
fn rows<L: Lanes, D: Decode<L, V>, const V: usize, const R: usize, const U: usize>(
    lanes: L,
    decode: D,
    product: &mut Product<'_>,
    first_use: usize,
) {
    let Product { matrix, rows, inputs, out, scratch } = product;
    let row_count = rows.len();
    let inputs: [Input<'_>; U] = std::array::from_fn(|u| inputs.row(first_use + u));
    let scales = &mut scratch.scales;
    let mut first = rows.start;
    while first < rows.end {
        if first + R <= rows.end {
            scales.fill(&matrix.plan, matrix, first, R);
            let products = tile::<L, D, V, R, U>(lanes, decode, matrix, first, &inputs, scales);
            for (u, products) in products.iter().enumerate() {
                let at = (first_use + u) * row_count + first - rows.start;
                out[at..at + R].copy_from_slice(products);
            }
            first += R;
        } else {
            scales.fill(&matrix.plan, matrix, first, 1);
            let products = tile::<L, D, V, 1, U>(lanes, decode, matrix, first, &inputs, scales);
            for (u, products) in products.iter().enumerate() {
                out[(first_use + u) * row_count + first - rows.start] = products[0];
            }
            first += 1;
        }
    }
}

/// The products of `R` weight rows from `first` on with `U` input rows.
#[inline(always)]
fn tile<L: Lanes, D: Decode<L, V>, const V: usize, const R: usize, const U: usize>(
    lanes: L,
    decode: D,
    matrix: &Matrix<'_>,
    first: usize,
    inputs: &[Input<'_>; U],
    scales: &Scales,
) -> [[f32; R]; U] {
    let weights: [WeightRow<'_>; R] = std::array::from_fn(|r| WeightRow::new(matrix.row(first + r).weights));
    let layout = matrix.plan.layout;
    let x: [&[[[f32; LANES]; V]]; U] =
        std::array::from_fn(|u| inputs[u].blocks.as_flattened().as_chunks().0.as_chunks().0);
    let zero = lanes.splat(0.0);
    let units = layout.padded() / (V * LANES);
    let segment_units = layout.segment_halves * BLOCK / 2 / (V * LANES);
    // The whole units apart from the last one: a choice between the two in the loop would cost it its registers.
    let whole_units = weights[0].whole.len().min(units);
    let whole: [&[[u8; UNIT_BYTES]]; R] = std::array::from_fn(|r| &weights[r].whole[..whole_units]);
    let mut totals = [[zero; U]; R];
    for segment in 0..layout.segments() {
        let mut sums = [[zero; U]; R];
        let (begin, end) = (segment * segment_units, ((segment + 1) * segment_units).min(units));
        for unit in begin..end.min(whole_units) {
            if unit.is_multiple_of(2) {
                ask_ahead(lanes, &weights, unit * UNIT_BYTES);
            }
            let bytes: [&[u8; UNIT_BYTES]; R] = std::array::from_fn(|r| &whole[r][unit]);
            add_unit(lanes, decode, bytes, std::array::from_fn(|u| &x[u][unit]), &mut sums);
        }
        let bytes: [&[u8; UNIT_BYTES]; R] = std::array::from_fn(|r| &weights[r].last);
        #[expect(clippy::needless_range_loop, reason = "x is one slice per use")]
        for unit in begin.max(whole_units)..end {
            add_unit(lanes, decode, bytes, std::array::from_fn(|u| &x[u][unit]), &mut sums);
        }
        for r in 0..R {
            let scale = scales.lanes(lanes, r, segment);
            for u in 0..U {
                let centred = lanes.sub(sums[r][u], lanes.load(&inputs[u].centres[segment]));
                totals[r][u] = lanes.mul_add(centred, scale, totals[r][u]);
            }
        }
    }
    let mut products = [[0.0; R]; U];
    for r in 0..R {
        let bias = matrix.bias(first + r);
        for u in 0..U {
            products[u][r] =
                finish(lanes, &matrix.plan, totals[r][u], scales.biases(r), inputs[u].groups, bias);
        }
    }
    products
}

/// Adds the products of a unit of `R` weight rows with `U` input rows, vector by vector.
#[inline(always)]
fn add_unit<L: Lanes, D: Decode<L, V>, const V: usize, const R: usize, const U: usize>(
    lanes: L,
    decode: D,
    bytes: [&[u8; UNIT_BYTES]; R],
    x: [&[[f32; LANES]; V]; U],
    sums: &mut [[L::F; U]; R],
) {
    for r in 0..R {
        let vectors = decode.decode(lanes, bytes[r]);
        for v in 0..V {
            for u in 0..U {
                sums[r][u] = lanes.mul_add(vectors[v], lanes.load(&x[u][v]), sums[r][u]);
            }
        }
    }
}

/// Asks for the line as far beyond `offset` as the rows at hand are long: there the next rows begin.
#[inline(always)]
fn ask_ahead<L: Lanes, const R: usize>(lanes: L, weights: &[WeightRow<'_>; R], offset: usize) {
    for row in weights {
        lanes.prefetch(row.bytes, offset + R * row.bytes.len());
    }
}
