//! One wave: lease its experts, compute hits while misses are read, fence, release.

use super::ExecuteError;
use crate::{
    compute::Forward,
    ids::{ExpertId, LayerId},
    residency::{Lease, ResidencyManager},
    routing::{BatchPlan, Job},
    store::{LoadError, LoadErrors},
};

/// Runs every wave of `plan`.
///
/// # Errors
/// The first wave that fails ends the pass; what it had submitted is fenced and its lease released before this returns.
pub(crate) fn run_waves<F: Forward>(
    manager: &ResidencyManager,
    layer: LayerId,
    plan: &BatchPlan,
    wave_experts: usize,
    forward: &mut F,
) -> Result<(), ExecuteError> {
    for wave in plan.waves(wave_experts) {
        run_wave(manager, layer, wave, forward)?;
    }
    Ok(())
}

fn run_wave<F: Forward>(
    manager: &ResidencyManager,
    layer: LayerId,
    wave: &[Job],
    forward: &mut F,
) -> Result<(), ExecuteError> {
    let experts: Vec<ExpertId> = wave.iter().map(|job| job.expert).collect();
    let lease = manager.admit(layer, &experts)?;
    let mut work = InFlight { lease: Some(lease), forward };
    let failed = work.submit_all(wave)?;
    work.finish(failed)
}

/// A lease whose slots may be read by work under way. Dropped early, it fences first; if that fails it leaks the lease.
struct InFlight<'a, F: Forward> {
    lease: Option<Lease>,
    forward: &'a mut F,
}

impl<F: Forward> InFlight<'_, F> {
    /// Submits hits, then reads and submits misses; the reads that failed are returned, not the first alone.
    fn submit_all(&mut self, wave: &[Job]) -> Result<Vec<LoadError>, ExecuteError> {
        let Some(lease) = &mut self.lease else { return Ok(Vec::new()) };
        let hits: Vec<usize> = lease.hits().collect();
        if !hits.is_empty() {
            self.forward.submit(lease, wave, &hits)?;
        }
        lease.read_misses();
        let (mut landed, mut failed) = (Vec::new(), Vec::new());
        while let Some(miss) = lease.next_ready() {
            match miss {
                Ok(position) if self.forward.each_miss() => self.forward.submit(lease, wave, &[position])?,
                Ok(position) => landed.push(position),
                Err(error) => failed.push(error),
            }
        }
        if failed.is_empty() && !landed.is_empty() {
            landed.sort_unstable();
            self.forward.submit(lease, wave, &landed)?;
        }
        Ok(failed)
    }

    fn finish(mut self, failed: Vec<LoadError>) -> Result<(), ExecuteError> {
        let Some(lease) = self.lease.take() else { return Ok(()) };
        if let Err(source) = self.forward.fence() {
            lease.leak();
            return Err(ExecuteError::Fence { source });
        }
        let released = lease.release();
        LoadErrors::check(failed).and(released).map_err(ExecuteError::Load)
    }
}

impl<F: Forward> Drop for InFlight<'_, F> {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        if self.forward.fence().is_err() {
            lease.leak();
        }
    }
}
