//! The door to residency.

use std::{fmt, io, time::Duration};

use super::{
    admission::Purpose,
    advisor::Advisor,
    cancel::{CancelToken, Wake},
    error::{CloseError, LeaseError, OpenError},
    governor::GovernorOptions,
    lease::Lease,
    plan::ResidencyPlan,
    pressure::Pressure,
    state::{Core, State, TierState},
    table::{Place, Role, SlotState},
    telemetry::TelemetrySnapshot,
};
use crate::{
    ids::{ExpertId, ExpertKey, LayerId, TierId},
    memory::{Bank, LatchedBank},
    policy::{CachePolicy, PolicyLayer, PolicyScope},
    sources::ExpertSource,
    store::{
        Checks, ChecksumMode, DriveTelemetry, LoadErrors, LoadSink, ReadOptions, ReadPriority, ReaderPool,
    },
    sync::{Arc, Condvar, Mutex, MutexGuard, Weak, lock},
    usage::PinSwap,
};

/// More readers than any drive has use for.
const MAX_READERS: u32 = 256;

/// Smaller pieces are not worth a system call; larger ones than this are whole experts of any model.
const PIECE_BYTES: std::ops::Range<u64> = 4096..(1 << 30) + 1;

/// How a manager works. None of it changes a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerOptions {
    /// Threads that read experts, for each drive that the source lies on: the depth at which it is used. Default 4; drives
    /// differ, so measure. Between 1 and 256.
    pub readers: u32,
    /// When the bytes of an expert are compared with the checksum that its source has. Default: the first time it is read,
    /// where the source has one.
    pub checksums: ChecksumMode,
    /// Through the page cache or past it, in pieces of what size, and what happens when a drive stalls.
    pub reading: ReadOptions,
    /// Makes the budget hold while other memory than the slots' grows; acts in [`ResidencyManager::safe_point`].
    /// Default: none, because it takes every byte that the process holds and the budget does not declare
    /// ([`Budget::fixed_bytes`](crate::Budget::fixed_bytes)) off the resident part. An error if the memory of the slots
    /// cannot be given back: MLX's own, on its CPU and CUDA backends.
    pub governor: Option<GovernorOptions>,
    /// Keeps slots from being swapped out or compressed once they are filled. Default: no. If the system refuses (most
    /// let a process wire little), [`ResidencyManager::wiring_refused`] says so, and everything works without.
    pub wire_slots: bool,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            readers: 4,
            checksums: ChecksumMode::default(),
            reading: ReadOptions::default(),
            governor: None,
            wire_slots: false,
        }
    }
}

/// Keeps a bounded set of experts in memory and reads the others on request.
///
/// A handle: clones share one manager. Every method may be called from any thread. The manager ends, and its readers
/// with it, when the last handle and the last lease are gone, or when it is closed.
///
/// Several threads may hold leases at once. A request waits holding nothing, so requests alone cannot deadlock; a thread
/// that already holds a lease should use [`ResidencyManager::try_admit`] for the next one, because what it would wait
/// for may be waiting for what it holds.
#[derive(Clone)]
pub struct ResidencyManager {
    pub(super) inner: Arc<Inner>,
}

/// What every handle and lease keeps alive.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) core: Arc<Core>,
    pub(super) pool: ReaderPool,
    pub(super) pressure: Pressure,
    pub(super) reading: ReadOptions,
    wiring_refused: Option<io::Error>,
    plan: ResidencyPlan,
    layers: Vec<LayerPlace>,
}

/// Where a layer is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerPlace {
    pub(super) layer: LayerId,
    pub(super) tier: TierId,
    /// Its position among the layers of the tier.
    pub(super) position: usize,
    pub(super) experts: u32,
}

impl fmt::Debug for ResidencyManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResidencyManager").field("plan", &self.inner.plan).finish_non_exhaustive()
    }
}

