//! The right to read some slots until it is released.

use std::time::{Duration, Instant};

use super::{
    admission::Purpose,
    cancel::CancelToken,
    manager::{Inner, LayerPlace},
    table::SlotState,
};
use crate::{
    ids::{ExpertId, ExpertKey, LayerId, SlotRef, TierId},
    memory::ReadRight,
    store::{Load, LoadError, LoadErrors, ReadOptions, ReadPriority},
    sync::{Arc, Condvar, lock, wait_for},
};

/// Waits are not cut shorter than this.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);

/// Experts of one layer, held in their slots.
///
/// Positions are those of the request: 0 is the first expert that was asked for. A *hit* was in memory when the request
/// was admitted; every other position is a *miss*, and is read when [`Lease::read_misses`] is called. While a lease
/// lives, nothing evicts or overwrites its slots, so that a device may read them by slot number.
///
/// A lease may be sent to another thread, and shared to read bytes. Dropping it releases it and forgets errors that
/// were not told; a lease whose slots a device may still read must be [leaked](Lease::leak) instead.
///
/// Bytes cannot be kept beyond the lease:
/// ```compile_fail,E0505
/// fn first_byte(lease: streamed_experts::Lease) -> u8 {
///     let bytes = lease.bytes(0).unwrap();
///     lease.release().unwrap();
///     bytes[0]
/// }
/// ```
#[must_use = "experts are held as long as the lease lives; release it when nothing reads its slots any more"]
#[derive(Debug)]
pub struct Lease {
    pub(super) inner: Arc<Inner>,
    pub(super) place: LayerPlace,
    pub(super) record: usize,
    pub(super) entries: Vec<Entry>,
    pub(super) waited: Duration,
    pub(super) held: bool,
    pub(super) purpose: Purpose,
    wake: Arc<Condvar>,
    token: Option<CancelToken>,
    /// Misses whose end has not been told.
    pending: usize,
    /// With what priority the misses were asked for.
    asked: Option<ReadPriority>,
    /// Why the wait has ended for good, if it has.
    gave_up_for: Option<LoadError>,
}

/// One expert of a lease.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) expert: ExpertId,
    pub(super) slot: SlotRef,
    pub(super) status: Status,
    /// There is one if and only if the status is hit or ready.
    pub(super) right: Option<ReadRight>,
    pub(super) error: Option<LoadError>,
}

/// What a lease knows of one of its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// Was in memory.
    Hit,
    /// Is to be read.
    Waiting,
    /// Has been read.
    Ready,
    /// Could not be read; the slot is not held any more.
    Failed,
}

/// An expert whose bytes are not in memory: its read has not landed, or has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}, at position {position} of its lease, is not in memory")]
pub struct NotReady {
    /// The expert.
    pub key: ExpertKey,
    /// Its position.
    pub position: usize,
}

enum Told {
    Landed(usize, Result<(), LoadError>),
    /// No more will be told.
    GivenUp(LoadError),
}

impl Lease {
    pub(super) fn new(
        inner: Arc<Inner>,
        place: LayerPlace,
        record: usize,
        wake: Arc<Condvar>,
        entries: Vec<Entry>,
        token: Option<CancelToken>,
        purpose: Purpose,
    ) -> Self {
        let pending = entries.iter().filter(|entry| entry.status == Status::Waiting).count();
        Self {
            inner,
            place,
            record,
            entries,
            waited: Duration::ZERO,
            held: true,
            purpose,
            wake,
            token,
            pending,
            asked: None,
            gave_up_for: None,
        }
    }

    /// How many experts it holds: as many as were asked for. Never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a lease is never empty")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The layer of its experts.
    #[must_use]
    pub const fn layer(&self) -> LayerId {
        self.place.layer
    }

    /// The tier of its slots.
    #[must_use]
    pub const fn tier(&self) -> TierId {
        self.place.tier
    }

    /// The expert at a position.
    ///
    /// # Panics
    /// If there is no such position; so do the other methods that take one.
    #[must_use]
    pub fn expert(&self, position: usize) -> ExpertId {
        self.entries[position].expert
    }

    /// The slot that holds, or will hold, the expert at a position. It does not change while the lease lives.
    #[must_use]
    pub fn slot(&self, position: usize) -> SlotRef {
        self.entries[position].slot
    }

