//! One allocation for all slots of a tier.
//!
//! # Soundness
//! *Type*: a slot is plain bytes; every bit pattern is valid. *Initialisation*: invariant 2. *Lifetime*: the memory is
//! owned by the bank, which every lease and every load keeps alive. *Bounds*: invariant 1, and slot numbers are checked
//! against `slots` in [`Bank::slot_pointer`]. *Threads*: invariant 3; the bank itself only computes addresses.
#![allow(unsafe_code)]

use std::{fmt, ops::Range, ptr::NonNull};

use memmap2::MmapMut;

use super::SLOT_ALIGNMENT_BYTES;
use crate::{ids::SlotId, os};

#[expect(clippy::cast_possible_truncation, reason = "16384 fits every usize")]
const ALIGNMENT: usize = SLOT_ALIGNMENT_BYTES as usize;

/// Memory for a bank.
///
/// # Safety
/// As long as the value lives, `base()` must stay the same pointer, valid for reads and writes of `len_bytes()`
/// initialised bytes from any thread, and nothing but the bank may write there.
pub unsafe trait BankMemory: Send + Sync + fmt::Debug {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;
    /// How many bytes.
    fn len_bytes(&self) -> usize;
    /// Whether pages of it may be given back to the system and touched again later, by `madvise`.
    ///
    /// Only private anonymous memory that nothing has pinned or registered may answer `true`. Default: `false`, and then
    /// memory pressure takes slots out of use without giving their memory back.
    fn can_release_pages(&self) -> bool {
        false
    }
}

/// Page-aligned slots of one size in one allocation.
///
/// # Invariants
/// 1. `base` is aligned to [`SLOT_ALIGNMENT_BYTES`], and `slots × slot_bytes` bytes from it lie inside `memory`.
/// 2. All of them are initialised.
/// 3. A slot is written only by the one thread that loads it, while no lease covers it; it is read only under a lease.
///    The slot table keeps this; the methods that rely on it are `unsafe`.
pub struct Bank {
    memory: Box<dyn BankMemory>,
    base: NonNull<u8>,
    slots: u32,
    slot_bytes: usize,
    /// Whether the system was told to keep the slots in memory, and did not refuse.
    wired: bool,
}

// SAFETY: `base` points into `memory`, which is Send + Sync and may be used from any thread by its trait's contract;
// concurrent access to one slot is excluded by invariant 3.
unsafe impl Send for Bank {}
// SAFETY: as for Send.
unsafe impl Sync for Bank {}

impl fmt::Debug for Bank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bank")
            .field("memory", &self.memory)
            .field("slots", &self.slots)
            .field("slot_bytes", &self.slot_bytes)
            .finish_non_exhaustive()
    }
}

impl Bank {
    /// A bank in an anonymous mapping. The system hands out its pages as slots are first filled.
    ///
    /// # Errors
    /// [`BankError::Size`] for sizes that do not fit the address space, [`BankError::Map`] if the system refuses.
    pub fn anonymous(slots: u32, slot_bytes: u64) -> Result<Self, BankError> {
        let bytes = Self::bytes_with_alignment(slots, slot_bytes)?;
        let map = MmapMut::map_anon(bytes).map_err(|source| BankError::Map { slots, slot_bytes, source })?;
        Self::from_memory(Box::new(Anonymous::new(map)), slots, slot_bytes)
    }

    /// A bank in memory that somebody else allocated: the slots begin at the first aligned byte.
    ///
    /// # Errors
    /// [`BankError::Size`] for sizes that overflow, [`BankError::Short`] if the aligned slots do not fit into `memory`.
    pub fn from_memory(memory: Box<dyn BankMemory>, slots: u32, slot_bytes: u64) -> Result<Self, BankError> {
        let total = Self::bytes_with_alignment(slots, slot_bytes)? - ALIGNMENT;
        let skipped = memory.base().align_offset(ALIGNMENT);
        let available_bytes = memory.len_bytes().saturating_sub(skipped);
        if available_bytes < total {
            return Err(BankError::Short { slots, slot_bytes, available_bytes });
        }
        // SAFETY: `skipped` is at most `len_bytes`, as `available_bytes >= total` was just checked (a saturated
        // subtraction gives 0, which passes only for an empty bank, and then `skipped` may still exceed the length, so
        // wrapping arithmetic is used and the pointer is never dereferenced).
        let base = unsafe { NonNull::new_unchecked(memory.base().as_ptr().wrapping_add(skipped)) };
        let slot_bytes = usize::try_from(slot_bytes).map_err(|_| BankError::Size { slots, slot_bytes })?;
        Ok(Self { memory, base, slots, slot_bytes, wired: false })
    }

