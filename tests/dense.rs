//! Dense layers and the shared expert through the public door. If this fails, an engine's resident layers come out wrong, or a
//! malformed matrix reaches a kernel. Without a GPU MLX's own products compute, and the same vectors check those.
#![cfg(feature = "mlx")]

use streamed_experts::{
    DenseOptions, Family, FloatType, FusedSwiGlu, LinearError, LinearSpec, NotFused, QuantisedLinear,
    QuantisedMatrix, Rounding, UnsupportedLinear,
    mlx_rs::{Array, Dtype, ops::quantize},
};

/// A matrix and what it stands for.
struct Matrix {
    array: QuantisedMatrix,
    values: Vec<f64>,
    columns: usize,
}

impl Matrix {
    fn new(rng: &mut fastrand::Rng, rows: i32, columns: i32, bits: i32, group: i32) -> Self {
        let weights: Vec<f32> = (0..rows * columns).map(|_| rng.f32() * 0.2 - 0.1).collect();
        let (weight, scales, biases) =
            quantize(Array::from_slice(&weights, &[rows, columns]), group, bits).unwrap();
        let array = QuantisedMatrix::new(&weight, &scales, &biases, bits as u32, group as u32).unwrap();
        for each in [&weight, &scales, &biases] {
            each.eval().unwrap();
        }
        let (words, scales, biases) =
            (weight.as_slice::<u32>(), scales.as_slice::<f32>(), biases.as_slice::<f32>());
        let per_word = 32 / bits as usize;
        let value = |index: usize| {
            let code = words[index / per_word] >> (index % per_word * bits as usize) & ((1 << bits) - 1);
            let at = index / group as usize;
            f64::from(scales[at]) * f64::from(code) + f64::from(biases[at])
        };
        Self { array, values: (0..weights.len()).map(value).collect(), columns: columns as usize }
    }

    fn product(&self, x: &[f32]) -> Vec<f64> {
        let row = |x: &[f32], w: &[f64]| x.iter().zip(w).map(|(&x, w)| f64::from(x) * w).sum();
        x.chunks(self.columns)
            .flat_map(|x| self.values.chunks(self.columns).map(move |w| row(x, w)))
            .collect()
    }
}

fn random(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    // Multiples of 1/64: the same number in every type.
    (0..count).map(|_| (rng.i32(-64..=64) as f32) / 64.0).collect()
}

fn values(array: &Array) -> Vec<f32> {
    let array = array.as_dtype(Dtype::Float32).unwrap();
    array.eval().unwrap();
    array.as_slice::<f32>().to_vec()
}

fn relative_error(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(expected).map(|(&a, b)| f64::from(a) - b)) / norm(&mut expected.iter().copied())
}

/// The types of x that are precise enough to check: MLX's CPU products are not in half precision.
fn types() -> &'static [(Dtype, f64)] {
    let all = &[(Dtype::Float32, 3e-5), (Dtype::Bfloat16, 1e-2), (Dtype::Float16, 2e-3)];
    if Family::of_gpu().is_some() { all } else { &all[..1] }
}

fn ours() -> u64 {
    u64::from(Family::of_gpu().is_some())
}

