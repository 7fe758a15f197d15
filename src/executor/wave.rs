//! Waves: while the experts of one are computed, those of the next are read.

use std::{collections::VecDeque, slice};

use super::ExecuteError;
use crate::{
    compute::Forward,
    ids::{ExpertId, LayerId},
    residency::{Lease, ResidencyManager},
    routing::{BatchPlan, Job},
    store::{LoadError, LoadErrors, ReadPriority},
};

/// Runs every wave of `plan`, with `working` working slots. `ahead` is what was read before it was asked for; it is given up
/// as soon as its layer has its first wave, or when a wave has to wait, this layer's last.
///
/// # Errors
/// The first wave that fails ends the pass; what it had submitted is fenced and its lease released before this returns.
pub(crate) fn run_waves<F: Forward>(
    manager: &ResidencyManager,
    layer: LayerId,
    plan: &BatchPlan,
    working: usize,
    ahead: &mut Vec<Lease>,
    forward: &mut F,
) -> Result<(), ExecuteError> {
    // All at once if the slots suffice; else two waves share them, so that one is read while the other computes.
    let experts = if plan.unique_experts() <= working { working } else { working / 2 }.max(1);
    let most_begun = working / experts - 1;
    let mut waves =
        Waves { manager, layer, rest: plan.waves(experts), begun: VecDeque::new(), most_begun, ahead };
    while let Some((wave, lease)) = waves.next()? {
        let mut work = InFlight { lease: Some(lease), forward };
        let failed = work.submit_all(wave, &mut waves)?;
        work.finish(failed)?;
    }
    Ok(())
}

/// The waves that are not under way yet.
struct Waves<'a> {
    manager: &'a ResidencyManager,
    layer: LayerId,
    rest: slice::Chunks<'a, Job>,
    /// Those whose experts are leased and being read.
    begun: VecDeque<(&'a [Job], Lease)>,
    most_begun: usize,
    ahead: &'a mut Vec<Lease>,
}

impl<'a> Waves<'a> {
    /// The next wave, leased. Waits for slots, if it must, holding nothing.
    fn next(&mut self) -> Result<Option<(&'a [Job], Lease)>, ExecuteError> {
        if let Some(begun) = self.begun.pop_front() {
            return Ok(Some(begun));
        }
        let Some(wave) = self.rest.next() else { return Ok(None) };
        let experts = experts(wave);
        let lease = match self.admit_beside_others(&experts)? {
            Some(lease) => lease,
            None => {
                self.ahead.clear();
                self.manager.admit(self.layer, &experts)?
            }
        };
        // What the wave wants of it is held by the wave now.
        self.ahead.retain(|ahead| ahead.layer() != self.layer);
        Ok(Some((wave, lease)))
    }

    /// Leases a wave without waiting, if it must by giving up what was read for other layers.
    fn admit_beside_others(&mut self, experts: &[ExpertId]) -> Result<Option<Lease>, ExecuteError> {
        if let Some(lease) = self.manager.try_admit(self.layer, experts)? {
            return Ok(Some(lease));
        }
        self.ahead.retain(|ahead| ahead.layer() == self.layer);
        Ok(self.manager.try_admit(self.layer, experts)?)
    }

    /// Has further waves read, as far as there are slots.
    fn begin(&mut self) -> Result<(), ExecuteError> {
        while self.begun.len() < self.most_begun {
            let Some(wave) = self.rest.clone().next() else { break };
            let Some(mut lease) = self.manager.try_admit(self.layer, &experts(wave))? else { break };
            lease.read_ahead(ReadPriority::Prefetch);
            self.begun.push_back((wave, lease));
            self.rest.next();
        }
        Ok(())
    }
}

fn experts(wave: &[Job]) -> Vec<ExpertId> {
    wave.iter().map(|job| job.expert).collect()
}

/// A lease whose slots may be read by work under way. Dropped early, it fences first; if that fails it leaks the lease.
struct InFlight<'a, F: Forward> {
    lease: Option<Lease>,
    forward: &'a mut F,
}

