//! Few input rows: weights meet them in registers.

use bytemuck::Zeroable;

use super::{
    super::lanes::{BLOCK, Lanes, UNIT_BYTES, vectors},
    Decode, Input, Matrix, Product, ROWS, Scales, WeightRow, finish,
};

/// Where scales change.
trait Grain: Copy {
    /// Whether segments are halves of units; else they are whole units.
    const HALVES: bool;
    /// Whether the halves of the lanes may have different scales.
    const SPLIT: bool;
}

/// A [`Grain`].
#[derive(Clone, Copy)]
struct Grained<const HALVES: bool, const SPLIT: bool>;

impl<const HALVES: bool, const SPLIT: bool> Grain for Grained<HALVES, SPLIT> {
    const HALVES: bool = HALVES;
    const SPLIT: bool = SPLIT;
}

/// All weight rows with all input rows, two at a time. (Four at a time cost as much per row.)
#[inline(always)]
pub(super) fn product<L: Lanes, D: Decode<L>>(lanes: L, decode: D, product: Product<'_>) {
    let plan = product.matrix.plan;
    let segment_columns = plan.layout.segment_halves * BLOCK / 2;
    match (segment_columns < columns::<L, D>(), plan.splits_scales()) {
        (false, false) => by_uses(lanes, decode, Grained::<false, false>, product),
        (false, true) => by_uses(lanes, decode, Grained::<false, true>, product),
        (true, false) => by_uses(lanes, decode, Grained::<true, false>, product),
        (true, true) => by_uses(lanes, decode, Grained::<true, true>, product),
    }
}

/// Columns of a unit.
const fn columns<L: Lanes, D: Decode<L>>() -> usize {
    size_of::<D::Columns>() / size_of::<f32>()
}

#[inline(always)]
fn by_uses<L: Lanes, D: Decode<L>, G: Grain>(lanes: L, decode: D, grain: G, mut product: Product<'_>) {
    let uses = product.inputs.uses();
    let mut first = 0;
    while first + 2 <= uses {
        rows::<L, D, G, 2, 2>(lanes, decode, grain, &mut product, first);
        first += 2;
    }
    if first < uses {
        rows::<L, D, G, ROWS, 1>(lanes, decode, grain, &mut product, first);
    }
}

/// All weight rows, `R` at a time, with `U` input rows from `first_use` on.
#[inline(always)]
fn rows<L: Lanes, D: Decode<L>, G: Grain, const R: usize, const U: usize>(
    lanes: L,
    decode: D,
    grain: G,
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
            let products = tile::<L, D, G, R, U>(lanes, decode, grain, matrix, first, &inputs, scales);
            for (u, products) in products.iter().enumerate() {
                let at = (first_use + u) * row_count + first - rows.start;
                out[at..at + R].copy_from_slice(products);
            }
            first += R;
        } else {
            scales.fill(&matrix.plan, matrix, first, 1);
            let products = tile::<L, D, G, 1, U>(lanes, decode, grain, matrix, first, &inputs, scales);
            for (u, products) in products.iter().enumerate() {
                out[(first_use + u) * row_count + first - rows.start] = products[0];
            }
            first += 1;
        }
    }
}

