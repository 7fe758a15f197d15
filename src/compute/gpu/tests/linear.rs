//! Products with resident matrices: against f64, bit against bit, and watched.

use fastrand::Rng;

use super::{
    super::{
        Call, GpuLinear, GpuSwiGlu, KernelName, LinearSpec, Rounding, UnsupportedLinear, WorkError, padded,
    },
    bench::{BF16, F16, F32, Run, decode, encode, relative_error, round, words},
};
use crate::formats::FloatType;

/// A random matrix with its codes unpacked.
struct Matrix {
    spec: LinearSpec,
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    values: Vec<f64>,
}

impl Matrix {
    fn new(rng: &mut Rng, spec: LinearSpec) -> Self {
        let LinearSpec { rows, columns, bits, group, scales } = spec;
        let codes: Vec<u32> = (0..rows * columns).map(|_| rng.u32(..1 << bits)).collect();
        let per_word = (32 / bits) as usize;
        let packed: Vec<u32> = codes
            .chunks(per_word)
            .map(|word| (0..).zip(word).fold(0, |packed, (place, code)| packed | code << (place * bits)))
            .collect();
        let groups = columns.div_ceil(group);
        let step = 0.2 / (1u32 << bits) as f32;
        let random = |rng: &mut Rng| round(scales, step * (1.0 + rng.f32()));
        let scale: Vec<f32> = (0..rows * groups).map(|_| random(rng)).collect();
        let middle = ((1 << (bits - 1)) - 1) as f32;
        let bias: Vec<f32> = scale.iter().map(|scale| round(scales, -scale * (middle + rng.f32()))).collect();
        let value = |index: usize| {
            let (row, column) = (index / columns as usize, index as u32 % columns);
            let at = row * groups as usize + (column / group) as usize;
            f64::from(scale[at]) * f64::from(codes[index]) + f64::from(bias[at])
        };
        Self {
            spec,
            weight: words(&packed),
            scales: encode(scales, &scale),
            biases: encode(scales, &bias),
            values: (0..codes.len()).map(value).collect(),
        }
    }

    fn parts(&self) -> [Vec<u8>; 3] {
        [self.weight.clone(), self.scales.clone(), self.biases.clone()]
    }

    fn product(&self, x: &[f32]) -> Vec<f64> {
        let columns = self.spec.columns as usize;
        let row = |x: &[f32], w: &[f64]| x.iter().zip(w).map(|(&x, w)| f64::from(x) * w).sum();
        x.chunks(columns).flat_map(|x| self.values.chunks(columns).map(move |w| row(x, w))).collect()
    }
}

fn x(rng: &mut Rng, kind: FloatType, count: usize, columns: u32) -> Vec<f32> {
    (0..count * columns as usize).map(|_| round(kind, rng.f32() * 2.0 - 1.0)).collect()
}

fn counts(count: usize) -> Vec<u8> {
    words(&padded(&[count as u32]))
}

fn linear(matrix: &Matrix, kind: FloatType, x: &[f32]) -> (Call, Vec<Vec<u8>>) {
    let count = x.len() / matrix.spec.columns as usize;
    let call = GpuLinear::new(matrix.spec).unwrap().call(kind, count).unwrap();
    let [weight, scales, biases] = matrix.parts();
    (call, vec![encode(kind, x), weight, scales, biases, counts(count)])
}

fn swiglu(
    gate: &Matrix,
    up: &Matrix,
    kind: FloatType,
    rounding: Rounding,
    x: &[f32],
) -> (Call, Vec<Vec<u8>>) {
    let count = x.len() / gate.spec.columns as usize;
    let call = GpuSwiGlu::new(gate.spec, up.spec).unwrap().call(kind, count, rounding).unwrap();
    let mut inputs = vec![encode(kind, x)];
    inputs.extend(gate.parts());
    inputs.extend(up.parts());
    inputs.push(counts(count));
    (call, inputs)
}

fn run(run: Run, (call, inputs): (Call, Vec<Vec<u8>>)) -> Vec<u8> {
    run.call(&call, &inputs)
}

const fn spec(rows: u32, columns: u32, bits: u32, group: u32, scales: FloatType) -> LinearSpec {
    LinearSpec { rows, columns, bits, group, scales }
}

/// Widths, formats and types of x: every width of code, ragged rows, a partial step of lanes, a short last group.
const PAIRS: [(LinearSpec, LinearSpec, FloatType); 6] = [
    (spec(37, 544, 4, 64, F32), spec(37, 544, 4, 64, F32), F32),
    (spec(9, 1056, 2, 32, BF16), spec(9, 1056, 8, 96, F16), F32),
    (spec(50, 96, 8, 32, BF16), spec(50, 96, 4, 64, BF16), BF16),
    (spec(23, 512, 4, 128, BF16), spec(23, 512, 2, 64, F32), BF16),
    (spec(31, 160, 8, 64, F16), spec(31, 160, 2, 32, F16), F16),
    (spec(8, 32, 4, 32, F32), spec(8, 32, 8, 64, F32), F16),
];

