//! Whole layers of routed experts, through the executor: this crate's kernels beside MLX's stock products.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use streamed_experts::{
    BatchPlan, Budget, ExecutorOptions, ExpertGeometry, ExpertSource, Family, FloatType, LayerId,
    Quantisation, Routes, StreamedExpertExecutor,
    mlx_rs::{Array, Dtype},
};

use crate::{common::Failure, plain::Plain, source::Memory};

const TOP_K: usize = 8;
const LAYER: LayerId = LayerId(0);

/// Experts of GLM-5.2's size.
pub const fn glm_5_2(quantisation: Quantisation) -> ExpertGeometry {
    ExpertGeometry::uniform(6144, 2048, quantisation)
}

/// An executor with every expert resident.
fn resident(source: &Arc<dyn ExpertSource>, family: Family) -> Result<StreamedExpertExecutor, Failure> {
    let experts = source.layers()[0].experts;
    let slots = u64::from(experts) + u64::from(experts.min(32));
    let bytes = source.tiers()[0].layout.slot_bytes() * slots;
    let budget = Budget { working_slots: experts.min(32), ..Budget::new(bytes) };
    let options = ExecutorOptions { family, ..ExecutorOptions::new(budget) };
    Ok(StreamedExpertExecutor::open(Arc::clone(source), &options)?)
}

/// Every row's experts: all different from row to row as far as that goes, from `first` on.
fn plan(
    rows: usize,
    first: usize,
    experts: u32,
    random: Option<&mut fastrand::Rng>,
) -> Result<BatchPlan, Failure> {
    let mut ids: Vec<u32> = (0..experts).collect();
    let mut chosen = Vec::new();
    match random {
        None => chosen.extend((first..first + rows * TOP_K).map(|index| index as u32 % experts)),
        Some(random) => {
            for _ in 0..rows {
                random.shuffle(&mut ids);
                chosen.extend_from_slice(&ids[..TOP_K]);
            }
        }
    }
    let weights = vec![0.125; chosen.len()];
    Ok(BatchPlan::new(&Routes::from_top_k(rows, TOP_K, &chosen, &weights, experts)?, experts)?)
}

fn array(rows: usize, hidden: usize, dtype: Dtype, seed: u64) -> Result<Array, Failure> {
    let mut random = fastrand::Rng::with_seed(seed);
    let values: Vec<f32> = (0..rows * hidden).map(|_| random.f32() * 2.0 - 1.0).collect();
    let array = Array::from_slice(&values, &[1, rows as i32, hidden as i32]).as_dtype(dtype)?;
    array.eval()?;
    Ok(array)
}

fn values(array: &Array) -> Result<Vec<f32>, Failure> {
    let array = array.as_dtype(Dtype::Float32)?;
    array.eval()?;
    Ok(array.as_slice::<f32>().to_vec())
}

/// Half of the times are at most this long.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// One layer's time and dispatches, and what the first of the passes gave.
struct Measured {
    time: Duration,
    dispatches: f64,
    output: Vec<f32>,
}

/// The median of `passes` passes over `plans` in turn, every expert a hit.
fn measure(
    executor: &mut StreamedExpertExecutor,
    plans: &[BatchPlan],
    x: &Array,
    passes: usize,
) -> Result<Measured, Failure> {
    let mut pass = |plan: &BatchPlan| -> Result<Array, Failure> {
        let output = executor.execute(LAYER, x, plan, Some(x))?;
        output.eval()?;
        Ok(output)
    };
    let output = values(&pass(&plans[0])?)?;
    for plan in plans.iter().cycle().take(3 * plans.len()) {
        pass(plan)?;
    }
    let _ = executor.manager().drain_telemetry();
    let mut times = Vec::new();
    for plan in plans.iter().cycle().take(passes) {
        let start = Instant::now();
        let output = executor.execute(LAYER, x, plan, Some(x))?;
        output.eval()?;
        times.push(start.elapsed());
    }
    let telemetry = executor.manager().drain_telemetry();
    if telemetry.requests.misses > 0 {
        return Err(format!("{} experts were not resident", telemetry.requests.misses).into());
    }
    Ok(Measured { time: median(times), dispatches: telemetry.dispatches as f64 / passes as f64, output })
}

fn relative_difference(a: &[f32], b: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(&a, &b)| f64::from(a) - f64::from(b)))
        / norm(&mut b.iter().map(|&value| f64::from(value)))
}