/// The products of `R` weight rows from `first` on with `U` input rows.
#[inline(always)]
fn tile<L: Lanes, D: Decode<L>, G: Grain, const R: usize, const U: usize>(
    lanes: L,
    decode: D,
    _: G,
    matrix: &Matrix<'_>,
    first: usize,
    inputs: &[Input<'_>; U],
    scales: &Scales,
) -> [[f32; R]; U] {
    let weights: [WeightRow<'_>; R] = std::array::from_fn(|r| WeightRow::new(matrix.row(first + r).weights));
    let layout = matrix.plan.layout;
    let x: [&[D::Columns]; U] = std::array::from_fn(|u| bytemuck::cast_slice(inputs[u].values));
    let zero = lanes.load(&L::Stored::zeroed());
    let units = layout.padded() / columns::<L, D>();
    // The whole units apart from the last one: a choice between the two in the loop would cost it its registers.
    let whole_units = weights[0].whole.len().min(units);
    let whole: [&[[u8; UNIT_BYTES]]; R] = std::array::from_fn(|r| &weights[r].whole[..whole_units]);
    let last: [&[u8; UNIT_BYTES]; R] = std::array::from_fn(|r| &weights[r].last);
    let mut totals = [[zero; U]; R];
    if G::HALVES {
        for unit in 0..whole_units {
            if unit.is_multiple_of(2) {
                ask_ahead(lanes, &weights, unit * UNIT_BYTES);
            }
            let bytes: [&[u8; UNIT_BYTES]; R] = std::array::from_fn(|r| &whole[r][unit]);
            let x = std::array::from_fn(|u| &x[u][unit]);
            add_halves::<L, D, G, R, U>(lanes, decode, bytes, x, (unit, inputs, scales), &mut totals);
        }
        for unit in whole_units..units {
            let x = std::array::from_fn(|u| &x[u][unit]);
            add_halves::<L, D, G, R, U>(lanes, decode, last, x, (unit, inputs, scales), &mut totals);
        }
    } else {
        let segment_units = layout.segment_halves * BLOCK / 2 / columns::<L, D>();
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
            #[expect(clippy::needless_range_loop, reason = "x is one slice per use")]
            for unit in begin.max(whole_units)..end {
                add_unit(lanes, decode, last, std::array::from_fn(|u| &x[u][unit]), &mut sums);
            }
            for r in 0..R {
                let scale = halves::<G>(scales, r, segment);
                for u in 0..U {
                    totals[r][u] =
                        lanes.add_segment(totals[r][u], sums[r][u], inputs[u].centres, segment, scale);
                }
            }
        }
    }
    let mut products = [[0.0; R]; U];
    for r in 0..R {
        let bias = matrix.bias(first + r);
        for u in 0..U {
            let sum = lanes.sum(totals[r][u]);
            products[u][r] = finish(lanes, &matrix.plan, sum, scales.biases(r), inputs[u].groups, bias);
        }
    }
    products
}

/// The scales of the two halves of the lanes.
#[inline(always)]
fn halves<G: Grain>(scales: &Scales, row: usize, segment: usize) -> [f32; 2] {
    if G::SPLIT { scales.halves(row, segment) } else { [scales.halves(row, segment)[0]; 2] }
}

/// Adds the products of a unit of `R` weight rows with `U` input rows, vector by vector.
#[inline(always)]
fn add_unit<L: Lanes, D: Decode<L>, const R: usize, const U: usize>(
    lanes: L,
    decode: D,
    bytes: [&[u8; UNIT_BYTES]; R],
    x: [&D::Columns; U],
    sums: &mut [[L::F; U]; R],
) {
    for r in 0..R {
        let unit = decode.decode(lanes, bytes[r]);
        let weights = unit.as_ref();
        #[expect(clippy::needless_range_loop, reason = "v counts the vectors of x as well")]
        for v in 0..weights.len() {
            for u in 0..U {
                sums[r][u] = lanes.mul_add(weights[v], lanes.load(&vectors::<L, _>(x[u])[v]), sums[r][u]);
            }
        }
    }
}

/// Adds unit `unit`, whose halves are segments, to the totals.
#[inline(always)]
fn add_halves<L: Lanes, D: Decode<L>, G: Grain, const R: usize, const U: usize>(
    lanes: L,
    decode: D,
    bytes: [&[u8; UNIT_BYTES]; R],
    x: [&D::Columns; U],
    (unit, inputs, scales): (usize, &[Input<'_>; U], &Scales),
    totals: &mut [[L::F; U]; R],
) {
    let zero = lanes.load(&L::Stored::zeroed());
    for r in 0..R {
        let decoded = decode.decode(lanes, bytes[r]);
        let weights = decoded.as_ref();
        let vectors_of_half = weights.len() / 2;
        for half in 0..2 {
            let scale = halves::<G>(scales, r, 2 * unit + half);
            for u in 0..U {
                let mut sum = zero;
                #[expect(clippy::needless_range_loop, reason = "v counts the vectors of x as well")]
                for v in half * vectors_of_half..(half + 1) * vectors_of_half {
                    sum = lanes.mul_add(weights[v], lanes.load(&vectors::<L, _>(x[u])[v]), sum);
                }
                let segment = 2 * unit + half;
                totals[r][u] = lanes.add_segment(totals[r][u], sum, inputs[u].centres, segment, scale);
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