fn tolerance(kind: FloatType, columns: u32) -> f64 {
    match kind {
        FloatType::F32 => 1e-6 * f64::from(columns).sqrt(),
        FloatType::F16 => 2e-3,
        FloatType::Bf16 => 1e-2,
    }
}

fn check(what: &str, kind: FloatType, spec: LinearSpec, got: &[u8], expected: &[f64]) {
    let error = relative_error(&decode(kind, got), expected);
    assert!(error <= tolerance(kind, spec.columns), "{what} {spec:?} x {kind:?}: {error:e}");
    assert!(error > 0.0, "{what} {spec:?}: exact in f64 is too good to be true");
}

fn silu_times(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
}

#[test]
fn products_and_expansions_match_f64() {
    for (seed, (gate, up, kind)) in (1..).zip(PAIRS) {
        let mut rng = Rng::with_seed(seed);
        let (gate, up) = (Matrix::new(&mut rng, gate), Matrix::new(&mut rng, up));
        for count in [1, 3, 5] {
            let x = x(&mut rng, kind, count, gate.spec.columns);
            for matrix in [&gate, &up] {
                let got = run(Run::fast(seed), linear(matrix, kind, &x));
                check("linear", kind, matrix.spec, &got, &matrix.product(&x));
            }
            let expected = silu_times(&gate.product(&x), &up.product(&x));
            for rounding in [Rounding::F32, Rounding::Match] {
                let got = run(Run::fast(seed), swiglu(&gate, &up, kind, rounding, &x));
                check("swiglu", kind, gate.spec, &got, &expected);
            }
        }
    }
}

#[test]
fn a_dense_layer_of_real_size_matches_f64() {
    let mut rng = Rng::with_seed(4);
    let [gate, up] = [4, 8].map(|bits| Matrix::new(&mut rng, spec(257, 6144, bits, 64, BF16)));
    let x = x(&mut rng, BF16, 1, 6144);
    let expected = silu_times(&gate.product(&x), &up.product(&x));
    let got = run(Run::fast(1), swiglu(&gate, &up, BF16, Rounding::F32, &x));
    check("swiglu", BF16, gate.spec, &got, &expected);
}

#[test]
fn a_rows_bits_do_not_depend_on_the_rows_beside_it() {
    for (seed, (gate, up, kind)) in (1..).zip(PAIRS) {
        let mut rng = Rng::with_seed(seed);
        let (gate, up) = (Matrix::new(&mut rng, gate), Matrix::new(&mut rng, up));
        for count in [2, 5, 32] {
            let x = x(&mut rng, kind, count, gate.spec.columns);
            let rows = || x.chunks(gate.spec.columns as usize);
            let together = run(Run::fast(seed), linear(&up, kind, &x));
            let alone: Vec<u8> = rows().flat_map(|x| run(Run::fast(2), linear(&up, kind, x))).collect();
            assert_eq!(together, alone, "linear {:?}, {count} rows", up.spec);
            for rounding in [Rounding::F32, Rounding::Match] {
                let together = run(Run::fast(seed), swiglu(&gate, &up, kind, rounding, &x));
                let alone: Vec<u8> =
                    rows().flat_map(|x| run(Run::fast(2), swiglu(&gate, &up, kind, rounding, x))).collect();
                assert_eq!(together, alone, "swiglu {:?}, {count} rows, {rounding:?}", gate.spec);
            }
        }
    }
}

#[test]
fn matching_rounds_where_separate_operations_round() {
    for (seed, (gate, up, kind)) in (1..).zip(PAIRS) {
        let mut rng = Rng::with_seed(seed);
        let (gate, up) = (Matrix::new(&mut rng, gate), Matrix::new(&mut rng, up));
        let x = x(&mut rng, kind, 5, gate.spec.columns);
        let product = |matrix| decode(kind, &run(Run::fast(seed), linear(matrix, kind, &x)));
        let separate: Vec<f32> = product(&gate)
            .into_iter()
            .zip(product(&up))
            .map(|(gate, up)| {
                let sigmoid = round(kind, 1.0 / (1.0 + (-gate).exp()));
                round(kind, round(kind, gate * sigmoid) * up)
            })
            .collect();
        let fused = run(Run::fast(seed), swiglu(&gate, &up, kind, Rounding::Match, &x));
        assert_eq!(fused, encode(kind, &separate), "{:?} x {kind:?}", gate.spec);
        let precise = run(Run::fast(seed), swiglu(&gate, &up, kind, Rounding::F32, &x));
        assert_eq!(fused == precise, kind == F32, "{kind:?}: the two roundings are one");
    }
}

