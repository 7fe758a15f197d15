//! What is asked for, and what must come.

use std::{error::Error, sync::Arc};

use streamed_experts::{
    BatchPlan, Budget, ExecuteError, ExecutorOptions, ExpertSource, Family, LayerId, Routes,
    StreamedExpertExecutor,
};

use crate::checkpoint::{EXPERTS, HIDDEN, LAYERS};

/// Different requests of each layer.
const CASES: usize = 48;
const TOP_K: usize = 4;

/// Requests with the bits of their results.
#[derive(Debug)]
pub(crate) struct Work {
    cases: Vec<Case>,
}

#[derive(Debug)]
struct Case {
    layer: LayerId,
    input: Vec<f32>,
    plan: BatchPlan,
    shared: Option<Vec<f32>>,
    output: Vec<u32>,
}

impl Work {
    /// Computes every case with everything resident and nothing failing.
    pub(crate) fn new(source: Arc<dyn ExpertSource>) -> Result<Self, Box<dyn Error>> {
        let slots = u64::from(LAYERS * EXPERTS + EXPERTS);
        let budget = Budget::new(slots * source.tiers()[0].layout.slot_bytes());
        let options = ExecutorOptions { family: Family::Host, ..ExecutorOptions::new(budget) };
        let mut executor = StreamedExpertExecutor::open(source, &options)?;
        let mut random = fastrand::Rng::with_seed(3);
        let mut cases = Vec::new();
        for layer in 0..LAYERS {
            for _ in 0..CASES {
                let rows = random.usize(1..=3);
                let mut numbers = |count: usize| (0..count).map(|_| random.f32() - 0.5).collect::<Vec<_>>();
                let input = numbers(rows * HIDDEN);
                let shared = (rows == 2).then(|| numbers(rows * HIDDEN));
                let weights = numbers(rows * TOP_K);
                let mut experts = Vec::new();
                for _ in 0..rows {
                    let mut all: Vec<u32> = (0..EXPERTS).collect();
                    random.shuffle(&mut all);
                    // Low numbers more often, as routers have their favourites.
                    all[..3 * TOP_K].sort_unstable();
                    experts.extend(&all[..TOP_K]);
                }
                let routes = Routes::from_top_k(rows, TOP_K, &experts, &weights, EXPERTS)?;
                let (layer, plan) = (LayerId(layer), BatchPlan::new(&routes, EXPERTS)?);
                let output = executor.execute_rows(layer, &input, &plan, shared.as_deref())?;
                cases.push(Case { layer, input, plan, shared, output: bits(&output) });
            }
        }
        executor.close()?;
        Ok(Self { cases })
    }

    /// One request at random; whether its result has the right bits.
    pub(crate) fn request(
        &self,
        executor: &mut StreamedExpertExecutor,
        random: &mut fastrand::Rng,
    ) -> Result<bool, ExecuteError> {
        let case = &self.cases[random.usize(0..self.cases.len())];
        let output = executor.execute_rows(case.layer, &case.input, &case.plan, case.shared.as_deref())?;
        Ok(bits(&output) == case.output)
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
