//! Tokens of a made-up model: what they route to changes slowly, as routes do.

use std::{path::Path, sync::Arc};

use streamed_experts::{
    BatchPlan, ExpertGeometry, ExpertId, ExpertSource, FloatType, LayerId, Quantisation, Routes,
    StreamedExpertExecutor,
};

use crate::records::Records;

pub const LAYERS: u32 = 4;
pub const EXPERTS: u32 = 64;
pub const RANKS: usize = 8;
const HIDDEN: u32 = 1024;
const INTERMEDIATE: u32 = 512;

/// 256 experts of about 0.9 MB in 4 bits.
pub fn source(folder: &Path) -> Arc<dyn ExpertSource> {
    let quantisation = Quantisation::Affine { bits: 4, group: 64, scales: FloatType::Bf16 };
    let geometry = ExpertGeometry::uniform(HIDDEN, INTERMEDIATE, quantisation);
    Arc::new(Records::write(folder, "experts", geometry, LAYERS, EXPERTS).expect("a file of experts"))
}

/// Seeded routes: each layer keeps most of a set of favourites, and sometimes takes another.
pub struct Tokens {
    random: fastrand::Rng,
    favourites: Vec<Vec<u32>>,
}

impl Tokens {
    pub fn new() -> Self {
        let mut random = fastrand::Rng::with_seed(11);
        let favourites = (0..LAYERS).map(|_| random.choose_multiple(0..EXPERTS, 24)).collect();
        Self { random, favourites }
    }

    /// The experts of the next token, by layer.
    pub fn next(&mut self) -> Vec<Vec<u32>> {
        let Self { random, favourites } = self;
        let layers = favourites.iter_mut().map(|favourites| {
            let absent: Vec<_> = (0..EXPERTS).filter(|id| !favourites.contains(id)).collect();
            let at = random.usize(..favourites.len());
            if random.f32() < 0.2 {
                favourites[at] = absent[random.usize(..absent.len())];
            }
            random.choose_multiple(favourites.iter().copied(), RANKS)
        });
        layers.collect()
    }
}

/// One layer of one token.
pub fn layer(executor: &mut StreamedExpertExecutor, layer: u32, experts: &[u32]) {
    let weights = vec![1.0 / RANKS as f32; RANKS];
    let routes = Routes::from_top_k(1, RANKS, experts, &weights, EXPERTS).expect("routes are well formed");
    let plan = BatchPlan::new(&routes, EXPERTS).expect("the plan fits the layer");
    let row = vec![0.5; HIDDEN as usize];
    executor.execute_rows(LayerId(layer), &row, &plan, None).expect("a forward");
}

/// Random experts of a layer.
pub fn any_experts(random: &mut fastrand::Rng) -> Vec<ExpertId> {
    random.choose_multiple(0..EXPERTS, RANKS).into_iter().map(ExpertId).collect()
}