    /// Bytes to allocate so that `slots` aligned slots fit wherever the allocation begins.
    pub(crate) fn bytes_with_alignment(slots: u32, slot_bytes: u64) -> Result<usize, BankError> {
        let size_error = BankError::Size { slots, slot_bytes };
        if slots == 0 || slot_bytes == 0 || !slot_bytes.is_multiple_of(SLOT_ALIGNMENT_BYTES) {
            return Err(size_error);
        }
        u64::from(slots)
            .checked_mul(slot_bytes)
            .and_then(|bytes| bytes.checked_add(SLOT_ALIGNMENT_BYTES))
            .and_then(|bytes| isize::try_from(bytes).ok())
            .map(isize::unsigned_abs)
            .ok_or(size_error)
    }

    /// How many slots there are.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of one slot.
    #[must_use]
    pub const fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Bytes between the memory's own beginning and the first slot.
    #[must_use]
    pub fn skipped_bytes(&self) -> usize {
        self.base.as_ptr() as usize - self.memory.base().as_ptr() as usize
    }

    /// The first byte of a slot.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn slot_pointer(&self, slot: SlotId) -> NonNull<u8> {
        assert!(slot.0 < self.slots, "{slot} of a bank of {} slots", self.slots);
        // SAFETY: by invariant 1 the offset stays inside the allocation.
        unsafe { self.base.add(slot.index() * self.slot_bytes) }
    }

    /// The bytes of a slot.
    ///
    /// # Safety
    /// Nothing may write the slot while the slice lives: the caller holds a lease on it.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub unsafe fn slot(&self, slot: SlotId) -> &[u8] {
        let pointer = self.slot_pointer(slot);
        // SAFETY: bounds and initialisation by invariants 1 and 2; no writer by this function's contract.
        unsafe { std::slice::from_raw_parts(pointer.as_ptr(), self.slot_bytes) }
    }

    /// The bytes of a slot, to fill it.
    ///
    /// # Safety
    /// Nothing else may read or write the slot while the slice lives: the caller is the one loader of the slot.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive access is the caller's contract, kept per slot by the table"
    )]
    pub unsafe fn slot_mut(&self, slot: SlotId) -> &mut [u8] {
        let pointer = self.slot_pointer(slot);
        // SAFETY: bounds and initialisation by invariants 1 and 2; exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), self.slot_bytes) }
    }

    /// Some bytes of a slot, to fill them while others fill the rest.
    ///
    /// # Safety
    /// Nothing else may read or write these bytes while the slice lives.
    ///
    /// # Panics
    /// If there is no such slot, or `range` is not inside it.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive access is the caller's contract, kept per part by the latch"
    )]
    pub(super) unsafe fn part_mut(&self, slot: SlotId, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.slot_bytes, "{range:?} outside {slot}");
        // SAFETY: the range was just checked against the slot, which lies inside the allocation by invariant 1.
        let pointer = unsafe { self.slot_pointer(slot).add(range.start) };
        // SAFETY: bounds as above, initialisation by invariant 2; exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), range.end - range.start) }
    }

    /// Whether the memory of single slots can be given back to the system.
    pub(crate) fn can_release_memory(&self) -> bool {
        self.memory.can_release_pages()
    }

    /// Tells the system to keep the slots in memory once they have been filled: neither swapped out nor compressed.
    ///
    /// # Errors
    /// What the system answers, and then nothing is wired. Linux lets a process wire what RLIMIT_MEMLOCK says.
    pub(crate) fn wire(&mut self) -> std::io::Result<()> {
        for slot in (0..self.slots).map(SlotId) {
            // SAFETY: `&mut self`: nobody else has the bank.
            let bytes = unsafe { self.slot_mut(slot) };
            if let Err(error) = os::wire_pages(bytes) {
                for wired in (0..slot.0).map(SlotId) {
                    // SAFETY: as above.
                    let bytes = unsafe { self.slot_mut(wired) };
                    let _ = os::unwire_pages(bytes); // what was wired can be unwired; the first error is the one to tell
                }
                return Err(error);
            }
        }
        self.wired = true;
        Ok(())
    }

    /// Gives the memory of a slot back to the system; its bytes are unspecified (but initialised) afterwards.
    ///
    /// # Safety
    /// As [`Bank::slot_mut`].
    ///
    /// # Errors
    /// What the system answers; `Unsupported` if the memory does not allow it. The slot stays usable.
    pub unsafe fn release_memory(&self, slot: SlotId) -> std::io::Result<()> {
        if !self.memory.can_release_pages() {
            return Err(std::io::ErrorKind::Unsupported.into());
        }
        // SAFETY: the caller has the slot for itself.
        let bytes = unsafe { self.slot_mut(slot) };
        if self.wired {
            os::unwire_pages(bytes)?;
        }
        os::release_pages(bytes)
    }

    /// Tells the system that a slot whose memory was given back is used again. If the slots are wired, this one is again,
    /// if the system lets it.
    ///
    /// # Safety
    /// As [`Bank::slot_mut`].
    ///
    /// # Errors
    /// What the system answers. The slot stays usable.
    pub unsafe fn reuse_memory(&self, slot: SlotId) -> std::io::Result<()> {
        if !self.memory.can_release_pages() {
            return Ok(());
        }
        // SAFETY: the caller has the slot for itself.
        let bytes = unsafe { self.slot_mut(slot) };
        if self.wired {
            let _ = os::wire_pages(bytes); // a slot that is not wired is as good, only slower in need
        }
        os::reuse_pages(bytes)
    }
}

