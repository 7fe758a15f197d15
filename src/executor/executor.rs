//! The safe door: inputs and routes in, composed rows out.

use std::time::Instant;

use super::{
    ExecuteError, ExecutorOpenError, ExecutorOptions, Family, LayerShape, TierFamily,
    families::{Families, TierCompute, TierForward},
    foresight::{Foresight, ForesightCounts, LAYERS_AHEAD},
    notes::{EndedTurn, Notes, TurnError},
    run_waves,
};
#[cfg(feature = "mlx")]
use crate::mlx::Array;
use crate::{
    ids::{ExpertId, LayerId},
    residency::{CloseError, Lease, ResidencyManager, ResidencyPlan},
    routing::BatchPlan,
    sources::ExpertSource,
    store::ReadPriority,
    sync::Arc,
    usage::{DamagedLedger, UsageLedger},
};

/// Runs the routed experts of a source's layers, streaming those that are not resident.
///
/// An executor serves one caller at a time and may move between threads; [`StreamedExpertExecutor::share`] makes another
/// one on the same slots, so that several requests run at once within one budget. Its [`ResidencyManager`] may be used
/// from any thread meanwhile: for telemetry, for a lower limit under memory pressure.
///
/// The result has the same bits whatever was resident: an expert computes the same rows in every wave it could fall
/// into, and rows are added in rank order, then the shared row.
#[derive(Debug)]
pub struct StreamedExpertExecutor {
    source: Arc<dyn ExpertSource>,
    manager: ResidencyManager,
    tiers: Vec<TierCompute>,
    /// What is read before it is asked for, the oldest first.
    ahead: Vec<Lease>,
    foresight: Foresight,
    /// How often each expert was used, for each of the source's layers.
    usage: Vec<Vec<u64>>,
    notes: Notes,
}

impl StreamedExpertExecutor {
    /// Plans the budget, takes the memory, measures drives that were not measured before (`ReadOptions::calibration`), starts
    /// the readers, and loads pinned experts.
    ///
    /// # Errors
    /// A budget that cannot hold the source or that the machine does not have, a family that cannot compute the
    /// source's formats, memory that the system or MLX refuses, pinned experts that cannot be read.
    pub fn open(source: Arc<dyn ExpertSource>, options: &ExecutorOptions) -> Result<Self, ExecutorOpenError> {
        let plan = ResidencyPlan::new(&*source, &options.budget)?;
        let notes = Notes::open(&*source, options)?;
        let (mut banks, mut tiers) = (Vec::new(), Vec::new());
        let mut families = Families::new(options)?;
        for (tier, sizes) in source.tiers().iter().zip(plan.tiers()) {
            let (bank, compute) = families.tier(tier, sizes.slots())?;
            banks.push(bank);
            tiers.push(compute);
        }
        let manager =
            ResidencyManager::new(Arc::clone(&source), plan, banks, options.policy, &options.manager)?;
        manager.preload_pins()?;
        let usage = source.layers().iter().map(|layer| vec![0; layer.experts as usize]).collect();
        Ok(Self { source, manager, tiers, ahead: Vec::new(), foresight: Foresight::default(), usage, notes })
    }

