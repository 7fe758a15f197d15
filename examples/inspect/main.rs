//! Prints what a source holds, and what a budget would hold of it. Reads headers only.

#[path = "../common/mod.rs"]
mod common;

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use clap::Parser;
use common::{Failure, budget, bytes, source};
use streamed_experts::{
    Budget, ExpertGeometry, ExpertSource, FileId, LayerId, Projection, Quantisation, ResidencyPlan,
};

/// Print a model's experts: geometry, sizes, layers, reads per expert, and what a budget would hold.
#[derive(Parser)]
struct Args {
    /// A checkpoint directory (mlx-community layout), a Colibri container, or a slab
    source: PathBuf,
    /// Budgets to plan for, such as 4GiB; may be given several times [default: a quarter, a half, and all of the experts]
    #[arg(long, value_parser = bytes::parse)]
    budget: Vec<u64>,
    /// Memory that the rest of the model takes
    #[arg(long, default_value = "0", value_parser = bytes::parse)]
    fixed: u64,
    /// Slots that misses are read into
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    working: u32,
    /// Columns per scale of a Colibri container whose byte counts fit several
    #[arg(long, value_name = "COLUMNS")]
    group: Option<u32>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => common::report(&*error),
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    let source = source::open(&args.source, args.group)?;
    for (number, tier) in source.tiers().iter().enumerate() {
        println!("T{number}: {}", shape(&tier.geometry));
        println!(
            "    one expert {} B, in a slot of {} B",
            tier.layout.record_bytes(),
            tier.layout.slot_bytes()
        );
        println!("    {}", layers(&*source, number));
        println!("    {}", reads(&*source, number));
    }
    println!("{}", files(&*source));
    let checksums = source::keys(&*source).filter(|&key| source.checksum(key).is_some()).count();
    println!("checksums: {checksums} of {} experts", source::keys(&*source).count());
    print_budgets(&*source, args);
    Ok(())
}

fn shape(geometry: &ExpertGeometry) -> String {
    let stored: Vec<String> = Projection::ALL
        .iter()
        .zip(geometry.quantisation)
        .map(|(projection, quantisation)| format!("{projection:?} {}", storage(quantisation)))
        .collect();
    let same = geometry.quantisation.iter().all(|quantisation| *quantisation == geometry.quantisation[0]);
    let stored = if same { storage(geometry.quantisation[0]) } else { stored.join(", ") };
    let bias = geometry.bias.map_or(String::new(), |bias| format!(", biases {bias:?}"));
    let (hidden, intermediate) = (geometry.hidden, geometry.intermediate);
    format!("hidden {hidden}, intermediate {intermediate}, {stored}{bias}, {:?}", geometry.activation)
}

fn storage(quantisation: Quantisation) -> String {
    match quantisation {
        Quantisation::Affine { bits, group, scales } => {
            format!("affine {bits} bits, groups of {group}, scales {scales:?}")
        }
        Quantisation::Signed { bits, group: None } => format!("signed {bits} bits, one scale per row"),
        Quantisation::Signed { bits, group: Some(group) } => format!("signed {bits} bits, groups of {group}"),
        other => format!("{other:?}"),
    }
}

fn layers(source: &dyn ExpertSource, tier: usize) -> String {
    let own: Vec<_> = source.layers().iter().filter(|layer| layer.tier.index() == tier).collect();
    let experts: u64 = own.iter().map(|layer| u64::from(layer.experts)).sum();
    let range = |(first, last): (LayerId, LayerId)| {
        if first == last { format!("{first}") } else { format!("{first} to {last}") }
    };
    let mut runs: Vec<(LayerId, LayerId)> = Vec::new();
    for layer in &own {
        match runs.last_mut() {
            Some((_, last)) if last.0 + 1 == layer.layer.0 => *last = layer.layer,
            _ => runs.push((layer.layer, layer.layer)),
        }
    }
    let runs: Vec<String> = runs.into_iter().map(range).collect();
    let record_bytes = source.tiers()[tier].layout.record_bytes();
    let all = bytes::show(experts * record_bytes);
    format!("{} layers ({}), {experts} experts, {all}", own.len(), runs.join(", "))
}

/// How many experts need how many reads.
fn reads(source: &dyn ExpertSource, tier: usize) -> String {
    let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
    for key in source::keys(source) {
        let own = source.layers().iter().any(|layer| layer.layer == key.layer && layer.tier.index() == tier);
        if let Some(segments) = source.segments(key).filter(|_| own) {
            *counts.entry(segments.len()).or_default() += 1;
        }
    }
    let counts: Vec<String> = counts.iter().map(|(reads, n)| format!("{reads} for {n} experts")).collect();
    format!("reads per expert: {}", counts.join(", "))
}

fn files(source: &dyn ExpertSource) -> String {
    let mut files: BTreeMap<FileId, u64> = BTreeMap::new();
    for segment in source::keys(source).filter_map(|key| source.segments(key)).flatten() {
        *files.entry(segment.file).or_default() += segment.len_bytes;
    }
    let total: u64 = files.values().sum();
    let on_disk: u64 =
        files.keys().filter_map(|&file| source.path(file).metadata().ok()).map(|file| file.len()).sum();
    let (total, on_disk) = (bytes::show(total), bytes::show(on_disk));
    format!("{} files of {on_disk} hold experts; all their reads are {total}", files.len())
}

fn print_budgets(source: &dyn ExpertSource, args: &Args) {
    let everything = budget::everything(source, args.working) + args.fixed;
    let budgets = match args.budget.as_slice() {
        [] => vec![everything / 4, everything / 2, everything],
        given => given.to_vec(),
    };
    println!("everything resident: {} ({everything} B)", bytes::show(everything));
    for bytes in budgets {
        let budget = Budget { fixed_bytes: args.fixed, working_slots: args.working, ..Budget::new(bytes) };
        match ResidencyPlan::new(source, &budget) {
            Ok(plan) => {
                let resident: u64 = plan.tiers().iter().map(|tier| u64::from(tier.resident_slots())).sum();
                let experts = source::keys(source).count() as u64;
                let share = 100.0 * resident as f64 / experts as f64;
                println!(
                    "\n{} holds {resident} of {experts} experts ({share:.0} %)\n{plan}",
                    bytes::show(bytes)
                );
            }
            Err(refused) => println!("\n{}: {refused}", bytes::show(bytes)),
        }
    }
}
