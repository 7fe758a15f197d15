//! Dense layers: this crate's fused expansion and product beside MLX's separate ones.

use std::time::{Duration, Instant};

use streamed_experts::{
    DenseOptions, FusedSwiGlu, QuantisedLinear, QuantisedMatrix,
    mlx_rs::{Array, Dtype},
};

use crate::{common::Failure, layer::median};

const GROUP: u32 = 64;

fn matrix(rows: i32, columns: i32, bits: u32) -> Result<QuantisedMatrix, Failure> {
    let mut random = fastrand::Rng::with_seed(u64::from(bits));
    let row_words = columns * bits as i32 / 32;
    let words: Vec<u32> = (0..rows * row_words).map(|_| random.u32(..)).collect();
    let weight = Array::from_slice(&words, &[rows, row_words]);
    let scale = 1.0 / (columns as f32).sqrt() / (1u32 << bits) as f32;
    let full = |value: f32| -> Result<Array, Failure> {
        let shape = [rows, columns / GROUP as i32];
        Ok(Array::full::<f32>(&shape, Array::from_f32(value))?.as_dtype(Dtype::Bfloat16)?)
    };
    let middle = ((1u32 << bits) - 1) as f32 / 2.0;
    Ok(QuantisedMatrix::new(&weight, &full(scale)?, &full(-middle * scale)?, bits, GROUP)?)
}

fn time(mut apply: impl FnMut() -> Result<Array, Failure>) -> Result<Duration, Failure> {
    let mut times = Vec::new();
    for pass in 0..60 {
        let start = Instant::now();
        apply()?.eval()?;
        if pass >= 10 {
            times.push(start.elapsed());
        }
    }
    Ok(median(times))
}

/// One dense layer of 6144 to 12288, 4 and 8 bits, in bf16.
pub fn figures() -> Result<(), Failure> {
    let (columns, rows) = (6144, 12288);
    let never = DenseOptions { max_rows: 0, ..DenseOptions::default() };
    let always = DenseOptions { max_rows: usize::MAX, ..DenseOptions::default() };
    for bits in [4, 8] {
        let (gate, up) = (matrix(rows, columns, bits)?, matrix(rows, columns, bits)?);
        for count in [1, 2, 4, 8, 16, 32] {
            let mut random = fastrand::Rng::with_seed(9);
            let values: Vec<f32> = (0..count * columns).map(|_| random.f32() - 0.5).collect();
            let x = Array::from_slice(&values, &[count, columns]).as_dtype(Dtype::Bfloat16)?;
            x.eval()?;
            let us = |time: Duration| time.as_secs_f64() * 1e6;
            let swiglu = |options| -> Result<f64, Failure> {
                let layer = FusedSwiGlu::new(gate.clone(), up.clone(), options)?;
                Ok(us(time(|| Ok(layer.apply(&x)?))?))
            };
            let linear = |options| -> Result<f64, Failure> {
                let layer = QuantisedLinear::new(gate.clone(), options);
                Ok(us(time(|| Ok(layer.apply(&x)?))?))
            };
            let [fused, separate] = [swiglu(always)?, swiglu(never)?];
            let [ours, stock] = [linear(always)?, linear(never)?];
            println!(
                "  {bits} bits, M {count}: expansion {fused:.0} us, MLX's {separate:.0} us; product {ours:.0} us, \
                 MLX's {stock:.0} us"
            );
            println!("figure gpu_swiglu_q{bits}_m{count}_vs_stock {:.2}", separate / fused);
            println!("figure gpu_linear_q{bits}_m{count}_vs_stock {:.2}", stock / ours);
        }
    }
    Ok(())
}
