//! One layer's forward pass on the host kernels.

use super::{HostFamily, HostJob};
use crate::{
    compute::{ComputeError, Forward},
    formats::{ExpertGeometry, ExpertView, SlotLayout},
    residency::Lease,
    routing::{BatchPlan, Job},
};

/// Expert rows in the making. Work is done when `submit` returns, so the fence has nothing to wait for.
#[derive(Debug)]
pub(crate) struct HostForward<'a> {
    family: &'a HostFamily,
    geometry: &'a ExpertGeometry,
    layout: &'a SlotLayout,
    plan: &'a BatchPlan,
    input: Vec<f32>,
    /// `[pairs, hidden]`.
    rows: Vec<f32>,
}

impl<'a> HostForward<'a> {
    /// Starts the pass for `input`, `[rows, hidden]`.
    pub(crate) fn begin(
        family: &'a HostFamily,
        geometry: &'a ExpertGeometry,
        layout: &'a SlotLayout,
        plan: &'a BatchPlan,
        input: Vec<f32>,
    ) -> Self {
        let rows = vec![f32::NAN; plan.pairs() * geometry.hidden as usize];
        Self { family, geometry, layout, plan, input, rows }
    }

    /// Σ over ranks, in rank order, of weight × row, then the shared row: `[rows, hidden]`.
    pub(crate) fn finish(&self, shared: Option<&[f32]>) -> Vec<f32> {
        compose(self.plan, self.geometry.hidden as usize, &self.rows, shared)
    }
}

impl Forward for HostForward<'_> {
    fn each_miss(&self) -> bool {
        true
    }

    fn submit(&mut self, lease: &Lease, wave: &[Job], positions: &[usize]) -> Result<(), ComputeError> {
        let uses = positions.iter().map(|&position| {
            let uses = self.plan.uses(&wave[position]).iter();
            uses.map(|each| (each.row, each.pair)).unzip::<u32, u32, Vec<_>, Vec<_>>()
        });
        let uses: Vec<_> = uses.collect();
        let mut jobs = Vec::with_capacity(positions.len());
        for (&position, (rows, pairs)) in positions.iter().zip(&uses) {
            let bytes = lease.bytes(position).map_err(ComputeError::new)?;
            let expert = ExpertView::new(self.geometry, self.layout, bytes).map_err(ComputeError::new)?;
            jobs.push(HostJob { expert, rows, pairs });
        }
        self.family.run(&jobs, &self.input, &mut self.rows).map_err(ComputeError::new)
    }

    fn fence(&mut self) -> Result<(), ComputeError> {
        Ok(())
    }
}

fn compose(plan: &BatchPlan, hidden: usize, rows: &[f32], shared: Option<&[f32]>) -> Vec<f32> {
    let mut output = vec![0.0f32; plan.rows() * hidden];
    for (row, sum) in output.chunks_exact_mut(hidden).enumerate() {
        for (rank, term) in plan.row(row).enumerate() {
            let expert = &rows[term.pair as usize * hidden..][..hidden];
            for (sum, &value) in sum.iter_mut().zip(expert) {
                let product = term.weight * value;
                *sum = if rank == 0 { product } else { *sum + product };
            }
        }
        if let Some(shared) = shared {
            let shared = &shared[row * hidden..][..hidden];
            let none = plan.row_pairs(row).is_empty();
            for (sum, &value) in sum.iter_mut().zip(shared) {
                *sum = if none { value } else { *sum + value };
            }
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::ExpertId, routing::Routes};

    #[test]
    fn rows_are_added_in_rank_order_and_the_shared_row_last() {
        let routes = [vec![(ExpertId(1), 0.5), (ExpertId(0), 2.0)], vec![]];
        let plan = BatchPlan::new(&Routes::from_ragged(&routes, 2).unwrap(), 2).unwrap();
        let rows = [1e8, 3.0, -5e7, 0.25];
        let out = compose(&plan, 2, &rows, Some(&[1e-3, 1.0, -0.0, 7.0]));
        // (0.5e8 − 1e8) + 1e-3 in f32, not 0.5e8 + (−1e8 + 1e-3).
        assert_eq!(out[..2], [(0.5f32 * 1e8 + 2.0 * -5e7) + 1e-3, (0.5 * 3.0 + 2.0 * 0.25) + 1.0]);
        assert_eq!((out[2].to_bits(), out[3]), ((-0.0f32).to_bits(), 7.0));
    }
}