impl Drop for Bank {
    /// Memory that outlives the bank (a backend's, which goes back to an allocator) must not stay wired: its next owner
    /// could not give it back to the system.
    fn drop(&mut self) {
        if self.wired {
            for slot in (0..self.slots).map(SlotId) {
                // SAFETY: `&mut self`: nobody else has the bank.
                let bytes = unsafe { self.slot_mut(slot) };
                let _ = os::unwire_pages(bytes); // nothing more can be done here
            }
        }
    }
}

/// An anonymous mapping.
#[derive(Debug)]
struct Anonymous {
    base: NonNull<u8>,
    map: MmapMut,
}

impl Anonymous {
    fn new(mut map: MmapMut) -> Self {
        let base = NonNull::from(&mut map[..]).cast();
        Self { base, map }
    }
}

// SAFETY: `base` comes from the mapping it travels with, which is not used through any other path.
unsafe impl Send for Anonymous {}
// SAFETY: as for Send; the type itself only answers its address and length.
unsafe impl Sync for Anonymous {}

// SAFETY: the mapping lives as long as the value, does not move, is zero-filled by the system, and is private.
unsafe impl BankMemory for Anonymous {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len_bytes(&self) -> usize {
        self.map.len()
    }

    fn can_release_pages(&self) -> bool {
        true
    }
}

