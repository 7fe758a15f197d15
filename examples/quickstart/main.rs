//! Streams the experts of a checkpoint larger than its budget, and proves the result equal to the fully resident one.
//!
//! Without arguments it writes a checkpoint of 0.7 GB with random experts (once, under target/) and replays a real
//! routing trace over it.

#![allow(unreachable_pub, reason = "an example is a program; nothing of it is reached from outside")]

mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
mod drive;
mod run;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use clap::Parser;
use common::{Failure, budget, bytes, family, trace};
use indicatif::{ProgressBar, ProgressStyle};
use run::{Outcome, Settings};
use streamed_experts::{Budget, ExpertSource, Family, MemoryInfo, ResidencyPlan, open_source};

/// Memory that the process may take beyond the budget: its code, MLX and its libraries, activations, read buffers.
const OVERHEAD_BYTES: u64 = 256 << 20;

/// Stream the experts of a checkpoint larger than a memory budget, and compare with the fully resident result.
#[derive(Parser)]
#[command(
    after_help = "Sizes: 4GiB, 600MB, 1048576. A trace has one JSON line a token: {\"layers\": [[expert ids], …]}."
)]
struct Args {
    /// A checkpoint directory (mlx-community layout or Colibri container) [default: one made for this example]
    #[arg(long, value_name = "DIR")]
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
    /// Run the first N layers that have experts [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,
    /// Who computes the experts: stock (MLX) or host (CPU kernels) [default: stock if built with MLX]
    #[arg(long, value_parser = family::parse)]
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
    let directory = match &args.model {
        Some(directory) => directory.clone(),
        None => made_checkpoint()?,
    };
    let trace = match &args.trace {
        Some(path) => trace::read(path)?,
        None => trace::parse(trace::BUILT_IN)?,
    };
    let source: Arc<dyn ExpertSource> = Arc::from(open_source(&directory)?);
    let everything = budget::everything(&*source, args.working);
    let budget_bytes = args.budget.unwrap_or(everything / 4);
    let budget_of = |bytes| Budget { working_slots: args.working, ..Budget::new(bytes) };
    let settings = |bytes| Settings {
        budget: budget_of(bytes),
        family: args.family.unwrap_or_default(),
        tokens: args.tokens as usize,
        layers: args.layers.map_or(usize::MAX, |layers| layers as usize),
    };
    println!("{}", ResidencyPlan::new(&*source, &budget_of(budget_bytes))?);

    let raw = drive::raw_rate(&*source)?;
    drive::drop_cached_pages(&*source);
    let streamed = run::run(&source, &trace, &settings(budget_bytes), "streaming")?;
    // The peak is read before anything else takes memory: the resident run would hide it.
    let peak_bytes = MemoryInfo::measure()
        .peak_footprint_bytes
        .ok_or("the system does not say how much memory a process takes")?;
    let resident = run::run(&source, &trace, &settings(everything), "resident ")?;
    Ok(summary(&streamed, &resident, raw, peak_bytes, budget_bytes))
}

fn made_checkpoint() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?;
    let target =
        program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists() || folder.ends_with("target"));
    let directory =
        target.ok_or("cannot find the target folder; give --model DIR")?.join("quickstart-checkpoint");
    let bar = ProgressBar::new(checkpoint::expert_bytes());
    bar.set_style(ProgressStyle::with_template(
        "writing a checkpoint, once [{bar:30}] {bytes}/{total_bytes}",
    )?);
    checkpoint::write(&directory, &bar).map_err(|e| format!("cannot write {}: {e}", directory.display()))?;
    bar.finish_and_clear();
    println!("checkpoint: {} (random experts, written by this example)", directory.display());
    Ok(directory)
}

fn summary(streamed: &Outcome, resident: &Outcome, raw: f64, peak_bytes: u64, budget_bytes: u64) -> bool {
    let equal = streamed.checksum == resident.checksum;
    let held = peak_bytes <= budget_bytes + OVERHEAD_BYTES;
    let verdict = |kept: bool| if kept { "kept" } else { "BROKEN" };
    println!("\noutput checksum  streamed {:016x}, resident {:016x}", streamed.checksum, resident.checksum);
    println!("                 where an expert lives does not change one bit: {}", verdict(equal));
    println!(
        "hit rate         {:.1} % (everything resident: {:.1} %)",
        100.0 * streamed.hit_rate,
        100.0 * resident.hit_rate
    );
    println!("read             {} in {} reads", bytes::show(streamed.bytes), streamed.reads);
    println!(
        "rate             {:.2} GB/s while reading; the same drive read plainly: {raw:.2} GB/s",
        streamed.read_gbps
    );
    println!(
        "speed            {:.1} tokens/s streamed, {:.1} resident",
        streamed.tokens_per_s, resident.tokens_per_s
    );
    println!(
        "memory           peak {} of a budget of {} + {} for the process: {}",
        bytes::show(peak_bytes),
        bytes::show(budget_bytes),
        bytes::show(OVERHEAD_BYTES),
        verdict(held)
    );
    for (name, value) in [
        ("output_equal", f64::from(u8::from(equal))),
        ("hit_rate", streamed.hit_rate),
        ("read_bytes", streamed.bytes as f64),
        ("read_gbps", streamed.read_gbps),
        ("raw_gbps", raw),
        ("peak_bytes", peak_bytes as f64),
        ("budget_bytes", budget_bytes as f64),
        ("overhead_bytes", OVERHEAD_BYTES as f64),
    ] {
        println!("figure {name} {value}");
    }
    equal && held
}
