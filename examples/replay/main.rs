//! Replays routing traces through the cache policies that run live, beside what no policy can pass.

#![allow(unreachable_pub, reason = "an example is a program; nothing of it is reached from outside")]

#[path = "../common/mod.rs"]
mod common;
mod figures;
mod policies;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use common::{Failure, bytes, numbers};
use policies::POLICIES;
use streamed_experts::{Machine, ReplaySlots, Trace, bounds, replay};

/// Replay routing traces through the cache policies, over a sweep of slots per layer.
#[derive(Parser)]
#[command(
    after_help = "Formats: JSON lines ({\"tok\": n, \"layers\": [[expert ids], …]}, the recorder's, mlx-bun's) and BigMoeOnEdge's CSV. \
        Experts of the token in hand cannot be evicted. Caches start cold."
)]
struct Args {
    /// Traces [default: OLMoE's, Kimi-Linear's and Qwen3-30B's, which come with the examples]
    traces: Vec<PathBuf>,
    /// Slots per layer to try [default: 1/8, 1/4, 1/2, 3/4 of the experts]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    slots: Vec<u32>,
    /// Print comma-separated values instead of a table
    #[arg(long)]
    csv: bool,
    /// What the drive reads, in GB/s (10⁹ bytes): predicts tokens per second; needs --expert-bytes
    #[arg(long, value_parser = numbers::positive, requires = "expert_bytes")]
    drive_gbps: Option<f64>,
    /// Time that a token computes, in µs, reads not counted
    #[arg(long, default_value = "0", value_parser = numbers::not_negative)]
    compute_us: f64,
    /// Bytes read for one expert
    #[arg(long, value_parser = bytes::parse_some)]
    expert_bytes: Option<u64>,
    /// Tokens per second to reach: says which slots and memory do
    #[arg(long, value_parser = numbers::positive, requires = "drive_gbps")]
    target: Option<f64>,
    /// Print the figures of the default policy on the traces that come with the examples
    #[arg(long, conflicts_with_all = ["traces", "slots", "csv", "target"])]
    figures: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = if args.figures { figures::print() } else { sweep(&args) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => common::report(&*error),
    }
}

fn sweep(args: &Args) -> Result<(), Failure> {
    let mut traces = Vec::new();
    for path in &args.traces {
        traces.push((path.display().to_string(), Trace::read(path)?));
    }
    if traces.is_empty() {
        for (name, text) in policies::TRACES {
            traces.push((name.to_owned(), Trace::from_text(text)?));
        }
    }
    if args.csv {
        let tokens =
            if args.drive_gbps.is_some() { ",tokens_per_s_overlapped,tokens_per_s_serial" } else { "" };
        println!("trace,slots_per_layer,policy,hits,accesses,hit_percent{tokens}");
    }
    traces.iter().for_each(|(name, trace)| sweep_one(args, name, trace));
    Ok(())
}

fn sweep_one(args: &Args, name: &str, trace: &Trace) {
    let most = trace.layers().iter().map(|layer| layer.experts).max().unwrap_or(1);
    let eighths = [1, 2, 4, 6].map(|eighths| (most * eighths / 8).max(1));
    let slots = if args.slots.is_empty() { &eighths[..] } else { &args.slots };
    if !args.csv {
        println!(
            "{name}: {} tokens, {} layers, up to {most} experts each, {} accesses",
            trace.forwards(),
            trace.layers().len(),
            trace.accesses()
        );
    }
    let mut reached = None;
    for &slots in slots {
        let sizes = ReplaySlots::PerLayer(slots);
        let policies = POLICIES.iter().map(|&(name, policy)| (name, replay(trace, &sizes, policy).total));
        let bounds = bounds(trace, &sizes);
        let known = [
            ("best unchanging set", bounds.still),
            ("Belady", bounds.belady),
            ("Belady, bypassing", bounds.belady_bypassing),
            ("unlimited", bounds.unlimited),
        ];
        if !args.csv {
            println!("  {slots} slots per layer");
        }
        for (policy, hits) in policies.chain(known) {
            #[expect(clippy::cast_precision_loss, reason = "a mean")]
            let misses = (hits.accesses - hits.hits) as f64 / trace.forwards() as f64;
            let rates = machine(args).map(|machine| machine.forwards_per_s(misses));
            if policy == policies::DEFAULT
                && args.target.zip(rates).is_some_and(|(target, (rate, _))| rate >= target)
            {
                reached = reached.or(Some(slots));
            }
            if args.csv {
                let rates = rates.map_or(String::new(), |(best, worst)| format!(",{best:.3},{worst:.3}"));
                println!(
                    "{name},{slots},{policy},{},{},{:.2}{rates}",
                    hits.hits,
                    hits.accesses,
                    100.0 * hits.rate()
                );
            } else {
                let rates = rates
                    .map_or(String::new(), |(best, worst)| format!("  {worst:8.2} to {best:.2} tokens/s"));
                println!("    {policy:20} {:6.1} %{rates}", 100.0 * hits.rate());
            }
        }
    }
    if let (Some(target), false) = (args.target, args.csv) {
        println!("{}", verdict(args, trace, target, reached));
    }
}

fn machine(args: &Args) -> Option<Machine> {
    let (gbps, expert_bytes) = (args.drive_gbps?, args.expert_bytes?);
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let expert_bytes = expert_bytes as f64;
    Some(Machine { drive_bytes_per_s: gbps * 1e9, compute_s: args.compute_us * 1e-6, expert_bytes })
}

/// Which of the slots that were tried reach the target with the default policy, reading and computing overlapped.
fn verdict(args: &Args, trace: &Trace, target: f64, reached: Option<u32>) -> String {
    let Some(slots) = reached else {
        let allowed = machine(args).and_then(|machine| machine.misses_for(target));
        return match allowed {
            Some(misses) => {
                format!("  {target} tokens/s: none of these; a token may miss {misses:.1} experts")
            }
            None => format!("  {target} tokens/s: never, computing alone takes longer"),
        };
    };
    let kept: u64 = trace.layers().iter().map(|layer| u64::from(layer.experts.min(slots))).sum();
    let bytes = kept.saturating_mul(args.expert_bytes.unwrap_or(0));
    format!(
        "  {target} tokens/s: from {slots} slots per layer ({} for resident experts) with {}, if reads overlap",
        bytes::show(bytes),
        policies::DEFAULT
    )
}