    /// Another executor on the same slots, readers and budget, for a request in another thread. What one loads is a hit
    /// for the other. They count into one ledger and write routes into one file. Its
    /// [`usage`](StreamedExpertExecutor::usage) begins at 0.
    ///
    /// Nothing is read or allocated for experts. Requests that together want more working slots than there are wait for
    /// one another, holding nothing.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            source: Arc::clone(&self.source),
            manager: self.manager.clone(),
            tiers: self.tiers.clone(),
            ahead: Vec::new(),
            foresight: Foresight::default(),
            usage: self.usage.iter().map(|layer| vec![0; layer.len()]).collect(),
            notes: self.notes.share(),
        }
    }

    /// Where the experts come from.
    #[must_use]
    pub fn source(&self) -> &Arc<dyn ExpertSource> {
        &self.source
    }

    /// Who holds the slots: telemetry, memory pressure, pinned experts.
    #[must_use]
    pub const fn manager(&self) -> &ResidencyManager {
        &self.manager
    }

    /// The family that computes a layer; `None` for a layer without experts.
    #[must_use]
    pub fn family(&self, layer: LayerId) -> Option<Family> {
        self.manager.tier_of(layer).map(|tier| self.tiers[tier.index()].family())
    }

    /// Who computes each tier, in the source's order of tiers.
    #[must_use]
    pub fn families(&self) -> Vec<TierFamily> {
        self.tiers
            .iter()
            .map(|tier| TierFamily { family: tier.family(), instead_of_kernels: tier.instead_of_kernels() })
            .collect()
    }

    /// How often each expert of `layer` has been used by a row of this executor, since it was opened or shared; `None` for
    /// a layer without experts. A forward that fails still counts: its routes were asked for.
    #[must_use]
    pub fn usage(&self, layer: LayerId) -> Option<&[u64]> {
        let index = self.source.layers().binary_search_by_key(&layer, |each| each.layer).ok()?;
        self.usage.get(index).map(Vec::as_slice)
    }

    /// Computes `layer` for `[rows, hidden]` f32 rows: Σ over ranks, in rank order, of weight × expert(row), then the
    /// shared row, unweighted. Blocks until it is done.
    ///
    /// # Errors
    /// Inputs and plan that do not fit each other or the layer, experts that cannot be read, or a family that fails.
    /// After an error nothing stays leased (but see [`ExecuteError::Fence`]) and the executor can be used again.
    pub fn execute_rows(
        &mut self,
        layer: LayerId,
        input: &[f32],
        plan: &BatchPlan,
        shared: Option<&[f32]>,
    ) -> Result<Vec<f32>, ExecuteError> {
        let start = Instant::now();
        let source = Arc::clone(&self.source);
        let shape = LayerShape::find(&*source, layer)?;
        shape.check_rows("input", plan, input.len())?;
        if let Some(shared) = shared {
            shape.check_rows("shared row", plan, shared.len())?;
        }
        shape.check_plan(plan, shared.is_some())?;
        self.record(plan, layer);
        self.foresight.judge(&self.manager, layer, plan);
        let tier = shape.layer.tier.index();
        let mut forward = self.tiers[tier].begin_rows(&shape, plan, input, shared)?;
        run(&self.manager, layer, plan, &mut self.ahead, &mut forward)?;
        let output = forward.into_rows(shared)?;
        self.manager.record_dispatches(self.tiers[tier].take_dispatches());
        self.manager.record_forward(start.elapsed());
        Ok(output)
    }

    /// Computes `layer` for MLX arrays: `input` and `shared` are `[batch, tokens, hidden]` in f32, f16 or bf16, the rows
    /// of the plan being batch × tokens; the result has the input's shape and dtype.
    ///
    /// Expert rows are evaluated before this returns; the sum over ranks is an MLX graph that the caller may go on with.
    /// `shared` may be unevaluated: it is submitted before the first miss is read.
    ///
    /// # Errors
    /// As [`StreamedExpertExecutor::execute_rows`].
    #[cfg(feature = "mlx")]
    pub fn execute(
        &mut self,
        layer: LayerId,
        input: &Array,
        plan: &BatchPlan,
        shared: Option<&Array>,
    ) -> Result<Array, ExecuteError> {
        let start = Instant::now();
        let source = Arc::clone(&self.source);
        let shape = LayerShape::find(&*source, layer)?;
        shape.check_array("input", plan, input)?;
        if let Some(shared) = shared {
            shape.check_array("shared row", plan, shared)?;
        }
        shape.check_plan(plan, shared.is_some())?;
        self.record(plan, layer);
        self.foresight.judge(&self.manager, layer, plan);
        let tier = shape.layer.tier.index();
        let mut forward = self.tiers[tier].begin_array(&shape, plan, input, shared)?;
        run(&self.manager, layer, plan, &mut self.ahead, &mut forward)?;
        let output = forward.into_array(input, shared)?;
        self.manager.record_dispatches(self.tiers[tier].take_dispatches());
        self.manager.record_forward(start.elapsed());
        Ok(output)
    }

    fn record(&mut self, plan: &BatchPlan, layer: LayerId) {
        let Ok(index) = self.source.layers().binary_search_by_key(&layer, |each| each.layer) else { return };
        for job in plan.jobs() {
            let count = &mut self.usage[index][job.expert.index()];
            *count = count.saturating_add(job.rows() as u64);
        }
        self.notes.forward(layer, plan);
    }

    /// What was wrong with the file of the usage ledger, which was begun anew then; it is replaced when it is saved.
    #[must_use]
    pub fn damaged_ledger(&self) -> Option<&DamagedLedger> {
        self.notes.damaged_ledger()
    }

    /// The usage ledger as it is now; `None` if the executor has none.
    #[must_use]
    pub fn ledger(&self) -> Option<UsageLedger> {
        self.notes.ledger()
    }

    /// Ends a turn (a request answered, say): the ledger's heat decays, pinned experts are swapped if that was asked for,
    /// and the ledger is saved. Call it between forwards, once for all executors that share their slots. Does nothing
    /// without a ledger, but to tell that routes could not be written.
    ///
    /// Blocks until the ledger is on disk.
    ///
    /// # Errors
    /// A ledger that could not be saved: what it has counted is kept, and saved by the next call. Routes that could not be
    /// written, told once: recording has ended then.
    pub fn end_turn(&mut self) -> Result<EndedTurn, TurnError> {
        self.notes.end_turn(&self.manager)
    }

    /// Begins to read experts that a later call will want, most likely those of the next layer
    /// ([`LookAhead`](crate::LookAhead) foresees them); call it before the current layer is executed, and they are read
    /// while that computes. `false` if nothing was begun: there are no free working slots for them now, or foresight has
    /// been switched off.
    ///
    /// They are read after what anybody waits for, and nothing is evicted for them. They hold working slots until their
    /// layer is executed, until this is called again for it or for two other layers, or until a layer has to wait for
    /// working slots; so there should be three times as many of these as a row has experts. Those that the layer turns out
    /// not to want are not kept, and not read if that has not begun. Naming no experts gives up all that was begun. Does
    /// not block, and changes no result.
    ///
    /// What is foreseen is compared with what is needed. If less than a quarter of it is right, experts are not read ahead
    /// any more until half of what is foreseen would have been.
    ///
    /// # Errors
    /// A layer or an expert that does not exist, one named twice, more than there are working slots; a closed manager.
    pub fn read_ahead(&mut self, layer: LayerId, experts: &[ExpertId]) -> Result<bool, ExecuteError> {
        if experts.is_empty() {
            self.ahead.clear();
            self.foresight.forget();
            return Ok(false);
        }
        self.ahead.retain(|lease| lease.layer() != layer);
        if self.ahead.len() == LAYERS_AHEAD {
            drop(self.ahead.remove(0));
        }
        let begun = if self.foresight.foresee(&self.manager, layer, experts) {
            self.manager.begin(layer, experts, ReadPriority::Prefetch)?
        } else {
            None
        };
        let any = begun.is_some();
        self.ahead.extend(begun);
        Ok(any)
    }

    /// How well [`StreamedExpertExecutor::read_ahead`] was told what layers needed. What reading ahead cost and saved is in
    /// the manager's telemetry.
    #[must_use]
    pub const fn foresight(&self) -> ForesightCounts {
        self.foresight.counts()
    }

    /// Ends the readers, for every executor that [shares](StreamedExpertExecutor::share) them. Dropping the last of these
    /// does the same.
    ///
    /// # Errors
    /// [`CloseError::Leased`] if somebody holds a lease of the manager.
    pub fn close(mut self) -> Result<(), CloseError> {
        self.ahead.clear();
        self.manager.close()
    }
}

/// The safe point, then every wave.
fn run(
    manager: &ResidencyManager,
    layer: LayerId,
    plan: &BatchPlan,
    ahead: &mut Vec<Lease>,
    forward: &mut TierForward<'_>,
) -> Result<(), ExecuteError> {
    manager.safe_point().map_err(ExecuteError::Pressure)?;
    // Leaked leases make it smaller. With nothing left, the request says so.
    let working = manager.request_limit(layer).unwrap_or(0).max(1) as usize;
    run_waves(manager, layer, plan, working, ahead, forward)
}