/// The median time of MLX's own layer.
fn measure_plain(plain: &Plain, plans: &[BatchPlan], x: &Array, passes: usize) -> Result<Duration, Failure> {
    let mut times = Vec::new();
    for (pass, plan) in plans.iter().cycle().take(3 * plans.len() + passes).enumerate() {
        let start = Instant::now();
        plain.layer(x, plan)?.eval()?;
        if pass >= 3 * plans.len() {
            times.push(start.elapsed());
        }
    }
    Ok(median(times))
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// M = 1, top 8: other experts in each layer, so that no cache holds them when their turn comes.
pub fn decode(
    name: &str,
    quantisation: Quantisation,
    family: Family,
    experts: u32,
    plain: &Plain,
) -> Result<(), Failure> {
    let memory = Memory::new(glm_5_2(quantisation), experts)?;
    let expert_bytes = memory.expert_bytes();
    let source: Arc<dyn ExpertSource> = Arc::new(memory);
    let x = array(1, 6144, Dtype::Bfloat16, 1)?;
    let plans: Vec<BatchPlan> = (0..experts as usize / TOP_K)
        .map(|layer| plan(1, layer * TOP_K, experts, None))
        .collect::<Result<_, _>>()?;
    let ours = measure(&mut resident(&source, family)?, &plans, &x, 400)?;
    let stock = measure(&mut resident(&source, Family::Stock)?, &plans, &x, 80)?;
    let plain = us(measure_plain(plain, &plans, &x, 80)?);
    let difference = relative_difference(&ours.output, &stock.output);
    let rate = (TOP_K as u64 * expert_bytes) as f64 / ours.time.as_secs_f64() / 1e9;
    println!(
        "  {name}: ours {:.0} us ({rate:.0} GB/s of experts), the stock family {:.0} us, MLX alone {plain:.0} us; \
         ours and stock apart by {difference:.1e}",
        us(ours.time),
        us(stock.time)
    );
    println!("figure {name}_top8_m1_vs_stock {:.2}", plain / us(ours.time));
    println!("figure {name}_top8_m1_vs_stock_family {:.2}", us(stock.time) / us(ours.time));
    println!("figure {name}_dispatches_per_layer {}", ours.dispatches);
    Ok(())
}

/// 256 rows over 64 experts, and fewer rows on the way there.
pub fn prefill(family: Family, plain: &Plain) -> Result<(), Failure> {
    let experts = 64;
    let quantisation = Quantisation::Affine { bits: 4, group: 64, scales: FloatType::Bf16 };
    let source: Arc<dyn ExpertSource> = Arc::new(Memory::new(glm_5_2(quantisation), experts)?);
    let (mut ours, mut stock) = (resident(&source, family)?, resident(&source, Family::Stock)?);
    for rows in [2, 8, 32, 256] {
        let mut random = fastrand::Rng::with_seed(rows as u64);
        let plans = [plan(rows, 0, experts, Some(&mut random))?];
        let x = array(rows, 6144, Dtype::Bfloat16, rows as u64)?;
        let passes = if rows > 32 { 5 } else { 10 };
        let ours = measure(&mut ours, &plans, &x, passes)?;
        let stock = measure(&mut stock, &plans, &x, passes)?;
        let plain = us(measure_plain(plain, &plans, &x, passes)?);
        let difference = relative_difference(&ours.output, &stock.output);
        println!(
            "  M {rows}: ours {:.0} us in {} dispatches, the stock family {:.0} us, MLX alone {plain:.0} us; \
             ours and stock apart by {difference:.1e}",
            us(ours.time),
            ours.dispatches,
            us(stock.time)
        );
        println!("figure gpu_prefill_m{rows}_vs_stock {:.2}", plain.min(us(stock.time)) / us(ours.time));
    }
    Ok(())
}

/// Layers that feed one another, all resident, twice, and streamed through a quarter of the slots: the same bits, no NaN.
pub fn chain(family: Family, iterations: usize) -> Result<(), Failure> {
    let quantisation = Quantisation::Affine { bits: 4, group: 64, scales: FloatType::Bf16 };
    let experts = 32;
    let source: Arc<dyn ExpertSource> =
        Arc::new(Memory::new(ExpertGeometry::uniform(2048, 768, quantisation), experts)?);
    let mut random = fastrand::Rng::with_seed(7);
    let plans: Vec<BatchPlan> =
        (0..16).map(|_| plan(1, 0, experts, Some(&mut random))).collect::<Result<_, _>>()?;
    let small = Budget { working_slots: 8, ..Budget::new(source.tiers()[0].layout.slot_bytes() * 16) };
    let streamed = ExecutorOptions { family, ..ExecutorOptions::new(small) };
    let mut executors = vec![resident(&source, family)?, resident(&source, family)?];
    executors.push(StreamedExpertExecutor::open(Arc::clone(&source), &streamed)?);
    let mut ends = Vec::new();
    for executor in &mut executors {
        let mut x = array(1, 2048, Dtype::Float32, 3)?;
        for plan in plans.iter().cycle().take(iterations) {
            let y = executor.execute(LAYER, &x, plan, Some(&x))?;
            let mean = y.multiply(&y)?.mean(true)?.add(Array::from_f32(1e-6))?;
            x = y.divide(mean.sqrt()?)?;
        }
        ends.push(values(&x)?);
        println!("  chain: {:?}", executor.manager().telemetry().requests);
    }
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let sound =
        ends[0].iter().all(|value| value.is_finite()) && ends.iter().all(|end| bits(end) == bits(&ends[0]));
    println!("figure gpu_chain_{iterations}_same_bits {}", u8::from(sound));
    if sound { Ok(()) } else { Err("chained layers gave other bits the second time, or NaN".into()) }
}
