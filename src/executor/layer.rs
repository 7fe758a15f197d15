//! What every forward pass checks before any work.

use super::ExecuteError;
#[cfg(feature = "mlx")]
use crate::mlx::{self, Array};
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

    /// Checks that `plan` asks for experts the layer has, and that no row comes out empty.
    pub(crate) fn check_plan(&self, plan: &BatchPlan, shared: bool) -> Result<(), ExecuteError> {
        let SparseLayer { layer, experts, .. } = self.layer;
        if let Some(job) = plan.jobs().iter().find(|job| job.expert.0 >= experts) {
            return Err(ExecuteError::Expert { layer, expert: job.expert.0, experts });
        }
        match (0..plan.rows()).find(|&row| !shared && !plan.row_has_experts(row)) {
            Some(row) => Err(ExecuteError::EmptyRow { row }),
            None => Ok(()),
        }
    }

    /// Checks that `values` values are the plan's rows of the experts' width.
    pub(crate) fn check_rows(
        &self,
        what: &'static str,
        plan: &BatchPlan,
        values: usize,
    ) -> Result<(), ExecuteError> {
        let hidden = self.geometry().hidden as usize;
        if values == plan.rows() * hidden {
            return Ok(());
        }
        if values.is_multiple_of(hidden) {
            return Err(self.rows_error(what, plan, values / hidden));
        }
        Err(ExecuteError::Width { what, layer: self.layer.layer, width: values / plan.rows(), hidden })
    }

    /// Checks that `array` is `[batch, tokens, hidden]` of a float type, batch × tokens being the plan's rows.
    #[cfg(feature = "mlx")]
    pub(crate) fn check_array(
        &self,
        what: &'static str,
        plan: &BatchPlan,
        array: &Array,
    ) -> Result<(), ExecuteError> {
        let &[batch, tokens, width] = array.shape() else {
            return Err(ExecuteError::Rank { what, shape: array.shape().to_vec() });
        };
        let [batch, tokens, width] = [batch, tokens, width].map(|size| usize::try_from(size).unwrap_or(0));
        let hidden = self.geometry().hidden as usize;
        if width != hidden {
            return Err(ExecuteError::Width { what, layer: self.layer.layer, width, hidden });
        }
        if mlx::float_type(array).is_none() {
            return Err(ExecuteError::Dtype { what, dtype: format!("{:?}", array.dtype()) });
        }
        if batch * tokens != plan.rows() {
            return Err(self.rows_error(what, plan, batch * tokens));
        }
        Ok(())
    }

    fn rows_error(&self, what: &'static str, plan: &BatchPlan, rows: usize) -> ExecuteError {
        let (layer, hidden) = (self.layer.layer, self.geometry().hidden as usize);
        ExecuteError::Rows { what, layer, plan_rows: plan.rows(), rows, hidden }
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