impl ResidencyManager {
    /// A manager for `source` with the slots of `plan` in `banks`, one for each tier in order, and one policy for each
    /// tier from `policy` ([`Lru::boxed`](crate::Lru::boxed), for one). Starts the readers; reads nothing.
    ///
    /// # Errors
    /// A plan for another source, banks that are not as the plan says, an impossible number of readers, checksums asked
    /// for of a source that lacks them, a governor for memory that cannot be given back, or a system that gives no thread.
    pub fn new(
        source: Arc<dyn ExpertSource>,
        plan: ResidencyPlan,
        mut banks: Vec<Bank>,
        mut policy: impl FnMut(&PolicyScope<'_>) -> Box<dyn CachePolicy>,
        options: &ManagerOptions,
    ) -> Result<Self, OpenError> {
        let readers = options.readers;
        if readers == 0 || readers > MAX_READERS {
            return Err(OpenError::Readers { readers, limit: MAX_READERS });
        }
        let piece_bytes = options.reading.piece_bytes;
        let (least_bytes, most_bytes) = (PIECE_BYTES.start, PIECE_BYTES.end - 1);
        if !PIECE_BYTES.contains(&piece_bytes) {
            return Err(OpenError::PieceBytes { piece_bytes, least_bytes, most_bytes });
        }
        check_source(&plan, &*source)?;
        check_banks(&plan, &banks)?;
        let kept = plan.tiers().iter().zip(&banks).find(|(_, bank)| !bank.can_release_memory());
        if let (Some((tier, _)), Some(_)) = (kept, &options.governor) {
            return Err(OpenError::Ungovernable { tier: tier.tier() });
        }
        let wiring = if options.wire_slots { banks.iter_mut().try_for_each(Bank::wire) } else { Ok(()) };
        let checks = Checks::new(&*source, options.checksums);
        let checks = checks.map_err(|key| OpenError::NoChecksum { key, mode: options.checksums })?;
        let banks: Arc<[LatchedBank]> = banks.into_iter().map(LatchedBank::new).collect();
        let advisors = scopes(&plan)
            .into_iter()
            .map(|(tier, layers)| Advisor::new(policy(&PolicyScope { tier, layers: &layers })));
        let state = State::new(&plan, advisors.collect());
        let core =
            Arc::new(Core { banks: Arc::clone(&banks), state: Mutex::new(state), admission: Condvar::new() });
        let sink: Arc<dyn LoadSink> = Arc::clone(&core) as Arc<dyn LoadSink>;
        let slots = plan.tiers().iter().map(|tier| tier.slots() as usize).sum();
        let pool = ReaderPool::start(&source, &banks, &sink, checks, readers, &options.reading, slots)
            .map_err(|source| OpenError::Spawn { readers, source })?;
        let (layers, reading) = (places(&plan), options.reading.clone());
        let pressure = Pressure::new(&plan, options.governor.clone());
        let wiring_refused = wiring.err();
        if let Some(error) = &wiring_refused {
            log::warn!("slots are not wired: the system answered: {error}");
        }
        Ok(Self { inner: Arc::new(Inner { core, pool, pressure, reading, wiring_refused, plan, layers }) })
    }

    /// The plan it was made with.
    #[must_use]
    pub fn plan(&self) -> &ResidencyPlan {
        &self.inner.plan
    }

    /// The bank of a tier, whose slots leases name.
    #[must_use]
    pub fn bank(&self, tier: TierId) -> Option<&Bank> {
        self.inner.core.banks.get(tier.index()).map(LatchedBank::bank)
    }

    /// Why slots are not wired although [`ManagerOptions::wire_slots`] asks for it: what the system answered.
    #[must_use]
    pub fn wiring_refused(&self) -> Option<&io::Error> {
        self.inner.wiring_refused.as_ref()
    }

    /// The tier of a layer; `None` if it has no experts.
    #[must_use]
    pub fn tier_of(&self, layer: LayerId) -> Option<TierId> {
        self.inner.place(layer).ok().map(|place| place.tier)
    }

    /// The most experts that one request for a layer may name: the size of a wave. Less after leases have leaked.
    #[must_use]
    pub fn request_limit(&self, layer: LayerId) -> Option<u32> {
        let place = self.inner.place(layer).ok()?;
        let tier = &self.inner.state().tiers[place.tier.index()];
        Some(tier.working_slots - tier.leaked_working)
    }

    /// Leases `experts` of `layer`, in rank order. Blocks until every hit can be held and every miss has a free working
    /// slot, holding nothing meanwhile; nothing is read yet. Requests are admitted in order of arrival, except that
    /// one that needs no working slot never waits.
    ///
    /// Hits are looked up when the request is admitted. For a request of resident experts this allocates nothing, nor does
    /// the release of its lease, up to 8 leases at once.
    ///
    /// # Errors
    /// Experts or a layer that do not exist, an expert named twice, none at all, or more than there are working slots; a
    /// closed manager.
    pub fn admit(&self, layer: LayerId, experts: &[ExpertId]) -> Result<Lease, LeaseError> {
        self.inner.admit(self.inner.place(layer)?, experts, None, Purpose::Demand)
    }

    /// [`ResidencyManager::admit`], but `token` ends this wait and those of the lease.
    ///
    /// # Errors
    /// As [`ResidencyManager::admit`], and [`LeaseError::Cancelled`].
    pub fn admit_with(
        &self,
        layer: LayerId,
        experts: &[ExpertId],
        token: &CancelToken,
    ) -> Result<Lease, LeaseError> {
        self.inner.admit(self.inner.place(layer)?, experts, Some(token), Purpose::Demand)
    }

    /// [`ResidencyManager::admit`] without waiting: `None` if the request would have to wait for slots, or for its turn.
    /// The way to lease the next wave while one is held.
    ///
    /// # Errors
    /// As [`ResidencyManager::admit`].
    pub fn try_admit(&self, layer: LayerId, experts: &[ExpertId]) -> Result<Option<Lease>, LeaseError> {
        self.inner.try_admit(self.inner.place(layer)?, experts, Purpose::Demand)
    }

    /// Begins to read experts that will be wanted: a lease, its misses asked for with `priority`, or `None` if the request
    /// would have to wait for slots. Does not block.
    ///
    /// Whoever wants them makes a request of his own and releases this one after: what is in memory is a hit then, what is
    /// being read is joined. It is no request in the telemetry, and the policy does not hear of it; an expert that nobody
    /// has asked for when it is released is not kept. Like every lease it holds working slots: give it up before you wait
    /// for others.
    ///
    /// # Errors
    /// As [`ResidencyManager::admit`].
    pub fn begin(
        &self,
        layer: LayerId,
        experts: &[ExpertId],
        priority: ReadPriority,
    ) -> Result<Option<Lease>, LeaseError> {
        let mut lease = self.inner.try_admit(self.inner.place(layer)?, experts, Purpose::Ahead)?;
        match &mut lease {
            Some(lease) => lease.read_ahead(priority),
            None => self.inner.state().telemetry.ahead.refused += experts.len() as u64,
        }
        Ok(lease)
    }

    /// Leases experts, calls `on_hits` before the first miss is asked for, and waits until all are in memory.
    ///
    /// # Errors
    /// As [`ResidencyManager::admit`], and [`LeaseError::Load`] with every expert that could not be loaded.
    pub fn lease_with(
        &self,
        layer: LayerId,
        experts: &[ExpertId],
        on_hits: impl FnOnce(&Lease),
    ) -> Result<Lease, LeaseError> {
        let mut lease = self.admit(layer, experts)?;
        on_hits(&lease);
        lease.wait_all()?;
        Ok(lease)
    }

    /// Loads every pinned expert that is not in memory. Blocks until all reads have ended. Without it, pinned experts are
    /// loaded when they are first asked for.
    ///
    /// # Errors
    /// [`LeaseError::Load`] with every expert that could not be loaded; a closed manager.
    pub fn preload_pins(&self) -> Result<(), LeaseError> {
        let mut leases = Vec::new();
        for layer in self.inner.plan.tiers().iter().flat_map(|tier| tier.layers()) {
            let place = self.inner.place(layer.layer())?;
            let most = self.request_limit(layer.layer()).unwrap_or(0).max(1) as usize;
            for pinned in layer.pinned().chunks(most) {
                let mut lease = self.inner.admit(place, pinned, None, Purpose::Preload)?;
                lease.read_misses();
                leases.push(lease);
            }
        }
        let errors = leases.iter_mut().filter_map(|lease| lease.wait_all().err());
        Ok(LoadErrors::check(errors.flat_map(LoadErrors::into_errors).collect())?)
    }

    /// Whether an expert's bytes are in memory now. Advice only: it may change before a request is admitted.
    #[must_use]
    pub fn is_resident(&self, key: ExpertKey) -> bool {
        let Ok(place) = self.inner.place(key.layer) else { return false };
        if key.expert.0 >= place.experts {
            return false;
        }
        let state = self.inner.state();
        let table = &state.tiers[place.tier.index()].table;
        table
            .find(Place { layer: place.position, expert: key.expert })
            .is_some_and(|slot| table.state(slot) == SlotState::Ready && table.role(slot) != Role::Working)
    }

    /// The experts of a layer whose bytes are in memory between requests, pinned ones included, ascending.
    #[must_use]
    pub fn resident_experts(&self, layer: LayerId) -> Vec<ExpertId> {
        let experts = self.inner.place(layer).map_or(0, |place| place.experts);
        (0..experts).map(ExpertId).filter(|&expert| self.is_resident(ExpertKey::new(layer, expert))).collect()
    }

    /// The pinned experts of a layer, ascending: the plan's, but for those that were swapped. In memory or not.
    #[must_use]
    pub fn pinned_experts(&self, layer: LayerId) -> Vec<ExpertId> {
        let Ok(place) = self.inner.place(layer) else { return Vec::new() };
        self.inner.state().tiers[place.tier.index()].table.pinned(place.position).collect()
    }

    /// Lets resident experts take the place of pinned ones ([`plan_swaps`](crate::plan_swaps)), which are resident then:
    /// nothing is read, moved or freed, and leases are not touched. Swaps that make no sense (any more) are passed over.
    /// How many were made.
    pub fn swap_pins(&self, swaps: &[PinSwap]) -> u64 {
        let mut state = self.inner.state();
        let State { tiers, telemetry, .. } = &mut *state;
        let mut swapped = 0;
        for &PinSwap { layer, pinned, resident } in swaps {
            let Ok(place) = self.inner.place(layer) else { continue };
            if pinned.0.max(resident.0) >= place.experts {
                continue;
            }
            let TierState { table, advisor, .. } = &mut tiers[place.tier.index()];
            let at = |expert| Place { layer: place.position, expert };
            let Some(kept) = table.swap_pin(at(pinned), at(resident)) else { continue };
            advisor.removed(ExpertKey::new(layer, resident), &mut telemetry.policy);
            if kept {
                advisor.inserted(ExpertKey::new(layer, pinned), &mut telemetry.policy);
            }
            swapped += 1;
        }
        telemetry.policy.pin_swaps += swapped;
        swapped
    }

    /// Records how long a whole forward took.
    pub fn record_forward(&self, time: Duration) {
        self.inner.state().telemetry.forward(time);
    }

    /// Records how many of this crate's GPU kernels a forward dispatched.
    pub fn record_dispatches(&self, count: u64) {
        self.inner.state().telemetry.dispatches += count;
    }

    /// What happened since the beginning or the last drain. Takes the table's lock for some microseconds.
    #[must_use]
    pub fn telemetry(&self) -> TelemetrySnapshot {
        let state = self.inner.state();
        state.telemetry.snapshot(state.slot_counts())
    }

    /// [`ResidencyManager::telemetry`], and begins anew: so warm-up is told from steady state.
    #[must_use = "what happened before is forgotten; it is the value returned"]
    pub fn drain_telemetry(&self) -> TelemetrySnapshot {
        let mut state = self.inner.state();
        let snapshot = state.telemetry.snapshot(state.slot_counts());
        state.telemetry.reset();
        snapshot
    }

    /// What was read from each drive since the beginning or the last [`ResidencyManager::drain_drives`], ascending by drive.
    #[must_use]
    pub fn drives(&self) -> Vec<DriveTelemetry> {
        self.inner.pool.drives(false)
    }

    /// [`ResidencyManager::drives`], and begins anew.
    #[must_use = "what happened before is forgotten; it is the value returned"]
    pub fn drain_drives(&self) -> Vec<DriveTelemetry> {
        self.inner.pool.drives(true)
    }

    /// Ends the manager: later requests are refused, requests that wait are refused now, reads under way are waited
    /// for, and the readers end. Memory is freed with the last handle. Does nothing the second time.
    ///
    /// # Errors
    /// While leases are held; nothing has changed then. Leaked leases do not count.
    pub fn close(&self) -> Result<(), CloseError> {
        let mut state = self.inner.state();
        if state.leases > 0 {
            return Err(CloseError::Leased { leases: state.leases });
        }
        state.closed = true;
        self.inner.core.admission.notify_all();
        drop(state);
        self.inner.pool.close();
        Ok(())
    }

    /// Checks the slot tables: for tests, since it takes time in proportion to the number of slots.
    ///
    /// # Panics
    /// If an invariant does not hold: a bug of this crate.
    pub fn check_invariants(&self) {
        let state = self.inner.state();
        state.tiers.iter().for_each(|tier| tier.table.check());
    }
}

impl Inner {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.core.state)
    }

    pub(super) fn plan(&self) -> &ResidencyPlan {
        &self.plan
    }

    fn place(&self, layer: LayerId) -> Result<LayerPlace, LeaseError> {
        let found = self.layers.binary_search_by_key(&layer, |place| place.layer);
        found.map(|at| self.layers[at]).map_err(|_| LeaseError::UnknownLayer { layer })
    }

    /// Warns of the slowest read, if it takes long and that was not said before.
    pub(super) fn warn_of_stall(&self, limit: Duration) {
        if let Some(slowest) = self.pool.newly_stalled(limit) {
            log::warn!("a drive has stalled: {slowest}");
        }
    }

    /// Lets `token` wake this manager's waiters.
    pub(super) fn watch(&self, token: &CancelToken) {
        let watcher: Weak<dyn Wake> = Arc::downgrade(&self.core) as Weak<dyn Wake>;
        token.watch(&watcher);
    }

    /// A token that wakes this manager's waiters.
    pub(super) fn new_token(&self) -> CancelToken {
        let token = CancelToken::new();
        self.watch(&token);
        token
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.pool.close();
    }
}