    /// Whether the expert at a position was in memory when the request was admitted.
    #[must_use]
    pub fn is_hit(&self, position: usize) -> bool {
        self.entries[position].status == Status::Hit
    }

    /// Whether the bytes at a position can be read: a hit, or a miss that [`Lease::next_ready`] has told of.
    #[must_use]
    pub fn is_ready(&self, position: usize) -> bool {
        self.entries[position].right.is_some()
    }

    /// The positions of the hits, ascending.
    pub fn hits(&self) -> impl Iterator<Item = usize> + '_ {
        self.positions(|status| status == Status::Hit)
    }

    /// The positions of the misses, ascending.
    pub fn misses(&self) -> impl Iterator<Item = usize> + '_ {
        self.positions(|status| status != Status::Hit)
    }

    fn positions(&self, wanted: impl Fn(Status) -> bool) -> impl Iterator<Item = usize> {
        (0..self.entries.len()).filter(move |&position| wanted(self.entries[position].status))
    }

    fn key(&self, position: usize) -> ExpertKey {
        ExpertKey::new(self.place.layer, self.entries[position].expert)
    }

    /// Asks the readers for the misses, in rank order. An expert that another lease has asked for is not read twice.
    /// Does not block on reads; does nothing the second time.
    pub fn read_misses(&mut self) {
        self.ask(ReadPriority::Demand);
    }

    /// Asks the readers for the misses, after those that others ask for with a higher priority. Waiting for them, or
    /// [`Lease::read_misses`], makes them demanded. Does nothing if they were asked for with that priority before.
    pub fn read_ahead(&mut self, priority: ReadPriority) {
        self.ask(priority);
    }

    fn ask(&mut self, priority: ReadPriority) {
        if self.pending == 0 || self.asked.is_some_and(|asked| asked <= priority) {
            return;
        }
        self.asked = Some(priority);
        let mut state = lock(&self.inner.core.state);
        let (tier, pool) = (self.place.tier, &self.inner.pool);
        let table = &mut state.tiers[tier.index()].table;
        for (position, entry) in self.entries.iter().enumerate() {
            let slot = entry.slot.slot;
            // A joined load that has failed already may have left its slot to somebody else: another generation.
            let ours = entry.status == Status::Waiting && table.generation(slot) == entry.slot.generation;
            match table.state(slot) {
                SlotState::Reserved if ours => {
                    table.start(slot);
                    pool.submit(Load { key: self.key(position), tier, slot: entry.slot }, priority);
                }
                SlotState::Loading if ours => pool.promote(tier, entry.slot, priority),
                _ => {}
            }
        }
    }

    /// Waits until another miss has landed, and tells its position; in order of landing. `None` when every miss has
    /// been told. Asks for the misses if that has not been done.
    ///
    /// Blocks until a read ends, the lease's token is cancelled, or the drive has stalled for longer than allowed.
    ///
    /// # Errors
    /// Inside: the expert could not be loaded; the others are not affected. [`LoadError::Cancelled`] if the token is
    /// cancelled, or [`LoadError::Stalled`] if [`ReadOptions::stall_limit`](crate::ReadOptions::stall_limit) is over: once,
    /// and then `None`.
    pub fn next_ready(&mut self) -> Option<Result<usize, LoadError>> {
        self.read_misses();
        if self.pending == 0 || self.gave_up_for.is_some() {
            return None;
        }
        let (told, waited) = self.wait_for_landing();
        self.waited += waited;
        match told {
            Told::Landed(position, result) => Some(self.note(position, result)),
            Told::GivenUp(error) => {
                self.gave_up_for = Some(error.clone());
                Some(Err(error))
            }
        }
    }

    /// [`Lease::next_ready`] without waiting: `None` as well if no other miss has landed up to now.
    ///
    /// # Errors
    /// Inside: as [`Lease::next_ready`]; but neither cancelling nor a stall ends it.
    pub fn try_next_ready(&mut self) -> Option<Result<usize, LoadError>> {
        if self.pending == 0 || self.gave_up_for.is_some() {
            return None;
        }
        let landed = lock(&self.inner.core.state).records[self.record].landed.pop_front();
        landed.map(|(position, result)| self.note(position, result))
    }

    /// Takes note of a miss that has landed.
    fn note(&mut self, position: usize, result: Result<(), LoadError>) -> Result<usize, LoadError> {
        self.pending -= 1;
        let entry = &mut self.entries[position];
        match result {
            Ok(()) => {
                entry.status = Status::Ready;
                entry.right = Some(self.inner.core.banks[self.place.tier.index()].share(entry.slot.slot));
                Ok(position)
            }
            Err(error) => {
                entry.status = Status::Failed;
                entry.error = Some(error.clone());
                Err(error)
            }
        }
    }

    fn wait_for_landing(&self) -> (Told, Duration) {
        let ReadOptions { stall_warning, stall_limit, .. } = self.inner.reading;
        let (mut began, mut next_warning) = (None, stall_warning);
        let mut state = lock(&self.inner.core.state);
        let told = loop {
            if self.token.as_ref().is_some_and(CancelToken::is_cancelled) {
                break Told::GivenUp(LoadError::Cancelled);
            }
            if let Some((position, result)) = state.records[self.record].landed.pop_front() {
                break Told::Landed(position, result);
            }
            let waited = began.get_or_insert_with(Instant::now).elapsed();
            if stall_limit.is_some_and(|limit| waited >= limit) {
                break Told::GivenUp(LoadError::Stalled { waited, slowest: self.inner.pool.slowest() });
            }
            if waited >= next_warning {
                next_warning = waited + stall_warning;
                drop(state);
                self.inner.warn_of_stall(stall_warning);
                state = lock(&self.inner.core.state);
                continue; // what came meanwhile came with its signal
            }
            let until = stall_limit.map_or(next_warning, |limit| limit.min(next_warning));
            state = wait_for(&self.wake, state, (until - waited).max(SHORTEST_LOOK));
        };
        drop(state);
        (told, began.map_or(Duration::ZERO, |began| began.elapsed()))
    }

    /// Waits until every miss has landed. Asks for the misses if that has not been done.
    ///
    /// # Errors
    /// Every expert that could not be loaded, those that [`Lease::next_ready`] told of included, and whether the wait
    /// was cancelled or the drive has stalled. The other experts are held and ready.
    pub fn wait_all(&mut self) -> Result<(), LoadErrors> {
        while self.next_ready().is_some() {}
        let gave_up = self.gave_up_for.clone();
        LoadErrors::check(
            self.entries.iter().filter_map(|entry| entry.error.clone()).chain(gave_up).collect(),
        )
    }

    /// The bytes of the expert at a position: the whole slot, in the tier's layout.
    ///
    /// # Errors
    /// [`NotReady`] before [`Lease::next_ready`] or [`Lease::wait_all`] has told that it has landed.
    pub fn bytes(&self, position: usize) -> Result<&[u8], NotReady> {
        let bank = &self.inner.core.banks[self.place.tier.index()];
        let right = self.entries[position].right.as_ref();
        right.map(|right| bank.bytes(right)).ok_or_else(|| NotReady { key: self.key(position), position })
    }

    /// A token that ends the waits of this lease: the one it was requested with, or a new one.
    pub fn canceller(&mut self) -> CancelToken {
        let inner = &self.inner;
        self.token.get_or_insert_with(|| inner.new_token()).clone()
    }

    /// Gives the experts back: call it when nothing reads their slots any more (after the fence).
    ///
    /// Each expert that was read becomes resident without being copied: its layer has room, or the policy names a
    /// resident expert that gives way, or it is not kept. This is decided in rank order, and no expert of the lease gives
    /// way to another: if more were read than the layer can keep, it keeps the first. Reads that have not begun and that
    /// nobody else waits for are taken back; one that has begun ends into its slot, which is free then.
    ///
    /// Does not block on reads.
    ///
    /// # Errors
    /// Experts that could not be loaded and were not told of. The lease is released all the same.
    pub fn release(mut self) -> Result<(), LoadErrors> {
        LoadErrors::check(self.finish(false))
    }

    /// Keeps the slots whose bytes were ready for ever, because something may still read them (a fence failed).
    ///
    /// Capacity is lost: the slots are never refilled, and the bank's memory is never freed. Counted in telemetry, and
    /// named in the errors of requests that have become too large.
    pub fn leak(mut self) {
        std::mem::forget(Arc::clone(&self.inner));
        drop(self.finish(true));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.held {
            drop(self.finish(false));
        }
    }
}