/// A bank that cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BankError {
    /// No slots, an unaligned slot size, or more bytes than can be addressed.
    #[error(
        "{slots} slots of {slot_bytes} B: both must be at least 1, the size a multiple of 16384 B, and the product addressable"
    )]
    Size {
        /// Slots asked for.
        slots: u32,
        /// Size of each.
        slot_bytes: u64,
    },
    /// The system gave no memory.
    #[error("could not map {slots} slots of {slot_bytes} B")]
    Map {
        /// Slots asked for.
        slots: u32,
        /// Size of each.
        slot_bytes: u64,
        /// What the system answered.
        source: std::io::Error,
    },
    /// The given memory is too small.
    #[error("{slots} slots of {slot_bytes} B do not fit into {available_bytes} B of aligned memory")]
    Short {
        /// Slots asked for.
        slots: u32,
        /// Size of each.
        slot_bytes: u64,
        /// Aligned bytes at hand.
        available_bytes: usize,
    },
    /// A backend refused to make or to share the memory.
    #[error("the compute backend cannot hold a bank of {slots} slots of {slot_bytes} B: {reason}")]
    Backend {
        /// Slots asked for.
        slots: u32,
        /// Size of each.
        slot_bytes: u64,
        /// Why, in the backend's words.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_aligned_zeroed_and_apart() {
        let bank = Bank::anonymous(3, SLOT_ALIGNMENT_BYTES).unwrap();
        for slot in 0..3_u8 {
            // SAFETY: one thread, one slice at a time.
            let bytes = unsafe { bank.slot_mut(SlotId(slot.into())) };
            assert_eq!(bytes.as_ptr().align_offset(ALIGNMENT), 0);
            assert!(bytes.iter().all(|&b| b == 0));
            bytes.fill(slot + 1);
        }
        for slot in 0..3_u8 {
            // SAFETY: nothing writes any more.
            assert!(unsafe { bank.slot(SlotId(slot.into())) }.iter().all(|&b| b == slot + 1));
        }
    }

    #[test]
    fn a_released_slot_can_be_filled_again() {
        let bank = Bank::anonymous(2, SLOT_ALIGNMENT_BYTES).unwrap();
        // SAFETY: one thread, one slice at a time.
        unsafe { bank.slot_mut(SlotId(1)) }.fill(7);
        // SAFETY: as above.
        unsafe { bank.release_memory(SlotId(1)) }.unwrap();
        // SAFETY: as above.
        unsafe { bank.slot_mut(SlotId(1)) }.fill(9);
        // SAFETY: as above.
        assert!(unsafe { bank.slot(SlotId(1)) }.iter().all(|&b| b == 9));
    }

    /// Memory of somebody else, who has it before and after the bank.
    #[derive(Debug)]
    struct Lent(crate::sync::Arc<Anonymous>);

    // SAFETY: the mapping lives as long as the last Arc and does not move.
    unsafe impl BankMemory for Lent {
        fn base(&self) -> NonNull<u8> {
            self.0.base()
        }

        fn len_bytes(&self) -> usize {
            self.0.len_bytes()
        }

        fn can_release_pages(&self) -> bool {
            true
        }
    }

    #[test]
    fn memory_that_outlives_a_wired_bank_is_not_wired_any_more() {
        let slot_bytes = SLOT_ALIGNMENT_BYTES;
        let map = MmapMut::map_anon(Bank::bytes_with_alignment(2, slot_bytes).unwrap()).unwrap();
        let memory = crate::sync::Arc::new(Anonymous::new(map));
        let mut wired = Bank::from_memory(Box::new(Lent(memory.clone())), 2, slot_bytes).unwrap();
        if wired.wire().is_err() {
            return; // the system lets this process wire nothing
        }
        drop(wired);
        let next = Bank::from_memory(Box::new(Lent(memory)), 2, slot_bytes).unwrap();
        // SAFETY: one thread has the bank.
        unsafe { next.release_memory(SlotId(1)) }.unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_wired_slot_can_be_given_back_and_is_wired_again_when_it_is_used() {
        let locked = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
        };
        let mut bank = Bank::anonymous(2, SLOT_ALIGNMENT_BYTES).unwrap();
        let before = locked();
        bank.wire().unwrap();
        assert_eq!(locked() - before, 2 * SLOT_ALIGNMENT_BYTES);
        // SAFETY: one thread, one slice at a time.
        unsafe { bank.slot_mut(SlotId(1)) }.fill(7);
        // SAFETY: as above.
        unsafe { bank.release_memory(SlotId(1)) }.unwrap();
        assert_eq!(locked() - before, SLOT_ALIGNMENT_BYTES);
        // SAFETY: as above.
        unsafe { bank.reuse_memory(SlotId(1)) }.unwrap();
        assert_eq!(locked() - before, 2 * SLOT_ALIGNMENT_BYTES);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (slots, slot_bytes) in [(0, 16_384), (1, 0), (1, 4096), (u32::MAX, 1 << 32), (u32::MAX, 1 << 62)]
        {
            let error = Bank::anonymous(slots, slot_bytes).unwrap_err();
            assert!(matches!(error, BankError::Size { .. } | BankError::Map { .. }), "{error}");
        }
    }

    #[test]
    #[should_panic(expected = "S2 of a bank of 2 slots")]
    fn a_slot_that_does_not_exist_is_our_own_bug() {
        let bank = Bank::anonymous(2, SLOT_ALIGNMENT_BYTES).unwrap();
        let _ = bank.slot_pointer(SlotId(2));
    }
}