#[test]
fn products_and_expansions_match_f64_in_every_shape() {
    let mut rng = fastrand::Rng::with_seed(2);
    for (rows, columns, [gate, up]) in
        [(40, 544, [(4, 32), (4, 32)]), (37, 128, [(2, 64), (8, 32)]), (130, 1024, [(8, 128), (4, 64)])]
    {
        let [gate, up] = [gate, up].map(|(bits, group)| Matrix::new(&mut rng, rows, columns, bits, group));
        for rounding in [Rounding::F32, Rounding::Match] {
            let options = DenseOptions { rounding, max_rows: 8, ..DenseOptions::default() };
            let linear = QuantisedLinear::new(up.array.clone(), options);
            let swiglu = FusedSwiGlu::new(gate.array.clone(), up.array.clone(), options).unwrap();
            let mut calls = 0;
            for leading in [&[][..], &[1], &[2, 1], &[2, 3], &[1, 1, 5]] {
                let count = leading.iter().product::<i32>() as usize;
                let x = random(&mut rng, count * columns as usize);
                let shape = |width: i32| [leading, &[width][..]].concat();
                for &(dtype, tolerance) in types() {
                    let input = Array::from_slice(&x, &shape(columns)).as_dtype(dtype).unwrap();
                    let expected = up.product(&x);
                    let out = linear.apply(&input).unwrap();
                    assert_eq!((out.shape(), out.dtype()), (&shape(rows)[..], dtype));
                    let error = relative_error(&values(&out), &expected);
                    assert!(error <= tolerance, "linear {leading:?} {dtype:?}: {error:e}");
                    let gates = gate.product(&x);
                    let expected: Vec<f64> =
                        gates.iter().zip(&expected).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                    let out = swiglu.apply(&input).unwrap();
                    assert_eq!((out.shape(), out.dtype()), (&shape(rows)[..], dtype));
                    let error = relative_error(&values(&out), &expected);
                    assert!(error <= tolerance, "swiglu {leading:?} {dtype:?} {rounding:?}: {error:e}");
                    calls += ours();
                }
            }
            assert_eq!((linear.dispatches(), swiglu.dispatches()), (calls, calls));
        }
    }
}

