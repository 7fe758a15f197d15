//! Packs the experts of a checkpoint or container into a slab: one aligned read per expert, and a checksum for each.

#[path = "../common/mod.rs"]
mod common;

use std::{
    ops::{ControlFlow, RangeInclusive},
    path::PathBuf,
    process::ExitCode,
};

use clap::Parser;
use common::{Failure, bytes, source};
use indicatif::{ProgressBar, ProgressStyle};
use streamed_experts::{PackOptions, pack};

/// Pack a model's experts into a slab file: one aligned read per expert, and a checksum for each.
///
/// The slab appears under its name only when it is whole. Stopped or killed, the same command goes on where it ended.
#[derive(Parser)]
struct Args {
    /// A checkpoint directory (mlx-community layout), a Colibri container, or a slab
    source: PathBuf,
    /// Where the slab goes; SLAB.partial beside it is what is written meanwhile
    slab: PathBuf,
    /// Layers to pack: 3..20 (20 is not packed), 3..=20 (it is), 3.. and ..20 (open ends), or 7 alone [default: all]
    #[arg(long, value_name = "RANGE", value_parser = parse_layers)]
    layers: Option<RangeInclusive<u32>>,
    /// Replace SLAB if it is there, and begin anew if SLAB.partial was begun from something else
    #[arg(long)]
    force: bool,
    /// Threads that read and write
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Columns per scale of a Colibri container whose byte counts fit several
    #[arg(long, value_name = "COLUMNS")]
    group: Option<u32>,
}

fn parse_layers(text: &str) -> Result<RangeInclusive<u32>, String> {
    let number =
        |text: &str| text.trim().parse::<u32>().map_err(|_| format!("`{text}` is not the number of a layer"));
    let range = match text.split_once("..") {
        None => number(text)?..=number(text)?,
        Some((first, last)) => {
            let first = if first.trim().is_empty() { 0 } else { number(first)? };
            match last.strip_prefix('=') {
                Some(last) => first..=number(last)?,
                None if last.trim().is_empty() => first..=u32::MAX,
                None => first..=number(last)?.checked_sub(1).ok_or("`..0` has no layers")?,
            }
        }
    };
    if range.is_empty() { Err(format!("`{text}` has no layers")) } else { Ok(range) }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => common::report(&*error),
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    let source = source::open(&args.source, args.group)?;
    let options = PackOptions { layers: args.layers.clone(), force: args.force, threads: args.threads };
    let bar = ProgressBar::no_length();
    bar.set_style(ProgressStyle::with_template(
        "packing [{bar:30}] {bytes}/{total_bytes}, {binary_bytes_per_sec}, {eta} left {msg}",
    )?);
    let packed = pack(&*source, &args.slab, &options, |progress| {
        bar.set_length(progress.all_bytes);
        bar.set_position(progress.done_bytes);
        if progress.kept_records > 0 {
            bar.set_message(format!("({} records were there)", progress.kept_records));
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let report = packed?;
    let kept = match report.kept_records {
        0 => String::new(),
        kept => format!(", of which an earlier run had written {kept}"),
    };
    let (size, experts) = (bytes::show(report.file_bytes), report.records);
    println!("{}: {experts} experts{kept}, {size}", report.path.display());
    Ok(())
}
