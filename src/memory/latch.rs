//! Who may touch the bytes of a slot: one loader (or several, each its own part of it), or any number of readers.
//!
//! The slot table decides which slot is loaded or leased. This file does not trust it: each slot has a latch, and a
//! table that is wrong panics here instead of letting a reader see a slot change.
//!
//! # Soundness
//! *Type*, *initialisation*: plain bytes, initialised, by the bank's invariants 1 and 2. *Lifetime*: bytes are borrowed
//! from the bank and from a right, invariant 3. *Bounds*: the bank checks the slot number. *Threads*: invariants 1 and
//! 2 exclude a writer beside anyone else; work that reads a slot through the bank's own pointer (a device) is covered
//! by the contract of the bank's `unsafe` methods.
#![allow(unsafe_code)]

use std::{fmt, ops::Range};

use super::bank::Bank;
use crate::{
    ids::{SlotId, TierId},
    sync::{
        Arc, Mutex, Numbers,
        atomic::{
            AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
        lock,
    },
};

/// The latch of a slot that is being filled. Every other value counts rights to read.
const FILLING: u32 = u32::MAX;

/// What a freed slot holds in debug builds until it is filled again, so that stale use shows.
const POISON: u8 = 0xA5;

/// A bank with one latch per slot.
///
/// # Invariants
/// 1. A latch is [`FILLING`] exactly while one [`Filling`], or one [`PartedFilling`] or part of it, of its slot exists;
///    otherwise it is the number of [`ReadRight`]s made for the slot and not given back. A right that is dropped counts
///    for ever.
/// 2. A right names its bank by `id`, which no other bank of the process has.
/// 3. Bytes are handed out only against a borrow of the bank and of a right or a `Filling`, or of a part, and giving any
///    of them back consumes it.
/// 4. The parts of one `PartedFilling` that exist at the same time do not overlap, and lie inside the slot.
pub(crate) struct LatchedBank {
    bank: Bank,
    latches: Box<[AtomicU32]>,
    id: u64,
}

impl fmt::Debug for LatchedBank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bank.fmt(f)
    }
}

/// The right to read one slot until it is given back. Dropping it loses the slot, never the bytes.
#[derive(Debug)]
#[must_use = "a right that is dropped keeps its slot for ever"]
pub(crate) struct ReadRight {
    bank: u64,
    slot: SlotId,
}

/// The right to write one slot. Dropping it ends the filling.
#[derive(Debug)]
pub(crate) struct Filling<'a> {
    bank: &'a LatchedBank,
    slot: SlotId,
}

impl LatchedBank {
    pub(crate) fn new(bank: Bank) -> Self {
        static NEXT_ID: Numbers = Numbers::new(0);
        let latches = (0..bank.slots()).map(|_| AtomicU32::new(0)).collect();
        Self { bank, latches, id: NEXT_ID.fetch_add(1, Relaxed) }
    }

    pub(crate) const fn bank(&self) -> &Bank {
        &self.bank
    }

    /// A right to read `slot`.
    ///
    /// # Panics
    /// If the slot is being filled: a bug of the slot table.
    pub(crate) fn share(&self, slot: SlotId) -> ReadRight {
        let Some(right) = self.try_share(slot) else { panic!("{slot} is leased while it is being filled") };
        right
    }

    fn try_share(&self, slot: SlotId) -> Option<ReadRight> {
        // Acquire pairs with the Release of a filling's end: the bytes it wrote are visible.
        let shared =
            self.latches[slot.index()].fetch_update(Acquire, Relaxed, |n| (n < FILLING - 1).then(|| n + 1));
        shared.is_ok().then_some(ReadRight { bank: self.id, slot })
    }

    /// Gives a right back.
    pub(crate) fn unshare(&self, right: ReadRight) {
        assert_eq!(right.bank, self.id, "a right of another bank");
        // Release pairs with the Acquire of `fill`: reads under the right are over before the slot is written.
        self.latches[right.slot.index()].fetch_sub(1, Release);
    }

    /// The bytes of the slot of `right`.
    pub(crate) fn bytes<'a>(&'a self, right: &'a ReadRight) -> &'a [u8] {
        assert_eq!(right.bank, self.id, "a right of another bank");
        // SAFETY: `right` is of this bank by invariant 2 and not given back while it is borrowed (3), so that the latch
        // counts it and no `Filling` of the slot exists (1).
        unsafe { self.bank.slot(right.slot) }
    }

    /// The right to write `slot`.
    ///
    /// # Panics
    /// If somebody reads or fills it: a bug of the slot table.
    pub(crate) fn fill(&self, slot: SlotId) -> Filling<'_> {
        self.begin(slot);
        Filling { bank: self, slot }
    }

    fn begin(&self, slot: SlotId) {
        assert!(self.try_begin(slot), "{slot} is refilled while it is leased or being filled");
    }

    fn try_begin(&self, slot: SlotId) -> bool {
        // Acquire pairs with the Release of `unshare` and of a filling's end.
        self.latches[slot.index()].compare_exchange(0, FILLING, Acquire, Relaxed).is_ok()
    }

    fn end(&self, slot: SlotId) {
        // Release pairs with the Acquire of `share` and `fill`.
        self.latches[slot.index()].store(0, Release);
    }
}