#[test]
fn a_rows_bits_do_not_depend_on_the_rows_beside_it() {
    if Family::of_gpu().is_none() {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(3);
    let [gate, up] = [4, 8].map(|bits| Matrix::new(&mut rng, 72, 544, bits, 32));
    let options = DenseOptions { max_rows: usize::MAX, ..DenseOptions::default() };
    let swiglu = FusedSwiGlu::new(gate.array, up.array, options).unwrap();
    let x = random(&mut rng, 32 * 544);
    let alone: Vec<f32> = x
        .chunks(544)
        .flat_map(|row| values(&swiglu.apply(&Array::from_slice(row, &[1, 544])).unwrap()))
        .collect();
    for count in [2, 5, 32] {
        let input = Array::from_slice(&x[..count * 544], &[count as i32, 544]);
        let together = values(&swiglu.apply(&input).unwrap());
        assert_eq!(together, alone[..count * 72], "{count} rows");
    }
}

#[test]
fn the_caller_says_for_how_many_rows_our_kernels_are_used() {
    let mut rng = fastrand::Rng::with_seed(4);
    let matrix = Matrix::new(&mut rng, 64, 64, 4, 32);
    let options = DenseOptions { min_rows: 2, max_rows: 3, ..DenseOptions::default() };
    let linear = QuantisedLinear::new(matrix.array.clone(), options);
    let swiglu = FusedSwiGlu::new(matrix.array.clone(), matrix.array.clone(), options).unwrap();
    let mut expected = 0;
    for count in 1..=4 {
        let x = random(&mut rng, count * 64);
        let input = Array::from_slice(&x, &[count as i32, 64]);
        let error = relative_error(&values(&linear.apply(&input).unwrap()), &matrix.product(&x));
        // Outside the bounds MLX computes, on some GPUs with fewer bits than f32 has.
        assert!(error <= if expected == 0 && ours() == 0 { 3e-5 } else { 1e-2 }, "{count} rows: {error:e}");
        swiglu.apply(&input).unwrap().eval().unwrap();
        expected += if (2..=3).contains(&count) { ours() } else { 0 };
        assert_eq!((linear.dispatches(), swiglu.dispatches()), (expected, expected), "{count} rows");
    }
}

#[test]
fn a_product_says_whether_our_kernels_compute_it() {
    let spec = LinearSpec { rows: 64, columns: 64, bits: 4, group: 32, scales: FloatType::F32 };
    assert_eq!(QuantisedLinear::supports(spec), Ok(()));
    assert_eq!(FusedSwiGlu::supports(spec, LinearSpec { bits: 2, group: 64, ..spec }), Ok(()));
    let three = LinearSpec { bits: 3, ..spec };
    assert_eq!(FusedSwiGlu::supports(spec, three), Err(UnsupportedLinear::Bits { bits: 3 }));

    let mut rng = fastrand::Rng::with_seed(5);
    let matrix = Matrix::new(&mut rng, 64, 64, 4, 32).array;
    assert_eq!(matrix.spec(), spec);
    let fused = QuantisedLinear::new(matrix.clone(), DenseOptions::default()).fused();
    assert_eq!(fused, if ours() == 1 { Ok(()) } else { Err(NotFused::Device) });

    // Three bits: MLX computes, on whatever device.
    let weights = Array::from_slice(&random(&mut rng, 64 * 64), &[64, 64]);
    let (weight, scales, biases) = quantize(&weights, 32, 3).unwrap();
    let odd = QuantisedMatrix::new(&weight, &scales, &biases, 3, 32).unwrap();
    let swiglu = FusedSwiGlu::new(matrix.clone(), odd.clone(), DenseOptions::default()).unwrap();
    assert_eq!(swiglu.fused(), Err(NotFused::Geometry(UnsupportedLinear::Bits { bits: 3 })));
    let x = Array::from_slice(&random(&mut rng, 64), &[1, 64]);
    assert!(values(&swiglu.apply(&x).unwrap()).iter().all(|value| value.is_finite()));
    assert_eq!(swiglu.dispatches(), 0);

    let narrow = Matrix::new(&mut rng, 32, 64, 4, 32).array;
    let error = FusedSwiGlu::new(matrix, narrow, DenseOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "gate is [64, 64] and up [32, 64] (rows, columns): they must be of one size"
    );
}

#[test]
fn malformed_arrays_are_refused_by_name() {
    let zeros = |shape: &[i32], dtype: Dtype| Array::zeros::<f32>(shape).unwrap().as_dtype(dtype).unwrap();
    let (weight, scales) = (zeros(&[16, 8], Dtype::Uint32), zeros(&[16, 2], Dtype::Float32));
    let new = |weight: &Array, scales: &Array, biases: &Array, bits, group| {
        QuantisedMatrix::new(weight, scales, biases, bits, group).map(|matrix| matrix.spec())
    };
    assert_eq!(new(&weight, &scales, &scales, 4, 32).unwrap().columns, 64);
    let dtype = |what| move |error| matches!(error, LinearError::Dtype { what: found, .. } if found == what);
    let shape = |what| move |error| matches!(error, LinearError::Shape { what: found, .. } if found == what);
    let integers = zeros(&[16, 2], Dtype::Int32);
    let half = zeros(&[16, 2], Dtype::Float16);
    assert!(new(&zeros(&[16, 8], Dtype::Int32), &scales, &scales, 4, 32).is_err_and(dtype("weight")));
    assert!(new(&weight, &integers, &scales, 4, 32).is_err_and(dtype("scales")));
    assert!(new(&weight, &scales, &half, 4, 32).is_err_and(dtype("biases")));
    assert!(new(&zeros(&[128], Dtype::Uint32), &scales, &scales, 4, 32).is_err_and(shape("weight")));
    assert!(new(&weight, &scales, &scales, 0, 32).is_err_and(shape("weight")));
    assert!(new(&weight, &scales, &scales, 3, 32).is_err_and(shape("weight")));
    assert!(new(&weight, &scales, &scales, 4, 0).is_err_and(shape("weight")));
    assert!(new(&weight, &scales, &scales, 4, 64).is_err_and(shape("scales")));
    let narrow = zeros(&[16, 1], Dtype::Float32);
    assert!(new(&weight, &scales, &narrow, 4, 32).is_err_and(shape("biases")));

    let matrix = QuantisedMatrix::new(&weight, &scales, &scales, 4, 32).unwrap();
    let linear = QuantisedLinear::new(matrix, DenseOptions::default());
    let apply = |x: &Array| linear.apply(x).map(|out| out.shape().to_vec());
    assert_eq!(apply(&zeros(&[2, 1, 64], Dtype::Float32)).unwrap(), [2, 1, 16]);
    assert!(apply(&zeros(&[2, 63], Dtype::Float32)).is_err_and(shape("x")));
    assert!(apply(&zeros(&[], Dtype::Float32)).is_err_and(shape("x")));
    assert!(apply(&zeros(&[1, 64], Dtype::Int32)).is_err_and(dtype("x")));
}
