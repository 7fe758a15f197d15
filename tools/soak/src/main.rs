//! Requests by the hundred thousand, from several threads, over a drive that fails now and then and a budget that
//! changes, every result compared with the fully resident one to the bit. `cargo xtask soak` runs it.

mod checkpoint;
mod faults;
mod system;
mod work;

use std::{
    error::Error,
    ops::ControlFlow,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use streamed_experts::{
    Budget, ChecksumMode, ExecutorOptions, ExpertSource, Family, PackOptions, StreamedExpertExecutor,
    open_source, pack,
};

use crate::{faults::Faulty, system::Samples, work::Work};

/// Slots for misses; fewer than the threads together want, so that they wait for one another.
const WORKING_SLOTS: u32 = 8;
/// Resident experts of each layer at most: a third of them.
const RESIDENT_PER_LAYER: u64 = 10;
const THREADS: u64 = 4;
/// This share of the requests warms up before memory is watched.
const WARM_UP: f64 = 0.25;

#[derive(Parser)]
#[command(about = "Soak test: many requests, faults, a changing budget; every result compared")]
struct Options {
    /// Requests in all
    #[arg(long, default_value_t = 1_000_000)]
    requests: u64,
    /// Stop after so many seconds, whatever has been done
    #[arg(long, default_value_t = 840)]
    seconds: u64,
    /// One read in so many fails, in one of several ways
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    fault_every: u64,
    /// Where chance begins
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let checkpoint = folder.path().join("checkpoint");
    checkpoint::write(&checkpoint)?;
    let slab = folder.path().join("model.slab");
    pack(&*open_source(&checkpoint)?, &slab, &PackOptions::default(), |_| ControlFlow::Continue(()))?;

    let work = Work::new(Arc::from(open_source(&slab)?))?;
    let source = Arc::new(Faulty::new(Arc::from(open_source(&slab)?), options.fault_every, options.seed));
    let layers = source.layers().len() as u64;
    let slot_bytes = source.tiers()[0].layout.slot_bytes();
    let resident_bytes = RESIDENT_PER_LAYER * layers * slot_bytes;
    let budget = Budget {
        working_slots: WORKING_SLOTS,
        ..Budget::new(u64::from(WORKING_SLOTS) * slot_bytes + resident_bytes)
    };
    let mut executor_options = ExecutorOptions { family: Family::Host, ..ExecutorOptions::new(budget) };
    executor_options.manager.checksums = ChecksumMode::Always;
    let shared: Arc<dyn ExpertSource> = Arc::clone(&source) as _;
    let executor = StreamedExpertExecutor::open(shared, &executor_options)?;

    let (done, wrong, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let over = AtomicBool::new(false);
    let deadline = Instant::now() + Duration::from_secs(options.seconds);
    let samples = thread::scope(|scope| {
        for thread in 0..THREADS {
            let mut executor = executor.share();
            let (work, source, done, wrong, failed, over) = (&work, &source, &done, &wrong, &failed, &over);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(options.seed * 1_000 + thread);
                while !over.load(Relaxed) && done.fetch_add(1, Relaxed) < options.requests {
                    match work.request(&mut executor, &mut random) {
                        Ok(true) => {}
                        Ok(false) => drop(wrong.fetch_add(1, Relaxed)),
                        Err(error) => {
                            failed.fetch_add(1, Relaxed);
                            source.reported(&error);
                        }
                    }
                }
            });
        }
        let mut random = fastrand::Rng::with_seed(options.seed);
        let mut samples = Samples::default();
        loop {
            thread::sleep(Duration::from_millis(20));
            let share = random.u64(0..=4);
            executor.manager().set_resident_limit_bytes((share < 4).then_some(resident_bytes * share / 4));
            let so_far = done.load(Relaxed);
            if so_far as f64 >= WARM_UP * options.requests as f64 {
                samples.take(so_far);
            }
            if so_far >= options.requests || Instant::now() >= deadline {
                over.store(true, Relaxed);
                break samples;
            }
        }
    });

    // What the threads left behind.
    let requests = done.load(Relaxed).min(options.requests);
    executor.manager().set_resident_limit_bytes(None);
    executor.manager().safe_point()?;
    executor.manager().check_invariants();
    let slots = executor.manager().telemetry().slots;
    let leaked = slots.leaked + slots.leases;
    let (injected, unreported, unknown) = source.counts(THREADS);
    println!("figure soak_requests {requests}");
    println!("figure soak_failed_requests {}", failed.load(Relaxed));
    println!("figure soak_wrong {}", wrong.load(Relaxed));
    println!("figure soak_leaked_slots {leaked}");
    println!("figure faults_injected {injected}");
    println!("figure faults_unreported {unreported}");
    println!("figure errors_without_fault {unknown}");
    println!("figure rss_slope_bytes_per_1k_requests {:.0}", samples.slope_per_request() * 1_000.0);
    println!("figure rss_range_bytes {}", samples.range_bytes());
    println!("figure descriptors_constant {}", u8::from(samples.descriptors_constant()));
    println!("figure threads_constant {}", u8::from(samples.threads_constant()));
    executor.close()?;
    Ok(wrong.load(Relaxed) == 0
        && leaked == 0
        && unreported == 0
        && unknown == 0
        && injected > 0
        && samples.descriptors_constant()
        && samples.threads_constant()
        && samples.flat(requests))
}
