//! What is said about a run besides its text.

use std::time::{Duration, Instant};

use serde_json::json;
use streamed_experts::{ResidencyManager, TelemetrySnapshot};

use super::{
    common::bytes,
    engine::generate::{Generated, Request},
};

/// A run and what it took.
pub struct Outcome {
    pub text: String,
    pub generated: Generated,
    pub telemetry: TelemetrySnapshot,
}

/// A line on standard error once a second.
pub struct Live {
    on: bool,
    begin: Instant,
    said: Instant,
    tokens: u32,
}

impl Live {
    pub fn new(on: bool) -> Self {
        let now = Instant::now();
        Self { on, begin: now, said: now, tokens: 0 }
    }

    /// After each token.
    pub fn token(&mut self, manager: &ResidencyManager) {
        if self.tokens == 0 {
            self.begin = Instant::now();
        }
        self.tokens += 1;
        if self.on && self.said.elapsed() >= Duration::from_secs(1) {
            self.said = Instant::now();
            let rate = f64::from(self.tokens - 1) / self.begin.elapsed().as_secs_f64();
            eprintln!("\n[{}]", line(rate, &manager.telemetry()));
        }
    }

    /// After the last.
    pub fn end(&self, outcome: &Outcome) {
        if self.on {
            let generated = &outcome.generated;
            eprintln!(
                "[{} tokens, the first after {:.2} s; {}; {} read]",
                generated.ids.len(),
                generated.prefill.as_secs_f64(),
                line(generated.tokens_per_s(), &outcome.telemetry),
                bytes::show(outcome.telemetry.demand_reads.bytes),
            );
        }
    }
}

fn line(tokens_per_s: f64, telemetry: &TelemetrySnapshot) -> String {
    let (hits, rate) = (100.0 * hit_rate(telemetry), read_gbps(telemetry));
    format!("{tokens_per_s:.2} tokens/s, {hits:.0} % hits, {rate:.2} GB/s while reading")
}

/// Experts found in memory, of all that were asked for.
pub fn hit_rate(telemetry: &TelemetrySnapshot) -> f64 {
    let requests = &telemetry.requests;
    requests.hits as f64 / (requests.hits + requests.misses + requests.joined).max(1) as f64
}

/// Bytes read per nanosecond of waiting for them.
fn read_gbps(telemetry: &TelemetrySnapshot) -> f64 {
    telemetry.demand_reads.bytes as f64 / telemetry.wait_time.total_ns.max(1) as f64
}

/// The run as one JSON object.
pub fn json(request: &Request, outcome: &Outcome, budget_bytes: u64, peak_bytes: u64) -> serde_json::Value {
    let generated = &outcome.generated;
    json!({
        "text": outcome.text,
        "ids": generated.ids,
        "prompt_tokens": request.prompt.len(),
        "prefill_s": generated.prefill.as_secs_f64(),
        "decode_s": generated.decode.as_secs_f64(),
        "tokens_per_s": generated.tokens_per_s(),
        "hit_rate": hit_rate(&outcome.telemetry),
        "read_bytes": outcome.telemetry.demand_reads.bytes,
        "read_gbps": read_gbps(&outcome.telemetry),
        "budget_bytes": budget_bytes,
        "peak_bytes": peak_bytes,
    })
}

/// The comparison with the resident run; whether both gave the same.
pub fn figures(streamed: &Outcome, resident: &Outcome, budget_bytes: u64, peak_bytes: u64) -> bool {
    let equal = streamed.generated.ids == resident.generated.ids;
    let verdict = if equal { "kept" } else { "BROKEN" };
    println!("\nwhere an expert lives does not change one token: {verdict}");
    for (name, value) in [
        ("generate_equal", f64::from(u8::from(equal))),
        ("peak_bytes", peak_bytes as f64),
        ("budget_bytes", budget_bytes as f64),
        ("tokens_per_s", streamed.generated.tokens_per_s()),
        ("resident_tokens_per_s", resident.generated.tokens_per_s()),
        ("hit_rate", hit_rate(&streamed.telemetry)),
    ] {
        println!("figure {name} {value}");
    }
    equal
}