fn check_source(plan: &ResidencyPlan, source: &dyn ExpertSource) -> Result<(), OpenError> {
    let sizes = source.tiers().iter().map(|tier| tier.layout.slot_bytes());
    if !sizes.eq(plan.tiers().iter().map(|tier| tier.slot_bytes())) {
        return Err(OpenError::ForeignPlan { what: "tiers" });
    }
    let planned = places(plan);
    let given = source.layers().iter().map(|layer| (layer.layer, layer.tier, layer.experts));
    if !given.eq(planned.iter().map(|place| (place.layer, place.tier, place.experts))) {
        return Err(OpenError::ForeignPlan { what: "layers" });
    }
    Ok(())
}

fn check_banks(plan: &ResidencyPlan, banks: &[Bank]) -> Result<(), OpenError> {
    if banks.len() != plan.tiers().len() {
        return Err(OpenError::BankCount { tiers: plan.tiers().len(), banks: banks.len() });
    }
    for (bank, tier) in banks.iter().zip(plan.tiers()) {
        let (slots, slot_bytes) = (bank.slots(), bank.slot_bytes() as u64);
        if (slots, slot_bytes) != (tier.slots(), tier.slot_bytes()) {
            return Err(OpenError::BankShape {
                tier: tier.tier(),
                slots,
                slot_bytes,
                planned_slots: tier.slots(),
                planned_slot_bytes: tier.slot_bytes(),
            });
        }
    }
    Ok(())
}

/// The layers of a plan, ascending.
fn places(plan: &ResidencyPlan) -> Vec<LayerPlace> {
    let mut places: Vec<_> = plan
        .tiers()
        .iter()
        .flat_map(|tier| {
            tier.layers().iter().enumerate().map(|(position, layer)| LayerPlace {
                layer: layer.layer(),
                tier: tier.tier(),
                position,
                experts: layer.experts(),
            })
        })
        .collect();
    places.sort_by_key(|place| place.layer);
    places
}

fn scopes(plan: &ResidencyPlan) -> Vec<(TierId, Vec<PolicyLayer>)> {
    let layers = |tier: &super::plan::TierPlan| {
        let layers = tier.layers().iter().map(|layer| PolicyLayer {
            layer: layer.layer(),
            experts: layer.experts(),
            resident_slots: layer.resident_slots(),
        });
        layers.collect()
    };
    plan.tiers().iter().map(|tier| (tier.tier(), layers(tier))).collect()
}
