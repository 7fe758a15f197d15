//! What a budget buys on a machine, before anything is loaded: slots, hits to expect, tokens per second.

#![allow(unreachable_pub, reason = "an example is a program; nothing of it is reached from outside")]

#[path = "../common/mod.rs"]
mod common;
mod forecast;
mod pins;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use common::{Failure, bytes, numbers};
use forecast::Forecast;
use streamed_experts::{Budget, Machine, ResidencyPlan, Trace, open_source};

/// Say what a memory budget buys: slots per layer, hits to expect from a trace, tokens per second. Reads headers only.
#[derive(Parser)]
#[command(
    after_help = "Sizes: 4GiB, 600MB, 1048576. Caches start cold, so a longer trace gives a higher hit rate."
)]
struct Args {
    /// A checkpoint directory (mlx-community layout), a Colibri container, or a slab
    model: PathBuf,
    /// All memory that may be used
    #[arg(long, value_parser = bytes::parse)]
    budget: u64,
    /// Of it, what the rest of the model, the KV cache and activations take
    #[arg(long, value_parser = bytes::parse, default_value = "0")]
    fixed: u64,
    /// Slots that misses are read into
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    working: u32,
    /// A routing trace; of another model, its layers and slots are scaled [default: OLMoE's]
    #[arg(long)]
    trace: Option<PathBuf>,
    /// A usage ledger: the experts that it says to pin are planned as pinned, and named
    #[arg(long, value_name = "LEDGER")]
    pin: Option<PathBuf>,
    /// What the drive reads, in GB/s (10⁹ bytes)
    #[arg(long, value_parser = numbers::positive)]
    drive_gbps: Option<f64>,
    /// Time that a token computes, in µs, reads not counted
    #[arg(long, value_parser = numbers::positive)]
    compute_us: Option<f64>,
    /// Tokens per second to reach: says what it needs
    #[arg(long, value_parser = numbers::positive, requires = "drive_gbps")]
    target: Option<f64>,
}

fn main() -> ExitCode {
    match plan(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => common::report(&*error),
    }
}

fn plan(args: &Args) -> Result<(), Failure> {
    let source = open_source(&args.model)?;
    let trace = match &args.trace {
        Some(path) => Trace::read(path)?,
        None => Trace::from_text(common::trace::BUILT_IN)?,
    };
    let mut budget =
        Budget { fixed_bytes: args.fixed, working_slots: args.working, ..Budget::new(args.budget) };
    let mut plan = ResidencyPlan::new(&*source, &budget)?;
    if let Some(path) = &args.pin {
        budget.pinned = pins::from_ledger(path, &plan)?;
        plan = ResidencyPlan::new(&*source, &budget)?;
    }
    println!("{plan}\n");
    terms(&plan);
    if args.pin.is_some() {
        pins::name(&plan);
    }

    let forecast = Forecast::new(&*source, &trace);
    if !forecast.same_shape() {
        println!("\nthe trace is of another model: its layers take the model's share of slots, in turn");
    }
    let hits = forecast.hits(&plan);
    println!(
        "\nexpected hits            {hits:.1}, LRU {:.1}, optimum {:.1}",
        forecast.lru(&plan),
        forecast.optimum(&plan)
    );
    let misses = forecast.misses(hits.rate());
    let read = bytes::show((misses * forecast.expert_bytes()) as u64);
    println!("misses a token           {misses:.1} of {:.0} experts: {read} read", forecast.misses(0.0));
    let Some(gbps) = args.drive_gbps else { return Ok(()) };
    let machine = Machine {
        drive_bytes_per_s: gbps * 1e9,
        compute_s: args.compute_us.unwrap_or(0.0) * 1e-6,
        expert_bytes: forecast.expert_bytes(),
    };
    let (overlapped, serial) = machine.forwards_per_s(misses);
    println!("expected tokens/s        {serial:.2} (reads, then computing) to {overlapped:.2} (overlapped)");
    if let Some(target) = args.target {
        println!("{}", need(&forecast, &plan, &machine, target));
    }
    Ok(())
}

/// Every term of the plan in bytes.
fn terms(plan: &ResidencyPlan) {
    let sum = |slots: fn(&streamed_experts::TierPlan) -> u32| -> u64 {
        plan.tiers().iter().map(|tier| tier.slot_bytes() * u64::from(slots(tier))).sum()
    };
    for (name, bytes) in [
        ("fixed", plan.fixed_bytes()),
        ("working", sum(|tier| tier.working_slots())),
        ("resident", sum(|tier| tier.resident_slots())),
        ("pinned", sum(|tier| tier.pinned_slots())),
    ] {
        println!("{name:24} {}", bytes::show(bytes));
    }
    let layers = || plan.tiers().iter().flat_map(|tier| tier.layers());
    let kept = || layers().map(|layer| layer.resident_slots());
    let experts = || layers().map(|layer| layer.experts());
    println!(
        "resident experts         {} to {} of {} to {} in each of {} layers",
        kept().min().unwrap_or(0),
        kept().max().unwrap_or(0),
        experts().min().unwrap_or(0),
        experts().max().unwrap_or(0),
        layers().count()
    );
}

/// What reaches the target.
fn need(forecast: &Forecast<'_>, plan: &ResidencyPlan, machine: &Machine, target: f64) -> String {
    let Some(misses) = machine.misses_for(target) else {
        return format!("{target} tokens/s             never: computing alone takes longer");
    };
    let rate = (1.0 - misses / forecast.misses(0.0)).max(0.0);
    let hits = format!("{target} tokens/s             {:.1} % hits, if reads overlap", 100.0 * rate);
    match forecast.share_for(rate) {
        Some(share) => {
            let resident: f64 = forecast.all_bytes() * share;
            let working: u64 =
                plan.tiers().iter().map(|tier| tier.slot_bytes() * u64::from(tier.working_slots())).sum();
            let budget = resident + (working + plan.fixed_bytes()) as f64;
            format!(
                "{hits}: about {:.0} % of all experts resident, a budget of {}",
                100.0 * share,
                bytes::show(budget as u64)
            )
        }
        None => format!("{hits}: more than this trace gives with every expert resident from its first use"),
    }
}
