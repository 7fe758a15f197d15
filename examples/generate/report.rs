//! What is said about a run besides its text.

use std::time::{Duration, Instant};

use serde_json::json;
use streamed_experts::{ResidencyManager, TelemetrySnapshot};

use super::{
    common::{bytes, memory, timed::Timed},
    engine::generate::{Generated, Request},
};

/// A run and what it took.
pub struct Outcome {
    pub text: String,
    pub generated: Generated,
    pub telemetry: TelemetrySnapshot,
    /// GB/s while any read was under way.
    pub read_gbps: f64,
}

/// A line on standard error once a second.
pub struct Live<'a> {
    on: bool,
    /// What ends the text that is being written.
    gap: &'static str,
    source: &'a Timed,
    begin: Instant,
    said: Instant,
    tokens: u32,
}

impl<'a> Live<'a> {
    /// `silent`: no text is being written meanwhile.
    pub fn new(on: bool, silent: bool, source: &'a Timed) -> Self {
        let now = Instant::now();
        let gap = if silent { "" } else { "\n" };
        Self { on, gap, source, begin: now, said: now, tokens: 0 }
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
            eprintln!("{}[{}]", self.gap, line(rate, &manager.telemetry(), self.source.gbps()));
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
                line(generated.tokens_per_s(), &outcome.telemetry, outcome.read_gbps),
                bytes::show(outcome.telemetry.demand_reads.bytes),
            );
        }
    }
}

fn line(tokens_per_s: f64, telemetry: &TelemetrySnapshot, read_gbps: f64) -> String {
    let hits = 100.0 * hit_rate(telemetry);
    format!("{tokens_per_s:.2} tokens/s, {hits:.0} % hits, {read_gbps:.2} GB/s while reading")
}

/// Experts found in memory, of all that were asked for.
pub fn hit_rate(telemetry: &TelemetrySnapshot) -> f64 {
    let requests = &telemetry.requests;
    requests.hits as f64 / (requests.hits + requests.misses + requests.joined).max(1) as f64
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
        "read_gbps": outcome.read_gbps,
        "budget_bytes": budget_bytes,
        "peak_bytes": peak_bytes,
    })
}

/// The streamed run's figures, before anything else can go wrong; whether it stayed within its memory.
pub fn figures(streamed: &Outcome, budget_bytes: u64, peak_bytes: u64, beside_bytes: u64) -> bool {
    let beside = "code, libraries, tokenizer, activations and what MLX keeps for reuse";
    let (held, verdict) = memory::verdict(peak_bytes, budget_bytes, beside_bytes, beside);
    println!("\nmemory: {verdict}");
    for (name, value) in [
        ("peak_bytes", peak_bytes as f64),
        ("budget_bytes", budget_bytes as f64),
        ("overhead_bytes", beside_bytes as f64),
        ("tokens_per_s", streamed.generated.tokens_per_s()),
        ("hit_rate", hit_rate(&streamed.telemetry)),
        ("read_gbps", streamed.read_gbps),
    ] {
        println!("figure {name} {value}");
    }
    held
}

/// The comparison; whether both runs gave the same.
pub fn comparison(streamed: &Outcome, resident: &Outcome) -> bool {
    let equal = streamed.generated.ids == resident.generated.ids;
    println!("\nwhere an expert lives does not change one token: {}", memory::kept(equal));
    println!("figure generate_equal {}", u8::from(equal));
    println!("figure resident_tokens_per_s {}", resident.generated.tokens_per_s());
    equal
}
