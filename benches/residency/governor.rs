//! A run within a budget while the rest of the process takes memory away, and gives it back.
//!
//! The budget declares what the process holds when it begins. Then ballast grows beyond that, a little at every token, by a
//! fifth of the budget, stays, and goes. The governor has to keep the footprint within the budget and 2 % at every token,
//! and tokens have to be as fast at the end as before. How fast the machine is meanwhile is told by an executor without a
//! governor that makes the same tokens in turn, in slots of its own: times are divided by its.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use memmap2::MmapMut;
use streamed_experts::{
    Budget, ExecutorOptions, ExpertSource, Family, GovernorOptions, MemoryInfo, StreamedExpertExecutor,
};

use crate::forwards::{self, LAYERS, Tokens};

const MIB: u64 = 1 << 20;
/// Ballast that is taken at one token.
const STEP_BYTES: usize = MIB as usize;
/// Tokens before the ballast, and after all slots are back.
const STEADY: usize = 200;

struct Run {
    executor: StreamedExpertExecutor,
    control: StreamedExpertExecutor,
    tokens: Tokens,
    budget_bytes: u64,
    worst_bytes: u64,
}

impl Run {
    /// One token; how long it took, and how long without a governor.
    fn token(&mut self) -> (Duration, Duration) {
        let token = self.tokens.next();
        let governed = forward(&mut self.executor, &token);
        self.worst_bytes = self.worst_bytes.max(footprint());
        (governed, forward(&mut self.control, &token))
    }

    /// The time of some tokens, and its share of the time without a governor, by medians, which other work on the machine
    /// disturbs less than means.
    fn steady(&mut self) -> (Duration, f64) {
        let times: Vec<_> = (0..STEADY).map(|_| self.token()).collect();
        let mut governed: Vec<_> = times.iter().map(|times| times.0).collect();
        let mut shares: Vec<_> =
            times.iter().map(|(time, control)| time.as_secs_f64() / control.as_secs_f64()).collect();
        governed.sort_unstable();
        shares.sort_unstable_by(f64::total_cmp);
        (governed[STEADY / 2], shares[STEADY / 2])
    }

    fn disabled(&self) -> u64 {
        self.executor.manager().telemetry().slots.disabled
    }
}

fn forward(executor: &mut StreamedExpertExecutor, token: &[Vec<u32>]) -> Duration {
    let began = Instant::now();
    for (layer, experts) in (0..LAYERS).zip(token) {
        forwards::layer(executor, layer, experts);
    }
    began.elapsed()
}

fn footprint() -> u64 {
    MemoryInfo::measure().footprint_bytes.expect("the system says what a process holds")
}

fn open(source: &Arc<dyn ExpertSource>) -> Run {
    let slot_bytes = source.tiers()[0].layout.slot_bytes();
    let slots_bytes = slot_bytes * u64::from(16 + 40 * LAYERS);
    let options = |fixed_bytes| {
        let budget = Budget { fixed_bytes, working_slots: 16, ..Budget::new(fixed_bytes + slots_bytes) };
        ExecutorOptions { family: Family::Host, ..ExecutorOptions::new(budget) }
    };
    let open = |options: &ExecutorOptions| {
        StreamedExpertExecutor::open(Arc::clone(source), options).expect("an executor")
    };
    let mut control = open(&options(0));
    let mut tokens = Tokens::new();
    for _ in 0..STEADY {
        forward(&mut control, &tokens.next()); // fills its slots, which are part of what is fixed for the other
    }
    let mut options = options(footprint() + 4 * MIB); // with threads and activations
    options.manager.governor = Some(GovernorOptions {
        interval: Duration::from_millis(2),
        calm: Duration::from_millis(200),
        ..GovernorOptions::default()
    });
    let budget_bytes = options.budget.budget_bytes;
    Run { executor: open(&options), control, tokens, budget_bytes, worst_bytes: 0 }
}

pub fn print(source: &Arc<dyn ExpertSource>) {
    let mut run = open(source);
    for _ in 0..STEADY {
        run.token(); // fills the slots
    }
    let (before, share_before) = run.steady();
    let mut ballast = Vec::new();
    while ballast.len() as u64 * MIB < run.budget_bytes / 5 {
        let mut step = MmapMut::map_anon(STEP_BYTES).expect("memory for ballast");
        step.fill(1);
        ballast.push(step);
        run.token();
    }
    let ((pressed, _), disabled) = (run.steady(), run.disabled());
    let taken = ballast.len() as u64 * MIB;
    drop(ballast);
    let returned = Instant::now();
    while run.disabled() > 0 && returned.elapsed() < Duration::from_secs(30) {
        run.token();
    }
    let back = returned.elapsed();
    run.steady(); // fills the slots again
    let (after, share_after) = run.steady();
    let worst = run.worst_bytes as f64 / run.budget_bytes as f64;
    let recovered = share_before / share_after;
    println!(
        "governor: a budget of {} MiB, {} MiB taken: {disabled} slots given up, worst footprint {worst:.3} of the budget",
        run.budget_bytes / MIB,
        taken / MIB
    );
    println!(
        "governor: a token takes {before:.1?} before, {pressed:.1?} under pressure, {after:.1?} after; slots are back after \
         {back:.1?}"
    );
    let kept = worst <= 1.02 && disabled > 0 && run.disabled() == 0 && recovered >= 0.95;
    println!("figure governor_worst_footprint {worst:.4}");
    println!("figure governor_recovered_rate {recovered:.3}");
    println!("figure governor {}", u8::from(kept));
}
