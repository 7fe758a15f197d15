//! `figure NAME VALUE` lines: what the default policy reaches.

use streamed_experts::{Echo, Lru, ReplaySlots, Trace, belady, replay, replay_from};

use super::{
    common::Failure,
    policies::{CASES, POLICIES, TRACES},
};

pub fn print() -> Result<(), Failure> {
    let mut traces = Vec::new();
    for (name, text) in TRACES {
        traces.push((name, Trace::from_text(text)?));
    }
    println!(
        "hit %, cold start        {}  Belady",
        POLICIES.map(|(name, _)| format!("{name:>20}")).join(" ")
    );
    let mut gains = [0.0; POLICIES.len()];
    let (mut closed, mut closed_cold) = (0.0, 0.0);
    for (trace, slots) in CASES {
        let (name, trace) = &traces[trace];
        let sizes = ReplaySlots::PerLayer(slots);
        let rates = POLICIES.map(|(_, policy)| 100.0 * replay(trace, &sizes, policy).total.rate());
        let optimum = 100.0 * belady(trace, &sizes, 0).rate();
        println!(
            "{:24} {}  {optimum:6.2}",
            format!("{name}, {slots} slots"),
            rates.map(|rate| format!("{rate:20.2}")).join(" ")
        );
        for (gain, rate) in gains.iter_mut().zip(rates) {
            *gain += (rate - rates[0]) / CASES.len() as f64;
        }
        closed += second_half(trace, &sizes) / CASES.len() as f64;
        let half = trace.part(trace.forwards() / 2..trace.forwards());
        closed_cold += share(
            replay(&half, &sizes, Lru::boxed).total.rate(),
            replay(&half, &sizes, Echo::boxed).total.rate(),
            belady(&half, &sizes, 0).rate(),
        ) / CASES.len() as f64;
    }
    for ((name, _), gain) in POLICIES.iter().zip(gains).skip(1) {
        println!("{name}: {gain:+.2} points against LRU, mean");
    }
    println!("figure best_policy_vs_lru {:.2}", gains[POLICIES.len() - 1]);
    println!("figure belady_gap_closed {closed:.3}");
    println!("figure belady_gap_closed_cold_half {closed_cold:.3}");
    Ok(())
}

/// The share of the gap that is closed in the second half of a trace, on whose first half the policy was tuned. The
/// first half warms every cache.
fn second_half(trace: &Trace, sizes: &ReplaySlots) -> f64 {
    let middle = trace.forwards() / 2;
    let lru = replay_from(trace, sizes, middle, Lru::boxed).total.rate();
    let echo = replay_from(trace, sizes, middle, Echo::boxed).total.rate();
    share(lru, echo, belady(trace, sizes, middle).rate())
}

fn share(lru: f64, policy: f64, optimum: f64) -> f64 {
    if optimum > lru { (policy - lru) / (optimum - lru) } else { 1.0 }
}