/// The right to write one slot, in parts that several threads may hold at once. Ends when it and its last part are dropped:
/// a part that never comes back keeps the slot for ever.
#[derive(Debug)]
pub(crate) struct PartedFilling(Arc<Parted>);

#[derive(Debug)]
struct Parted {
    banks: Arc<[LatchedBank]>,
    tier: TierId,
    slot: SlotId,
    /// The parts that exist.
    taken: Mutex<Vec<Range<usize>>>,
}

/// The right to write some bytes of a slot.
#[derive(Debug)]
pub(crate) struct SlotPart {
    filling: Arc<Parted>,
    range: Range<usize>,
}

impl PartedFilling {
    /// The right to write `slot` of the bank of `tier`.
    ///
    /// # Panics
    /// As [`LatchedBank::fill`].
    pub(crate) fn begin(banks: &Arc<[LatchedBank]>, tier: TierId, slot: SlotId) -> Self {
        banks[tier.index()].begin(slot);
        Self(Arc::new(Parted { banks: Arc::clone(banks), tier, slot, taken: Mutex::default() }))
    }

    /// The right to write `range` of the slot.
    ///
    /// # Panics
    /// If it leaves the slot or overlaps another part that exists: a bug of the store.
    pub(crate) fn part(&self, range: Range<usize>) -> SlotPart {
        let Parted { banks, tier, slot, taken } = &*self.0;
        let slot_bytes = banks[tier.index()].bank.slot_bytes();
        assert!(
            range.start <= range.end && range.end <= slot_bytes,
            "{range:?} of {slot}, of {slot_bytes} B"
        );
        let mut taken = lock(taken);
        let clash = taken.iter().find(|other| other.start < range.end && range.start < other.end);
        assert!(clash.is_none(), "{range:?} of {slot} overlaps {clash:?}, which is being filled");
        taken.push(range.clone());
        drop(taken);
        SlotPart { filling: Arc::clone(&self.0), range }
    }

    /// The whole slot.
    ///
    /// # Panics
    /// While any other part exists.
    pub(crate) fn whole(&self) -> SlotPart {
        self.part(0..self.0.banks[self.0.tier.index()].bank.slot_bytes())
    }
}

impl SlotPart {
    /// The bytes of the part.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let Parted { banks, tier, slot, .. } = &*self.filling;
        // SAFETY: by invariant 1 nobody has a right to read the slot or another filling of it, as `filling` lives; other
        // parts are apart from this one (4), `range` lies inside the slot (4), and `&mut self` makes this the only borrow.
        // Only this range is touched: the slice of the whole slot is never made.
        unsafe { banks[tier.index()].bank.part_mut(*slot, self.range.clone()) }
    }

    /// Overwrites the part with a pattern, in debug builds.
    pub(crate) fn poison(&mut self) {
        if cfg!(debug_assertions) {
            self.bytes().fill(POISON);
        }
    }
}

impl Drop for SlotPart {
    fn drop(&mut self) {
        let mut taken = lock(&self.filling.taken);
        if let Some(at) = taken.iter().position(|range| *range == self.range) {
            taken.swap_remove(at);
        }
    }
}

impl Drop for Parted {
    fn drop(&mut self) {
        self.banks[self.tier.index()].end(self.slot);
    }
}

