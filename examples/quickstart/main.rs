//! Streams the experts of a checkpoint larger than its budget, and proves the result equal to the fully resident one.
//!
//! Without arguments it writes a checkpoint of 0.7 GB with random experts (once, under target/) and replays a real
//! routing trace over it.

#![allow(unreachable_pub, reason = "an example is a program; nothing of it is reached from outside")]

mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod drive;
mod report;
mod run;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use clap::Parser;
use common::{Failure, budget, bytes, family, first_layers::FirstLayers, memory, trace};
use indicatif::{ProgressBar, ProgressStyle};
use run::Settings;
use streamed_experts::{Budget, ExpertSource, Family, MemoryInfo, ResidencyPlan, Trace, open_source};

/// Stream the experts of a checkpoint larger than a memory budget, and compare with the fully resident result.
#[derive(Parser)]
#[command(after_help = "Sizes: 4GiB, 600MB, 1048576. Traces: those that the example replay reads.")]
struct Args {
    /// A checkpoint directory (mlx-community layout), a Colibri container, or a slab [default: one made for this example]
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Memory for experts [default: a quarter of what all of them take]
    #[arg(long, value_parser = bytes::parse)]
    budget: Option<u64>,
    /// How many tokens to run
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// A routing trace [default: OLMoE's, 16 layers × 64 experts, 8 a token]
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Take the first N layers that have experts for the whole model: runs and compares less [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,
    /// Who computes the experts [default: stock if built with MLX, else host]
    #[arg(long, value_parser = family::parser())]
    family: Option<Family>,
    /// Slots that misses are read into; a decoded token needs as many as it has experts in a layer
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    working: u32,
}

fn main() -> ExitCode {
    match demonstrate(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => common::report(&*error),
    }
}

/// Both runs and their comparison; whether everything promised was kept.
fn demonstrate(args: &Args) -> Result<bool, Failure> {
    let model = match &args.model {
        Some(model) => model.clone(),
        None => made_checkpoint()?,
    };
    let trace = match &args.trace {
        Some(path) => Trace::read(path)?,
        None => Trace::from_text(trace::BUILT_IN)?,
    };
    let trace = trace::tokens(&trace);
    let mut source: Arc<dyn ExpertSource> = Arc::from(open_source(&model)?);
    if let Some(layers) = args.layers {
        source = Arc::new(FirstLayers::new(source, layers as usize));
    }
    let everything = budget::everything(&*source, args.working);
    let budget_bytes = args.budget.unwrap_or(everything / 4);
    let budget_of = |bytes| Budget { working_slots: args.working, ..Budget::new(bytes) };
    let settings = |bytes| Settings {
        budget: budget_of(bytes),
        family: args.family.unwrap_or_default(),
        tokens: args.tokens as usize,
    };
    println!("{}", ResidencyPlan::new(&*source, &budget_of(budget_bytes))?);
    println!("{}", memory::slots(&*source));

    let raw = drive::raw_rate(&*source)?;
    drive::drop_cached_pages(&*source);
    let streamed = run::run(&source, &trace, &settings(budget_bytes), "streaming")?;
    // The peak is read before anything else takes memory: the resident run would hide it.
    let peak_bytes = MemoryInfo::measure()
        .peak_footprint_bytes
        .ok_or("the system does not say how much memory a process takes")?;
    let held = report::streamed(&streamed, raw, peak_bytes, budget_bytes);
    match run::run(&source, &trace, &settings(everything), "resident ") {
        Ok(resident) => Ok(report::comparison(&streamed, &resident) && held),
        Err(reason) if memory::is_no_room(reason.downcast_ref()) => {
            report::not_compared(&source, args.working, &reason);
            Ok(held)
        }
        Err(error) => Err(error),
    }
}

fn made_checkpoint() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?;
    let target =
        program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists() || folder.ends_with("target"));
    let directory =
        target.ok_or("cannot find the target folder; give --model PATH")?.join("quickstart-checkpoint");
    let bar = ProgressBar::new(checkpoint::expert_bytes());
    bar.set_style(ProgressStyle::with_template(
        "writing a checkpoint, once [{bar:30}] {bytes}/{total_bytes}",
    )?);
    checkpoint::write(&directory, &bar).map_err(|e| format!("cannot write {}: {e}", directory.display()))?;
    bar.finish_and_clear();
    println!("checkpoint: {} (random experts, written by this example)", directory.display());
    Ok(directory)
}