impl<F: Forward> InFlight<'_, F> {
    /// Has misses read and the next wave after them, submits hits, and misses as they land or all together; the reads that
    /// failed are returned, not the first alone.
    fn submit_all(&mut self, wave: &[Job], waves: &mut Waves<'_>) -> Result<Vec<LoadError>, ExecuteError> {
        let Some(lease) = &mut self.lease else { return Ok(Vec::new()) };
        let hits: Vec<usize> = lease.hits().collect();
        // A family that only submits has its hits under way before the first read; one that computes before it returns
        // would leave the drive idle.
        if !self.forward.each_miss() && !hits.is_empty() {
            self.forward.submit(lease, wave, &hits)?;
        }
        lease.read_misses();
        waves.begin()?;
        if self.forward.each_miss() && !hits.is_empty() {
            self.forward.submit(lease, wave, &hits)?;
        }
        let (mut landed, mut failed) = (Vec::new(), Vec::new());
        while let Some(miss) = lease.next_ready() {
            // What has landed by now is computed together: one expert alone keeps few threads busy.
            let more = std::iter::from_fn(|| lease.try_next_ready());
            for miss in std::iter::once(miss).chain(more) {
                match miss {
                    Ok(position) => landed.push(position),
                    Err(error) => failed.push(error),
                }
            }
            if self.forward.each_miss() && !landed.is_empty() {
                self.forward.submit(lease, wave, &landed)?;
                landed.clear();
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        compute::ComputeError,
        policy::Lru,
        residency::{Budget, ManagerOptions, ResidencyPlan},
        routing::Routes,
        sources::{ExpertSource, open_source},
        sync::Arc,
    };

    /// Computes nothing; waits in each submission until so many experts have been read as are read when reading goes on
    /// while waves compute.
    struct Patient {
        manager: ResidencyManager,
        each_miss: bool,
        submitted: Vec<ExpertId>,
        all: u64,
        ahead: u64,
    }

    impl Forward for Patient {
        fn each_miss(&self) -> bool {
            self.each_miss
        }

        fn submit(&mut self, lease: &Lease, _: &[Job], positions: &[usize]) -> Result<(), ComputeError> {
            self.submitted.extend(positions.iter().map(|&position| lease.expert(position)));
            let awaited = self.all.min(self.submitted.len() as u64 + self.ahead);
            for _ in 0..4000 {
                if self.manager.telemetry().demand_reads.experts >= awaited {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(ComputeError::new(format!(
                "{awaited} experts were not read while {:?} compute",
                self.submitted
            )))
        }

        fn fence(&mut self) -> Result<(), ComputeError> {
            Ok(())
        }
    }

    #[test]
    fn while_a_wave_computes_the_next_is_read() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen3_moe-affine4-g64-bf16");
        let source: Arc<dyn ExpertSource> = open_source(path).unwrap().into();
        for (working, each_miss, ahead) in
            [(2, true, 1), (4, true, 2), (4, false, 2), (3, true, 2), (1, true, 0)]
        {
            let slots = u64::from(working) + 2;
            let budget = Budget {
                working_slots: working,
                ..Budget::new(slots * source.tiers()[0].layout.slot_bytes())
            };
            let plan = ResidencyPlan::new(&*source, &budget).unwrap();
            let banks = plan.anonymous_banks().unwrap();
            let options = ManagerOptions::default();
            let manager =
                ResidencyManager::new(Arc::clone(&source), plan, banks, Lru::boxed, &options).unwrap();
            let all: Vec<u32> = (0..8).collect();
            let plan = BatchPlan::new(&Routes::from_top_k(1, 8, &all, &[0.125; 8], 8).unwrap(), 8).unwrap();
            let mut forward =
                Patient { manager: manager.clone(), each_miss, submitted: Vec::new(), all: 8, ahead };
            run_waves(&manager, LayerId(0), &plan, working as usize, &mut Vec::new(), &mut forward).unwrap();
            forward.submitted.sort_unstable();
            assert_eq!(forward.submitted, all.into_iter().map(ExpertId).collect::<Vec<_>>());
            assert_eq!(manager.telemetry().slots.leases, 0);
            manager.check_invariants();
        }
    }
}
