//! What every forward pass checks before any work.

use super::ExecuteError;
use crate::{
    formats::{ExpertGeometry, SlotLayout},
    ids::LayerId,
    routing::BatchPlan,
    sources::{ExpertSource, SparseLayer, Tier},
};

/// A layer of a source with its tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerShape<'a> {
    pub(crate) layer: SparseLayer,
    tier: &'a Tier,
}

impl<'a> LayerShape<'a> {
    /// Looks `layer` up.
    pub(crate) fn find(source: &'a dyn ExpertSource, layer: LayerId) -> Result<Self, ExecuteError> {
        let layers = source.layers();
        let Ok(index) = layers.binary_search_by_key(&layer, |each| each.layer) else {
            return Err(ExecuteError::Layer { layer, known: ranges(layers) });
        };
        let layer = layers[index];
        Ok(Self { layer, tier: &source.tiers()[layer.tier.index()] })
    }

    pub(crate) const fn geometry(&self) -> &'a ExpertGeometry {
        &self.tier.geometry
    }

    pub(crate) const fn layout(&self) -> &'a SlotLayout {
        &self.tier.layout
    }

    /// Checks that `plan` routes `rows` rows to experts the layer has, and that no row comes out empty.
    pub(crate) fn check_plan(&self, plan: &BatchPlan, rows: usize, shared: bool) -> Result<(), ExecuteError> {
        if plan.rows() != rows {
            return Err(ExecuteError::Rows { what: "input", plan_rows: plan.rows(), rows });
        }
        let SparseLayer { layer, experts, .. } = self.layer;
        if let Some(job) = plan.jobs().iter().find(|job| job.expert.0 >= experts) {
            return Err(ExecuteError::Expert { layer, expert: job.expert.0, experts });
        }
        match (0..rows).find(|&row| !shared && !plan.row_has_experts(row)) {
            Some(row) => Err(ExecuteError::EmptyRow { row }),
            None => Ok(()),
        }
    }

    /// Checks that rows of `width` are what the experts take.
    pub(crate) fn check_width(&self, what: &'static str, width: usize) -> Result<(), ExecuteError> {
        let hidden = self.geometry().hidden as usize;
        if width == hidden {
            return Ok(());
        }
        Err(ExecuteError::Width { what, layer: self.layer.layer, width, hidden })
    }
}

/// The layers as people write them: `L3 to L77, L79`.
fn ranges(layers: &[SparseLayer]) -> String {
    let runs = layers.chunk_by(|a, b| b.layer.0 == a.layer.0 + 1);
    let names = runs.map(|run| match run {
        [one] => one.layer.to_string(),
        [first, .., last] => format!("{} to {}", first.layer, last.layer),
        [] => String::new(),
    });
    names.collect::<Vec<_>>().join(", ")
}
