//! If this fails, the MLX that was linked is not the MLX that the bindings describe, or its quantised product means
//! something else than we take it to mean: every expert computed by MLX is then wrong.
#![cfg(feature = "mlx")]

use streamed_experts::mlx_rs::{
    Array,
    ops::{quantize, quantized_matmul},
};

const ROWS: usize = 3;
const INPUTS: usize = 128;
const OUTPUTS: usize = 32;
const GROUP: usize = 64;
const BITS: usize = 4;

fn random(rng: &mut fastrand::Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.f32() * 2.0 - 1.0).collect()
}

fn array(data: &[f32], rows: usize) -> Array {
    Array::from_slice(data, &[rows as i32, (data.len() / rows) as i32])
}

/// Weight (output, input) from MLX's packing: eight 4-bit codes in a word, lowest bits first; scale × code + bias.
fn dequantised(words: &[u32], scales: &[f32], biases: &[f32], output: usize, input: usize) -> f64 {
    let per_word = 32 / BITS;
    let word = words[output * (INPUTS / per_word) + input / per_word];
    let code = (word >> (BITS * (input % per_word))) & 0xf;
    let group = output * (INPUTS / GROUP) + input / GROUP;
    f64::from(scales[group]) * f64::from(code) + f64::from(biases[group])
}

#[test]
fn quantised_product_agrees_with_a_scalar_dequantised_one() {
    let mut rng = fastrand::Rng::with_seed(7);
    let x = random(&mut rng, ROWS * INPUTS);
    let weights = random(&mut rng, OUTPUTS * INPUTS);

    let (words, scales, biases) =
        quantize(array(&weights, OUTPUTS), GROUP as i32, BITS as i32).expect("MLX quantises");
    let product =
        quantized_matmul(array(&x, ROWS), &words, &scales, &biases, true, GROUP as i32, BITS as i32)
            .expect("MLX multiplies");
    assert_eq!(product.shape(), [ROWS as i32, OUTPUTS as i32]);

    let (words, scales, biases) =
        (words.as_slice::<u32>(), scales.as_slice::<f32>(), biases.as_slice::<f32>());
    let product = product.as_slice::<f32>();
    let mut largest = 0.0_f64;
    for row in 0..ROWS {
        for output in 0..OUTPUTS {
            let expected: f64 = (0..INPUTS)
                .map(|i| f64::from(x[row * INPUTS + i]) * dequantised(words, scales, biases, output, i))
                .sum();
            let got = f64::from(product[row * OUTPUTS + output]);
            largest = largest.max(got.abs());
            assert!(
                (got - expected).abs() <= 1e-5 * expected.abs().max(1.0),
                "row {row}, output {output}: MLX gives {got}, the scalar product {expected}"
            );
        }
    }
    assert!(largest > 0.1, "the product is all but zero, so it proves nothing");
}
