//! This crate's GPU kernels through MLX, timed beside MLX's own products: `figure NAME VALUE`, one line each.
//!
//! Needs a GPU that MLX has as its default device: Metal, or CUDA (`cargo xtask mlx --wheel mlx-cuda-13`). Elsewhere it
//! says so and measures nothing. `decode`, `prefill`, `dense`, `chain` as arguments run those parts alone. Times are medians of whole forwards, each waited for, with the host's share in them.

#![allow(unreachable_pub, reason = "an example's modules")]

#[path = "../common/mod.rs"]
mod common;
mod dense;
mod layer;
mod plain;
mod source;

use std::process::ExitCode;

use common::Failure;
use plain::Plain;
use streamed_experts::{Family, FloatType, Quantisation};

fn main() -> ExitCode {
    let Some(family) = Family::of_gpu() else {
        println!("no GPU: MLX's default device runs no custom kernels, so nothing was measured");
        return ExitCode::SUCCESS;
    };
    println!("family {}", family.name());
    match run(family) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => common::report(&*error),
    }
}

fn run(family: Family) -> Result<(), Failure> {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    let wants = |part: &str| chosen.is_empty() || chosen.iter().any(|each| each == part);
    let affine = Quantisation::Affine { bits: 4, group: 64, scales: FloatType::Bf16 };
    if wants("decode") || wants("prefill") {
        let plain = Plain::new(64, 6144, 2048)?;
        if wants("decode") {
            layer::decode("gpu_q4", Quantisation::Signed { bits: 4, group: None }, family, 64, &plain)?;
            layer::decode("gpu_affine4", affine, family, 32, &plain)?;
            layer::decode("gpu_q8", Quantisation::Signed { bits: 8, group: None }, family, 32, &plain)?;
        }
        if wants("prefill") {
            layer::prefill(family, &plain)?;
        }
    }
    if wants("dense") {
        dense::figures()?;
    }
    if wants("chain") {
        layer::chain(family, 1000)?;
    }
    Ok(())
}