impl Filling<'_> {
    /// The bytes of the slot.
    #[cfg(test)]
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: by invariant 1 this is the only filling of the slot and nobody has a right to read it; `&mut self`
        // makes this the only borrow.
        unsafe { self.bank.bank.slot_mut(self.slot) }
    }

    /// Gives the memory of the slot back to the system.
    pub(crate) fn release_memory(self) -> std::io::Result<()> {
        // SAFETY: as for `bytes`: nobody else reads or writes the slot.
        unsafe { self.bank.bank.release_memory(self.slot) }
    }

    /// Tells the system that the slot is used again after its memory was given back.
    pub(crate) fn reuse_memory(self) -> std::io::Result<()> {
        // SAFETY: as for `bytes`: nobody else reads or writes the slot.
        unsafe { self.bank.bank.reuse_memory(self.slot) }
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.bank.end(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SLOT_ALIGNMENT_BYTES;

    fn bank() -> LatchedBank {
        LatchedBank::new(Bank::anonymous(2, SLOT_ALIGNMENT_BYTES).unwrap())
    }

    #[test]
    fn a_slot_can_be_filled_then_read_by_several_then_filled_again() {
        let bank = bank();
        bank.fill(SlotId(1)).bytes().fill(7);
        let (a, b) = (bank.share(SlotId(1)), bank.share(SlotId(1)));
        assert!(bank.bytes(&a).iter().chain(bank.bytes(&b)).all(|&byte| byte == 7));
        bank.unshare(a);
        bank.unshare(b);
        bank.fill(SlotId(1)).bytes().fill(8);
        let right = bank.share(SlotId(1));
        assert!(bank.bytes(&right).iter().all(|&byte| byte == 8));
    }

    fn banks() -> Arc<[LatchedBank]> {
        vec![bank()].into()
    }

    #[test]
    fn parts_are_filled_by_several_threads_and_the_slot_is_free_when_the_last_is_gone() {
        let banks = banks();
        let filling = PartedFilling::begin(&banks, TierId(0), SlotId(1));
        filling.whole().bytes().fill(9);
        let half = banks[0].bank().slot_bytes() / 2;
        let (mut low, mut high) = (filling.part(0..half), filling.part(half..2 * half));
        drop(filling);
        let thread = std::thread::spawn(move || high.bytes().fill(2));
        low.bytes().fill(1);
        thread.join().unwrap();
        assert!(
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| banks[0].share(SlotId(1)))).is_err()
        );
        drop(low);
        let right = banks[0].share(SlotId(1));
        let bytes = banks[0].bytes(&right);
        assert!(bytes[..half].iter().all(|&byte| byte == 1) && bytes[half..].iter().all(|&byte| byte == 2));
    }

    #[test]
    #[should_panic(expected = "90..101 of S0 overlaps Some(100..200), which is being filled")]
    fn parts_that_overlap_are_refused() {
        let filling = PartedFilling::begin(&banks(), TierId(0), SlotId(0));
        let _part = filling.part(100..200);
        drop(filling.part(200..300));
        drop(filling.part(90..101));
    }

    #[test]
    #[should_panic(expected = "of S0, of 16384 B")]
    fn parts_outside_the_slot_are_refused() {
        drop(PartedFilling::begin(&banks(), TierId(0), SlotId(0)).part(0..16_385));
    }

    #[test]
    #[should_panic(expected = "S1 is refilled while it is leased or being filled")]
    fn a_part_that_never_comes_back_keeps_its_slot() {
        let banks = banks();
        let filling = PartedFilling::begin(&banks, TierId(0), SlotId(1));
        std::mem::forget(filling.part(0..1));
        drop(filling);
        drop(banks[0].fill(SlotId(1)));
    }

    #[test]
    #[should_panic(expected = "S0 is refilled while it is leased or being filled")]
    fn a_leased_slot_cannot_be_filled() {
        let bank = bank();
        let _right = bank.share(SlotId(0));
        let _ = bank.fill(SlotId(0));
    }

    #[test]
    #[should_panic(expected = "S0 is leased while it is being filled")]
    fn a_slot_in_filling_cannot_be_leased() {
        let bank = bank();
        let _filling = bank.fill(SlotId(0));
        let _ = bank.share(SlotId(0));
    }

    #[test]
    #[should_panic(expected = "S0 is refilled while it is leased or being filled")]
    fn a_dropped_right_keeps_its_slot_for_ever() {
        let bank = bank();
        drop(bank.share(SlotId(0)));
        bank.fill(SlotId(0)).bytes().fill(1);
    }

    #[test]
    #[should_panic(expected = "a right of another bank")]
    fn a_right_is_worth_nothing_at_another_bank() {
        let (one, other) = (bank(), bank());
        let right = one.share(SlotId(0));
        let _ = other.bytes(&right);
    }
}

/// Every interleaving of readers and fillers of one slot, by loom (tools/model-check.sh). The latch alone orders them: a
/// cell stands for the slot's bytes, and loom sees every access that nothing orders.
#[cfg(all(test, streamed_experts_loom))]
mod models {
    use loom::{cell::UnsafeCell, thread};

    use super::*;
    use crate::{memory::SLOT_ALIGNMENT_BYTES, sync::Arc};

    struct Scene {
        bank: LatchedBank,
        bytes: UnsafeCell<u32>,
    }

    // SAFETY: what the models are to show.
    unsafe impl Sync for Scene {}

    impl Scene {
        fn new() -> Arc<Self> {
            let bank = LatchedBank::new(Bank::anonymous(1, SLOT_ALIGNMENT_BYTES).unwrap());
            Arc::new(Self { bank, bytes: UnsafeCell::new(0) })
        }

        fn fill(&self, value: u32) {
            if !self.bank.try_begin(SlotId(0)) {
                return;
            }
            // SAFETY: loom checks it.
            self.bytes.with_mut(|bytes| unsafe { *bytes = value });
            self.bank.end(SlotId(0));
        }

        fn read(&self) {
            let Some(right) = self.bank.try_share(SlotId(0)) else { return };
            // SAFETY: loom checks it.
            let value = self.bytes.with(|bytes| unsafe { *bytes });
            assert!(value <= 2);
            self.bank.unshare(right);
        }
    }

    #[test]
    fn loom_readers_see_what_a_filling_wrote_and_never_its_middle() {
        loom::model(|| {
            let scene = Scene::new();
            let threads = [1, 2].map(|value| {
                let scene = Arc::clone(&scene);
                thread::spawn(move || scene.fill(value))
            });
            scene.read();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn loom_a_filling_begins_when_every_reader_has_ended() {
        loom::model(|| {
            let scene = Scene::new();
            let threads = [(); 2].map(|()| {
                let scene = Arc::clone(&scene);
                thread::spawn(move || scene.read())
            });
            scene.fill(1);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
