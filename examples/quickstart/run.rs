//! One run over a trace: the same rows, whatever is resident.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use streamed_experts::{
    BatchPlan, Budget, ExecutorOptions, ExpertSource, Family, Routes, SparseLayer, StreamedExpertExecutor,
    TelemetrySnapshot,
};

use crate::common::{
    Failure,
    timed::Timed,
    trace::{self, Token},
};

/// What one run is given.
pub struct Settings {
    pub budget: Budget,
    pub family: Family,
    pub tokens: usize,
}

/// What one run gave.
pub struct Outcome {
    pub checksum: u64,
    pub hit_rate: f64,
    pub bytes: u64,
    pub reads: u64,
    pub read_gbps: f64,
    pub tokens_per_s: f64,
}

/// Runs `settings.tokens` tokens of `trace` through the source's layers.
///
/// Each token starts from a seeded row; a layer adds its experts' output to it and scales the sum to length √hidden, as
/// a model's residual stream and norm do. The checksum covers every layer's output of every token, bit for bit.
pub fn run(
    source: &Arc<dyn ExpertSource>,
    trace: &[Token],
    settings: &Settings,
    name: &'static str,
) -> Result<Outcome, Failure> {
    let options =
        ExecutorOptions { family: settings.family, ..ExecutorOptions::new(settings.budget.clone()) };
    let timed = Arc::new(Timed::new(Arc::clone(source)));
    let mut executor = StreamedExpertExecutor::open(Arc::<Timed>::clone(&timed), &options)?;
    let layers = source.layers();
    let bar = ProgressBar::new(settings.tokens as u64);
    bar.set_style(ProgressStyle::with_template("{prefix} [{bar:30}] token {pos}/{len}  {msg}")?);
    bar.set_prefix(name);
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut checksum = 0xcbf2_9ce4_8422_2325;
    let start = Instant::now();
    for number in 0..settings.tokens {
        one_token(&mut executor, layers, &trace[number % trace.len()], number as u64, &mut checksum)?;
        bar.inc(1);
        let now = executor.manager().telemetry();
        bar.set_message(format!("{:.0} % hits", 100.0 * hit_rate(&now)));
    }
    let seconds = start.elapsed().as_secs_f64();
    bar.finish();
    let totals = executor.manager().telemetry();
    executor.close()?;
    Ok(Outcome {
        checksum,
        hit_rate: hit_rate(&totals),
        bytes: totals.demand_reads.bytes,
        reads: totals.demand_reads.reads,
        read_gbps: timed.gbps(),
        tokens_per_s: settings.tokens as f64 / seconds,
    })
}

fn one_token(
    executor: &mut StreamedExpertExecutor,
    layers: &[SparseLayer],
    token: &Token,
    seed: u64,
    checksum: &mut u64,
) -> Result<(), Failure> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut row: Vec<f32> = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let hidden = executor.source().tiers()[layer.tier.index()].geometry.hidden as usize;
        if row.len() != hidden {
            row = (0..hidden).map(|_| random.f32() * 2.0 - 1.0).collect();
        }
        let experts = trace::experts(token, index, layer.experts);
        let mut weights: Vec<f32> = experts.iter().map(|_| 0.5 + random.f32()).collect();
        let total: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= total);
        let routes = Routes::from_top_k(1, experts.len(), &experts, &weights, layer.experts)?;
        let plan = BatchPlan::new(&routes, layer.experts)?;
        let out = executor.execute_rows(layer.layer, &row, &plan, None)?;
        for value in &out {
            *checksum = (*checksum ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3);
        }
        residual(&mut row, &out);
    }
    Ok(())
}

/// row + out, scaled to length √hidden.
fn residual(row: &mut [f32], out: &[f32]) {
    let mut square = 0.0;
    for (value, add) in row.iter_mut().zip(out) {
        *value += add;
        square += *value * *value;
    }
    let scale = (square / row.len() as f32 + 1e-6).sqrt().recip();
    row.iter_mut().for_each(|value| *value *= scale);
}

fn hit_rate(totals: &TelemetrySnapshot) -> f64 {
    let all = totals.requests.hits + totals.requests.misses + totals.requests.joined;
    totals.requests.hits as f64 / all.max(1) as f64
}
