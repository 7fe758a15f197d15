//! Runs a fixture's layers through the executor.

#![allow(dead_code, reason = "each test uses a part")]

use std::sync::Arc;

use streamed_experts::{
    BatchPlan, Budget, Colibri, ColibriOptions, ExecutorOptions, ExpertSource, Family, LayerId,
    ResidencyPlan, Routes, StreamedExpertExecutor, open_source,
};

use crate::fixture::{self, Fixture};

/// The families that this build and MLX's default device have.
pub(crate) fn families() -> Vec<Family> {
    let mut families = vec![Family::Host];
    if cfg!(feature = "mlx") {
        families.insert(0, Family::Stock);
    }
    families.extend(Family::of_gpu());
    families
}

/// Every fixture that has answers.
pub(crate) fn fixtures() -> Vec<String> {
    let mut names = fixture::names("oracle.safetensors");
    names.extend(fixture::names("answers.safetensors"));
    names
}

pub(crate) fn source(name: &str) -> Arc<dyn ExpertSource> {
    let directory = fixture::directory(name);
    if name == "colibri-q4-g32-or-48" {
        let options = ColibriOptions { group: Some(32), ..ColibriOptions::default() };
        return Arc::new(Colibri::open_with(directory, &options).unwrap());
    }
    Arc::from(open_source(directory).unwrap())
}

/// One layer's input, routes and shared rows, as the answers have them.
pub(crate) struct LayerCase {
    pub(crate) layer: LayerId,
    pub(crate) input: Vec<f32>,
    pub(crate) hidden: usize,
    pub(crate) plan: BatchPlan,
    pub(crate) shared: Option<Vec<f32>>,
    /// The answers: unweighted `[rows, ranks, hidden]` and composed `[rows, hidden]`.
    pub(crate) expert_rows: Vec<f64>,
    pub(crate) output: Vec<f64>,
    /// A plan that computes each chosen expert alone: one row per (row, rank), weight 1.
    pub(crate) alone: BatchPlan,
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

pub(crate) fn cases(fixture: &Fixture) -> Vec<LayerCase> {
    fixture.layers().into_iter().map(|layer| case(fixture, layer)).collect()
}

fn case(fixture: &Fixture, layer: u32) -> LayerCase {
    let colibri = fixture.name.starts_with("colibri");
    let names = if colibri { ["x", "expert", "out"] } else { ["input", "switch", "output"] };
    let [input, expert_rows, output] = names.map(|name| fixture.answer(layer, name).f64s());
    let indices = fixture.answer(layer, "indices");
    let ranks = *indices.shape.last().unwrap();
    let indices = indices.ids();
    let rows = indices.len() / ranks;
    let experts = fixture.experts();
    let weights = if colibri {
        fixture.answer(layer, "weights").f32s()
    } else {
        let routed = fixture.router(layer).route(&fixture.logits(layer), rows).unwrap();
        let weight =
            |pair: usize| routed.row(pair / ranks).find(|(expert, _)| expert.0 == indices[pair]).unwrap().1;
        (0..indices.len()).map(weight).collect()
    };
    let plan = |rows, ranks, weights: &[f32]| {
        BatchPlan::new(&Routes::from_top_k(rows, ranks, &indices, weights, experts).unwrap(), experts)
            .unwrap()
    };
    LayerCase {
        layer: LayerId(layer),
        hidden: input.len() / rows,
        input: narrow(&input),
        plan: plan(rows, ranks, &weights),
        shared: fixture.shared(layer).map(|rows| narrow(&rows)),
        expert_rows,
        output,
        alone: plan(rows * ranks, 1, &vec![1.0; indices.len()]),
    }
}

impl LayerCase {
    /// The input once per (row, rank).
    pub(crate) fn repeated(&self) -> Vec<f32> {
        let ranks = self.alone.rows() / self.plan.rows();
        self.input.chunks(self.hidden).flat_map(|row| row.repeat(ranks)).collect()
    }
}

/// The smallest budget with which `source` starts, at `working` working slots.
pub(crate) fn smallest_budget(source: &dyn ExpertSource, working: u32) -> u64 {
    let tiers = source.tiers().iter().enumerate().map(|(tier, shape)| {
        let layers = source.layers().iter().filter(|layer| layer.tier.index() == tier);
        let (count, most) =
            layers.fold((0u64, 0), |(count, most), layer| (count + 1, layer.experts.max(most)));
        shape.layout.slot_bytes() * (u64::from(most.min(working)) + count)
    });
    let bytes = tiers.sum();
    let budget = |bytes| Budget { working_slots: working, ..Budget::new(bytes) };
    assert!(ResidencyPlan::new(source, &budget(bytes - 1)).is_err(), "{bytes} B is not the smallest budget");
    bytes
}

/// A budget that holds every expert.
pub(crate) fn whole_budget(source: &dyn ExpertSource) -> u64 {
    let layers = source.layers().iter();
    layers
        .map(|layer| source.tiers()[layer.tier.index()].layout.slot_bytes() * u64::from(2 * layer.experts))
        .sum()
}

pub(crate) struct Setting {
    pub(crate) family: Family,
    pub(crate) budget_bytes: u64,
    pub(crate) working: u32,
    pub(crate) readers: u32,
}

pub(crate) fn open(source: &Arc<dyn ExpertSource>, setting: &Setting) -> StreamedExpertExecutor {
    let budget = Budget { working_slots: setting.working, ..Budget::new(setting.budget_bytes) };
    let mut options = ExecutorOptions { family: setting.family, ..ExecutorOptions::new(budget) };
    options.manager.readers = setting.readers;
    StreamedExpertExecutor::open(Arc::clone(source), &options).unwrap()
}

pub(crate) fn relative_error(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(expected).map(|(&a, b)| f64::from(a) - b)) / norm(&mut expected.iter().copied())
}
