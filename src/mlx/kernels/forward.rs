//! One layer's forward pass on our own kernels.

use mlx_rs::{
    Array,
    transforms::{async_eval, eval},
};

use super::tier::{KernelError, KernelTier, Part, Rows};
use crate::{
    compute::{ComputeError, Forward, gpu::GpuExpert},
    residency::Lease,
    routing::{BatchPlan, Job},
};

/// Expert rows in the making. Nothing reads a slot after [`Forward::fence`] has returned.
///
/// A submission that covers the whole plan, no expert being used by two rows, takes two dispatches and is composed already;
/// otherwise each submission takes two and the end takes one. The bits are the same.
pub(crate) struct KernelForward<'a> {
    tier: &'a KernelTier,
    plan: &'a BatchPlan,
    x: Rows,
    shared: Option<Rows>,
    parts: Vec<Part>,
    whole: Option<Array>,
}

impl<'a> KernelForward<'a> {
    /// Starts the pass: `x` and `shared` are `[rows, hidden]` of one type.
    pub(crate) fn begin(
        tier: &'a KernelTier,
        plan: &'a BatchPlan,
        x: &Array,
        shared: Option<&Array>,
    ) -> Result<Self, KernelError> {
        let x = tier.prepare(x, "x")?;
        let shared = shared
            .map(|shared| tier.prepare(&shared.as_dtype(super::custom::dtype(x.kind()))?, "the shared rows"));
        Ok(Self { tier, plan, x, shared: shared.transpose()?, parts: Vec::new(), whole: None })
    }

    /// The composed rows `[rows, hidden]` in the input's type.
    pub(crate) fn finish(self) -> Result<Array, KernelError> {
        match self.whole {
            Some(whole) => Ok(whole),
            None => self.tier.compose(&self.x, self.plan, &self.parts, self.shared.as_ref()),
        }
    }

    fn submit_jobs(&mut self, lease: &Lease, wave: &[Job], positions: &[usize]) -> Result<(), KernelError> {
        let pairs = positions.iter().map(|&position| wave[position].rows()).sum::<usize>();
        let per_tile = GpuExpert::pairs_per_tile(pairs, positions.len());
        let jobs =
            positions.iter().map(|&position| (lease.slot(position).slot, self.plan.uses(&wave[position])));
        let tiles = self.tier.tiles(&self.x, jobs, per_tile)?;
        if pairs == self.plan.pairs() && pairs == positions.len() {
            let whole = self.tier.layer(&self.x, self.plan, &tiles, per_tile, self.shared.as_ref())?;
            async_eval([&whole])?;
            self.whole = Some(whole);
        } else {
            let part = self.tier.rows(&self.x, &tiles, per_tile)?;
            async_eval([&part.rows])?;
            self.parts.push(part);
        }
        Ok(())
    }
}

impl Forward for KernelForward<'_> {
    fn each_miss(&self) -> bool {
        false
    }

    fn submit(&mut self, lease: &Lease, wave: &[Job], positions: &[usize]) -> Result<(), ComputeError> {
        self.submit_jobs(lease, wave, positions).map_err(ComputeError::new)
    }

    fn fence(&mut self) -> Result<(), ComputeError> {
        eval(self.parts.iter().map(|part| &part.rows).chain(&self.whole)).map_err(ComputeError::new)
    }
}
