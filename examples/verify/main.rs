//! Checks a source: headers, ranges, every expert's bytes, and their checksums where there are any.

#[path = "../common/mod.rs"]
mod common;

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Instant,
};

use clap::Parser;
use common::{Failure, bytes, source};
use indicatif::{ProgressBar, ProgressStyle};
use streamed_experts::{Checksummed, ExpertChecksums, ExpertSource, VerifyOptions, VerifyReport, verify};

/// What a file of checksums is called by default.
const DEFAULT_NAME: &str = "expert-checksums.json";

/// Check a model's experts: headers, ranges, and every byte.
///
/// A slab has a checksum for every expert. For a checkpoint or container, `--write` takes them once, and later runs
/// compare. Exit code 0: sound. 1: damaged. 2: could not be checked.
#[derive(Parser)]
struct Args {
    /// A checkpoint directory (mlx-community layout), a Colibri container, or a slab
    source: PathBuf,
    /// A file of checksums to compare with [default: SOURCE/expert-checksums.json, if it is there]
    #[arg(long, value_name = "FILE")]
    checksums: Option<PathBuf>,
    /// Write a file of checksums, if nothing is bad [default name: SOURCE/expert-checksums.json]
    #[arg(long, value_name = "FILE", conflicts_with = "headers")]
    write: Option<Option<PathBuf>>,
    /// Stop after headers and ranges: read no expert
    #[arg(long)]
    headers: bool,
    /// Threads that read
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Columns per scale of a Colibri container whose byte counts fit several
    #[arg(long, value_name = "COLUMNS")]
    group: Option<u32>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => common::report(&*error),
    }
}

fn run(args: &Args) -> Result<bool, Failure> {
    let source = with_checksums(source::open(&args.source, args.group)?, args)?;
    let experts = source::keys(&*source).count();
    println!(
        "headers and ranges of {}: sound, {} layers, {experts} experts",
        args.source.display(),
        source.layers().len()
    );
    if args.headers {
        return Ok(true);
    }
    let bar = ProgressBar::no_length();
    bar.set_style(ProgressStyle::with_template(
        "reading [{bar:30}] {bytes}/{total_bytes}, {binary_bytes_per_sec}, {eta} left {msg}",
    )?);
    let start = Instant::now();
    let report = verify(&*source, &VerifyOptions { threads: args.threads }, |progress| {
        bar.set_length(progress.all_bytes);
        bar.set_position(progress.done_bytes);
        if progress.bad_records > 0 {
            bar.set_message(format!("({} bad)", progress.bad_records));
        }
        ControlFlow::Continue(())
    });
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let report = report?;
    print_report(&report, seconds, args.write.is_some());
    if let Some(given) = &args.write {
        write(&report, &name(given.as_deref(), &args.source)?)?;
    }
    Ok(report.is_sound())
}

/// `source` with the checksums that were named, or that lie beside it. What is about to be written is not compared with.
fn with_checksums(source: Arc<dyn ExpertSource>, args: &Args) -> Result<Arc<dyn ExpertSource>, Failure> {
    let beside = args.source.join(DEFAULT_NAME);
    let path = match &args.checksums {
        Some(path) => path,
        None if args.write.is_none() && beside.is_file() => &beside,
        None => return Ok(source),
    };
    let checksums = ExpertChecksums::read(path)?;
    println!("comparing with {}", path.display());
    Ok(Arc::new(Checksummed::new(source, checksums)?))
}

fn print_report(report: &VerifyReport, seconds: f64, writing: bool) {
    for bad in &report.bad {
        println!("bad: {bad}");
    }
    let more = report.bad_records.saturating_sub(report.bad.len() as u64);
    if more > 0 {
        println!("bad: {more} more");
    }
    for (path, change) in &report.changed {
        println!("changed: {}: {change}", path.display());
    }
    let rate = report.bytes as f64 / seconds / 1e9;
    println!("read {} in {seconds:.1} s, {rate:.2} GB/s", bytes::show(report.bytes));
    let compared = match report.compared_records {
        0 if writing => "checksums taken".into(),
        0 => "none compared with a checksum: there is none (--write takes them)".into(),
        compared => format!("{compared} compared with their checksums"),
    };
    println!("{} experts read, {compared}, {} bad", report.records, report.bad_records);
}

/// A name that was not given lies in the source, if that is a directory.
fn name(given: Option<&Path>, source: &Path) -> Result<PathBuf, Failure> {
    match given {
        Some(path) => Ok(path.into()),
        None if source.is_dir() => Ok(source.join(DEFAULT_NAME)),
        None => Err("a slab has its checksums; to write them again, give --write a FILE".into()),
    }
}

fn write(report: &VerifyReport, path: &Path) -> Result<(), Failure> {
    let checksums =
        report.checksums.as_ref().ok_or("no checksums are written of a source that is not sound")?;
    checksums.write(path)?;
    println!("wrote {}", path.display());
    Ok(())
}
