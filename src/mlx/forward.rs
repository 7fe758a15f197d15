//! One layer's forward pass on MLX's stock products.

use mlx_rs::{
    Array,
    transforms::{async_eval, eval},
};

use super::{
    MlxError,
    compose::compose,
    stock::{StockRows, StockTier},
};
use crate::{
    compute::{ComputeError, Forward},
    ids::SlotId,
    residency::Lease,
    routing::{BatchPlan, Job},
};

/// Expert rows in the making. Nothing reads a slot after [`Forward::fence`] has returned.
pub(crate) struct StockForward<'a> {
    tier: &'a StockTier,
    plan: &'a BatchPlan,
    x: Array,
    shared: Option<Array>,
    /// Pair numbers and expert outputs, in order of submission.
    parts: Vec<(Vec<u32>, Array)>,
    /// How many of `parts` are known to be evaluated.
    fenced: usize,
}

impl<'a> StockForward<'a> {
    /// Starts the pass: `x` is `[rows, hidden]`; the shared row begins to compute before anything is read.
    pub(crate) fn begin(
        tier: &'a StockTier,
        plan: &'a BatchPlan,
        x: Array,
        shared: Option<Array>,
    ) -> Result<Self, MlxError> {
        async_eval(std::iter::once(&x).chain(&shared))?;
        Ok(Self { tier, plan, x, shared, parts: Vec::new(), fenced: 0 })
    }

    /// The composed rows `[rows, hidden]` in the input's dtype, as a graph over evaluated expert rows.
    pub(crate) fn finish(self) -> Result<Array, MlxError> {
        debug_assert_eq!(self.fenced, self.parts.len(), "composed before the fence");
        compose(self.plan, &self.parts, self.shared.as_ref(), self.tier.hidden(), self.x.dtype())
    }

    fn submit_equal(&mut self, slots: &[SlotId], jobs: &[&Job]) -> Result<(), MlxError> {
        let uses = jobs.iter().flat_map(|job| self.plan.uses(job));
        let (rows, pairs): (Vec<u32>, Vec<u32>) = uses.map(|each| (each.row, each.pair)).unzip();
        let out = self.tier.rows(&self.x, &StockRows { slots, rows: &rows })?;
        self.parts.push((pairs, out));
        Ok(())
    }
}

impl Forward for StockForward<'_> {
    fn each_miss(&self) -> bool {
        false
    }

    fn submit(&mut self, lease: &Lease, wave: &[Job], positions: &[usize]) -> Result<(), ComputeError> {
        let mut positions = positions.to_vec();
        positions.sort_by_key(|&position| (wave[position].rows(), position));
        let first = self.parts.len();
        for equal in positions.chunk_by(|&a, &b| wave[a].rows() == wave[b].rows()) {
            let slots: Vec<SlotId> = equal.iter().map(|&position| lease.slot(position).slot).collect();
            let jobs: Vec<&Job> = equal.iter().map(|&position| &wave[position]).collect();
            self.submit_equal(&slots, &jobs).map_err(ComputeError::new)?;
        }
        async_eval(self.parts[first..].iter().map(|(_, rows)| rows)).map_err(ComputeError::new)
    }

    fn fence(&mut self) -> Result<(), ComputeError> {
        eval(self.parts[self.fenced..].iter().map(|(_, rows)| rows)).map_err(ComputeError::new)?;
        self.fenced = self.parts.len();
        Ok(())
    }
}
