//! Runs a source's MoE layers on given inputs and routes, and compares with given outputs.
//!
//! The answers are a safetensors file, in one of two layouts:
//!
//! * `layers.L.input` [.., H], `layers.L.indices` [.., K], `layers.L.switch` [.., K, H] (each chosen expert's output, before
//!   weighting), `layers.L.output` [.., H]: the weights come from the checkpoint's own router, the shared expert from the
//!   checkpoint;
//! * `L.x` [rows, H], `L.indices` [rows, K], `L.weights` [rows, K], `L.shared` [rows, H], `L.expert` [rows, K, H],
//!   `L.out` [rows, H]: routes and the shared row are given.

#![allow(unreachable_pub, reason = "an example is a program; nothing of it is reached from outside")]

mod answers;
mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod container;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use answers::{Answers, Layer};
use clap::Parser;
use common::{Failure, budget, bytes, family, numbers};
use streamed_experts::{
    BatchPlan, Budget, ExecutorOptions, ExpertSource, Family, LayerId, Routes, StreamedExpertExecutor,
};

/// Compare a source's MoE layers with outputs that something else computed; exit 0 within tolerance, 1 beyond it.
#[derive(Parser)]
struct Args {
    /// An mlx-community checkpoint or a Colibri container (a directory); a slab, if the answers give the routes
    source: PathBuf,
    /// A safetensors file with inputs, routes and outputs (see the head of this example for its keys)
    answers: PathBuf,
    /// Who computes the experts [default: stock if built with MLX, else host]
    #[arg(long, value_parser = family::parser())]
    family: Option<Family>,
    /// Memory for experts [default: all of them]
    #[arg(long, value_parser = bytes::parse)]
    budget: Option<u64>,
    /// The largest relative error ‖ours − theirs‖ / ‖theirs‖ that passes
    #[arg(long, default_value = "1e-5", value_parser = numbers::not_negative)]
    tolerance: f64,
    /// Columns per scale, for a container whose scale counts fit several
    #[arg(long)]
    group: Option<u32>,
}

fn main() -> ExitCode {
    match compare(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => common::report(&*error),
    }
}

fn compare(args: &Args) -> Result<bool, Failure> {
    let answers = Answers::open(&args.answers)?;
    let source = container::open(&args.source, &answers, args.group)?;
    let working = Budget::new(0).working_slots;
    let budget_bytes = args.budget.unwrap_or_else(|| budget::everything(&*source, working));
    let options = ExecutorOptions {
        family: args.family.unwrap_or_default(),
        ..ExecutorOptions::new(Budget::new(budget_bytes))
    };
    let mut executor = StreamedExpertExecutor::open(Arc::clone(&source), &options)?;
    let mut worst: f64 = 0.0;
    println!("layer   expert rows   output   (relative error)");
    for &number in answers.layers() {
        let experts = experts_of(&*source, number)?;
        let layer = match answers.layer(number)? {
            Some(given) => given,
            None => checkpoint::layer(&args.source, &answers, number, experts)?,
        };
        let (rows, output) = errors(&mut executor, number, experts, &layer)?;
        println!("{:<5} {rows:>13.2e} {output:>8.2e}", LayerId(number).to_string());
        worst = if (rows + output).is_nan() { f64::NAN } else { worst.max(rows).max(output) };
    }
    let within = worst <= args.tolerance;
    println!("figure worst_relative_error {worst:e}");
    println!("{} the tolerance of {:e}", if within { "within" } else { "BEYOND" }, args.tolerance);
    executor.close()?;
    // NaN is never within.
    Ok(within)
}

fn experts_of(source: &dyn ExpertSource, number: u32) -> Result<u32, Failure> {
    let layer = source.layers().iter().find(|layer| layer.layer.0 == number);
    let layer = layer
        .ok_or_else(|| format!("the answers have layer {number}, which has no experts in the source"))?;
    Ok(layer.experts)
}

/// The relative errors of the unweighted expert rows and of the layer's output.
fn errors(
    executor: &mut StreamedExpertExecutor,
    number: u32,
    experts: u32,
    layer: &Layer,
) -> Result<(f64, f64), Failure> {
    let id = LayerId(number);
    let (rows, ranks) = (layer.rows, layer.ranks);
    let hidden = layer.input.len() / rows;
    // Each chosen expert alone: one row per (row, rank), with weight 1.
    let repeated: Vec<f32> = layer
        .input
        .chunks(hidden)
        .flat_map(|row| std::iter::repeat_n(row, ranks).flatten().copied())
        .collect();
    let single = Routes::from_top_k(rows * ranks, 1, &layer.indices, &vec![1.0; rows * ranks], experts)?;
    let alone = executor.execute_rows(id, &repeated, &BatchPlan::new(&single, experts)?, None)?;
    let routes = Routes::from_top_k(rows, ranks, &layer.indices, &layer.weights, experts)?;
    let plan = BatchPlan::new(&routes, experts)?;
    let output = executor.execute_rows(id, &layer.input, &plan, layer.shared.as_deref())?;
    Ok((relative_error(&alone, &layer.expert_rows)?, relative_error(&output, &layer.output)?))
}

/// ‖ours − theirs‖ / ‖theirs‖, in f64. NaN if anything is NaN.
fn relative_error(ours: &[f32], theirs: &[f64]) -> Result<f64, Failure> {
    if ours.len() != theirs.len() {
        return Err(
            format!("the answers have {} values where {} were computed", theirs.len(), ours.len()).into()
        );
    }
    let square = |sum: f64, value: f64| sum + value * value;
    let error = ours.iter().zip(theirs).map(|(&a, &b)| f64::from(a) - b).fold(0.0, square);
    Ok((error / theirs.iter().copied().fold(0.0, square)).sqrt())
}
