//! The safe door: inputs and routes in, composed rows out.

use std::time::Instant;

use super::{ExecuteError, ExecutorOptions, Family, LayerShape, OpenError, run_waves};
use crate::{
    formats::ExpertGeometry,
    ids::LayerId,
    memory::Bank,
    residency::{ResidencyManager, ResidencyPlan},
    routing::BatchPlan,
    sources::ExpertSource,
    sync::Arc,
};
#[cfg(feature = "mlx")]
use crate::mlx::{self, Array, StockTier};

/// Runs the routed experts of a source's layers, streaming those that are not resident.
///
/// One executor serves one thread at a time (MLX's arrays are not `Sync`), but it may move between threads, and
/// [`ResidencyManager`] may be asked for telemetry or told of memory pressure from any thread.
#[derive(Debug)]
pub struct StreamedExpertExecutor {
    source: Arc<dyn ExpertSource>,
    manager: Arc<ResidencyManager>,
    tiers: Vec<TierCompute>,
    usage: Vec<Vec<u64>>,
}

/// What computes the experts of one tier.
#[derive(Debug)]
enum TierCompute {
    #[cfg(feature = "mlx")]
    Stock(StockTier),
    Host,
}

impl StreamedExpertExecutor {
    /// Plans the budget, takes the memory, and starts the readers. Nothing is read until the first forward, except
    /// pinned experts.
    ///
    /// # Errors
    /// A budget that cannot hold the source or that the machine does not have, a family that cannot compute the
    /// source's formats, memory that the system or MLX refuses.
    pub fn open(source: Arc<dyn ExpertSource>, options: ExecutorOptions) -> Result<Self, OpenError> {
        let plan = ResidencyPlan::new(&*source, &options.budget)?;
        let mut banks = Vec::new();
        let mut tiers = Vec::new();
        for (tier, sizes) in source.tiers().iter().zip(plan.tiers()) {
            let family = options.family.resolve(&tier.geometry)?;
            let (bank, compute) = TierCompute::new(family, tier, sizes.slots())?;
            banks.push(bank);
            tiers.push(compute);
        }
        let manager = Arc::new(ResidencyManager::new(Arc::clone(&source), plan, banks, options.manager)?);
        manager.preload_pins()?;
        let usage = source.layers().iter().map(|layer| vec![0; layer.experts as usize]).collect();
        Ok(Self { source, manager, tiers, usage })
    }

    /// Where the experts come from.
    #[must_use]
    pub fn source(&self) -> &Arc<dyn ExpertSource> {
        &self.source
    }

    /// Who holds the slots: telemetry, pressure, pins.
    #[must_use]
    pub fn manager(&self) -> &Arc<ResidencyManager> {
        &self.manager
    }
}