#[test]
fn sound_products_give_no_report() {
    let formats = [(4, 32, F32, F32), (2, 32, BF16, BF16), (8, 64, F16, F16)];
    for (seed, (bits, group, scales, kind)) in (1..).zip(formats) {
        let mut rng = Rng::with_seed(seed);
        let gate = Matrix::new(&mut rng, spec(13, 96, bits, group, scales));
        let up = Matrix::new(&mut rng, spec(13, 96, 4, 64, scales));
        for count in [1, 3, 6] {
            let x = x(&mut rng, kind, count, 96);
            let (checked, fast) = (Run::checked(seed), Run::fast(seed));
            assert_eq!(run(checked, linear(&gate, kind, &x)), run(fast, linear(&gate, kind, &x)));
            for rounding in [Rounding::F32, Rounding::Match] {
                let call = || swiglu(&gate, &up, kind, rounding, &x);
                assert_eq!(run(checked, call()), run(fast, call()));
            }
        }
    }
}

#[test]
fn every_planted_bug_is_reported() {
    use KernelName::{Linear, SwiGlu};
    let planted = [
        (Linear, "reads a row of weights too far", "clamped_row<OUT, ROWS>(first, r)", "first + uint(r)"),
        (Linear, "reads a row of x too far", "min(first_row + uint(p), count - 1u)", "(first_row + uint(p))"),
        (Linear, "writes a column too far", "n < uint(OUT) && row < count", "row < count"),
        (Linear, "writes a row too far", "n < uint(OUT) && row < count", "n < uint(OUT)"),
        (Linear, "writes from every lane", "if (lane == 0)", "if (true)"),
        (Linear, "forgets the last column", "n < uint(OUT) && row", "n + 1 < uint(OUT) && row"),
        (SwiGlu, "reads a row of x too far", "min(first_row + uint(p), count - 1u)", "(first_row + uint(p))"),
        (
            SwiGlu,
            "reads rows of weights too far",
            "clamped_row<OUT, ROWS>(first, r)",
            "first + 16u + uint(r)",
        ),
        (SwiGlu, "mixes up the scales", "up_weight, up_scales", "up_weight, up_scales + OUT * 3"),
        (SwiGlu, "writes from every lane", "if (lane == 0)", "if (true)"),
        (SwiGlu, "writes a row too far", "n < uint(OUT) && row < count", "n < uint(OUT)"),
        (SwiGlu, "forgets the last row", "&& row < count", "&& row + 1 < count"),
        (SwiGlu, "writes all rows to the first", "size_t(row) * OUT", "size_t(0) * OUT"),
    ];
    let mut rng = Rng::with_seed(6);
    let gate = Matrix::new(&mut rng, spec(13, 96, 4, 32, F32));
    let up = Matrix::new(&mut rng, spec(13, 96, 4, 32, F32));
    let x = x(&mut rng, F32, 6, 96);
    for (kernel, what, from, to) in planted {
        assert!(kernel.body().contains(from), "{kernel:?} {what}: nothing to plant");
        let body = kernel.body().replace(from, to);
        let (call, inputs) = match kernel {
            Linear => linear(&gate, F32, &x),
            _ => swiglu(&gate, &up, F32, Rounding::F32, &x),
        };
        let (_, errors) = Run::checked(0).try_text(&call, &inputs, Some(&body));
        assert!(errors > 0, "{kernel:?} {what}: not reported");
    }
}

#[test]
fn products_that_the_kernels_cannot_compute_are_named() {
    let refused = |spec| GpuLinear::new(spec).unwrap_err();
    assert_eq!(refused(spec(64, 64, 3, 32, F32)), UnsupportedLinear::Bits { bits: 3 });
    assert_eq!(refused(spec(64, 48, 4, 32, F32)), UnsupportedLinear::Columns { columns: 48, multiple: 32 });
    assert_eq!(refused(spec(64, 0, 4, 32, F32)), UnsupportedLinear::Columns { columns: 0, multiple: 32 });
    assert_eq!(refused(spec(64, 64, 4, 16, F32)), UnsupportedLinear::Group { group: 16, multiple: 32 });
    assert_eq!(refused(spec(64, 64, 4, 0, F32)), UnsupportedLinear::Group { group: 0, multiple: 32 });
    assert!(matches!(refused(spec(1 << 19, 64, 4, 32, F32)), UnsupportedLinear::TooLarge { .. }));
    assert!(matches!(refused(spec(8, 1 << 17, 4, 32, F32)), UnsupportedLinear::TooLarge { .. }));
    assert_eq!(
        refused(spec(3, 64, 4, 32, F32)),
        UnsupportedLinear::TooSmall { words: 24, scales: 6, least: 8 }
    );
    let sizes = GpuSwiGlu::new(spec(64, 64, 4, 32, F32), spec(64, 96, 4, 32, F32)).unwrap_err();
    assert_eq!(sizes, UnsupportedLinear::SizesDiffer { gate: [64, 64], up: [64, 96] });
    let many = GpuLinear::new(spec(64, 64, 4, 32, F32)).unwrap().call(F32, 262_141).unwrap_err();
    assert_eq!(many, WorkError::TooMany { what: "rows", count: 262_141, limit: 262_140 });
}
