//! A bank that MLX reads where the readers wrote it.
//!
//! Metal wraps an anonymous mapping without a copy; MLX's CPU and CUDA backends always copy what they wrap, so there the
//! memory is MLX's own and the readers write into it.
//!
//! # Soundness
//! *Type*: u32 words, any bit pattern. *Initialisation*: the mapping is zero-filled by the system; MLX's memory is an
//! evaluated array of zeros. *Lifetime*: the mapping is shared by the bank and by MLX's deleter; MLX's memory lives as
//! long as the handle that the bank keeps. *Bounds*: the array's own byte count; every view is checked against it before
//! it is made. *Threads*: the bank's invariant 3; the handle kept for its lifetime is behind a mutex and never used.
#![allow(unsafe_code)]

use std::{ffi::c_void, fmt, ptr::NonNull};

use memmap2::MmapMut;
use mlx_rs::{Array, Dtype, error::Exception, ops::indexing::IndexOp};

use super::convert::default_device_is_gpu;
use crate::{
    ids::SlotId,
    memory::{Bank, BankError, BankMemory},
    sync::{Arc, Mutex},
};

/// Words of one row of the array over the bank: 16 KiB, so that neither dimension outgrows an i32.
const ROW_WORDS: i32 = 4096;

/// The MLX array over a bank's memory, from which strided views are cut. Clones share the memory.
#[derive(Clone)]
pub(crate) struct BankArray {
    words: Array,
    /// The first row of `words`, from which views are cut: MLX flattens what it cuts a view from, and a flat array has at
    /// most 2³¹ items. A view shares the whole allocation, not the row alone, so it may reach over the row's end.
    first_row: Array,
    skipped_bytes: usize,
    slot_bytes: usize,
    slots: i32,
}

impl fmt::Debug for BankArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BankArray").field("shape", &self.words.shape()).finish_non_exhaustive()
    }
}

impl BankArray {
    /// How many slots there are.
    pub(crate) const fn slots(&self) -> i32 {
        self.slots
    }

    /// The bank's memory as u32 words, row-contiguous, with [`Self::skipped_bytes`] before the first slot.
    pub(crate) const fn words(&self) -> &Array {
        &self.words
    }

    /// Bytes of the memory before the first slot.
    pub(crate) const fn skipped_bytes(&self) -> usize {
        self.skipped_bytes
    }

    /// A view `[slots, shape…]` of the component that begins `offset_bytes` into each slot. Nothing is copied.
    pub(crate) fn all_slots(
        &self,
        dtype: Dtype,
        item_bytes: usize,
        offset_bytes: usize,
        shape: &[i32],
    ) -> Result<Array, Exception> {
        let mut shape_all = vec![self.slots];
        shape_all.extend_from_slice(shape);
        let mut strides = vec![(self.slot_bytes / item_bytes) as i64];
        strides.extend(row_major(shape));
        self.view(dtype, item_bytes, self.skipped_bytes + offset_bytes, &shape_all, &strides)
    }

    /// A view `shape…` of the component that begins `offset_bytes` into one slot. Nothing is copied.
    pub(crate) fn one_slot(
        &self,
        slot: SlotId,
        dtype: Dtype,
        item_bytes: usize,
        offset_bytes: usize,
        shape: &[i32],
    ) -> Result<Array, Exception> {
        let begin = self.skipped_bytes + slot.index() * self.slot_bytes + offset_bytes;
        self.view(dtype, item_bytes, begin, shape, &row_major(shape))
    }

    fn view(
        &self,
        dtype: Dtype,
        item_bytes: usize,
        begin: usize,
        shape: &[i32],
        strides: &[i64],
    ) -> Result<Array, Exception> {
        let last_item: i64 =
            shape.iter().zip(strides).map(|(&items, stride)| i64::from(items - 1) * stride).sum();
        let end = usize::try_from(last_item)
            .ok()
            .and_then(|last| (last + 1).checked_mul(item_bytes)?.checked_add(begin));
        if shape.iter().any(|&items| items < 1)
            || !begin.is_multiple_of(item_bytes)
            || end.is_none_or(|end| end > self.words.nbytes())
        {
            return Err(Exception::custom(format!(
                "a view {shape:?} with strides {strides:?} of {dtype:?} at byte {begin} leaves the bank's {} B",
                self.words.nbytes()
            )));
        }
        self.first_row.view_dtype(dtype)?.as_strided(shape, strides, begin / item_bytes)
    }
}

fn row_major(shape: &[i32]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * i64::from(shape[axis]);
    }
    strides
}

/// A bank and the array over it, in the memory that suits MLX's default device.
pub(crate) fn mlx_bank(slots: u32, slot_bytes: u64) -> Result<(Bank, BankArray), BankError> {
    let refuse = |reason: String| BankError::Backend { slots, slot_bytes, reason };
    let bytes = Bank::bytes_with_alignment(slots, slot_bytes)?;
    let metal = cfg!(target_os = "macos") && default_device_is_gpu();
    let (memory, words) = if metal { wrapped(bytes) } else { owned(bytes) }.map_err(refuse)?;
    let bank = Bank::from_memory(memory, slots, slot_bytes)?;
    let first_row = words.index((0..1, ..));
    first_row.eval().map_err(|error| refuse(error.to_string()))?;
    let array = BankArray {
        words,
        first_row,
        skipped_bytes: bank.skipped_bytes(),
        slot_bytes: bank.slot_bytes(),
        slots: i32::try_from(slots).map_err(|_| refuse("more slots than an MLX dimension holds".into()))?,
    };
    Ok((bank, array))
}

fn shape_of(bytes: usize) -> Result<[i32; 2], String> {
    let row_bytes = 4 * ROW_WORDS.unsigned_abs() as usize;
    let rows =
        i32::try_from(bytes / row_bytes).map_err(|_| format!("{bytes} B are too many rows for MLX"))?;
    Ok([rows, ROW_WORDS])
}

/// The address of the array's first word, after evaluating it.
fn data_pointer(words: &Array) -> Result<NonNull<u8>, String> {
    words.eval().map_err(|error| error.to_string())?;
    // SAFETY: the handle is a live, evaluated u32 array, which is what the accessor asks for.
    let pointer = unsafe { mlx_sys::mlx_array_data_uint32(words.as_ptr()) };
    NonNull::new(pointer.cast_mut().cast()).ok_or_else(|| "MLX gave no address for its memory".into())
}

type Memory = (Box<dyn BankMemory>, Array);

/// Memory that MLX owns.
fn owned(bytes: usize) -> Result<Memory, String> {
    let words = mlx_rs::ops::zeros::<u32>(&shape_of(bytes)?).map_err(|error| error.to_string())?;
    let base = data_pointer(&words)?;
    if words.strides() != [ROW_WORDS.unsigned_abs() as usize, 1] || words.nbytes() != bytes {
        return Err(format!("MLX laid {bytes} B of zeros out with strides {:?}", words.strides()));
    }
    Ok((
        Box::new(Owned { base, bytes, ordinary: !default_device_is_gpu(), _keep: Mutex::new(words.clone()) }),
        words,
    ))
}

struct Owned {
    base: NonNull<u8>,
    bytes: usize,
    /// Whether it is ordinary memory of the CPU backend, and not registered with a GPU.
    ordinary: bool,
    /// Keeps MLX's memory alive, and counts as another holder, so that MLX never donates it to a result.
    _keep: Mutex<Array>,
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owned by MLX ({} B)", self.bytes)
    }
}

// SAFETY: the address may be used from any thread (the bank's contract); the handle is Send and behind a mutex.
unsafe impl Send for Owned {}
// SAFETY: as for Send.
unsafe impl Sync for Owned {}

// SAFETY: `base` is the data of an evaluated array of `bytes` bytes; MLX frees it only when the last handle goes, and
// `_keep` is one. MLX never moves an evaluated array's data and never writes it while it is shared.
unsafe impl BankMemory for Owned {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len_bytes(&self) -> usize {
        self.bytes
    }

    fn can_release_pages(&self) -> bool {
        self.ordinary
    }
}

/// An anonymous mapping that MLX reads in place. A backend that copies instead is refused.
fn wrapped(bytes: usize) -> Result<Memory, String> {
    let mut map = MmapMut::map_anon(bytes).map_err(|error| format!("could not map {bytes} B: {error}"))?;
    let base = NonNull::from(&mut map[..]).cast::<u8>();
    let memory = Arc::new(Wrapped { base, map });
    let shape = shape_of(bytes)?;
    // An operation through mlx-rs first: it installs the handler without which MLX ends the process on an error.
    Array::from_int(0).eval().map_err(|error| error.to_string())?;
    let payload = Box::into_raw(Box::new(Arc::clone(&memory)));
    // SAFETY: `base` has `bytes` initialised bytes, as the shape says; they live until `drop_payload` has run, which
    // MLX calls exactly once.
    let handle = unsafe {
        mlx_sys::mlx_array_new_data_managed_payload(
            base.as_ptr().cast(),
            shape.as_ptr(),
            2,
            Dtype::Uint32.into(),
            payload.cast(),
            Some(drop_payload),
        )
    };
    // SAFETY: the handle was just made and is owned by nobody else.
    let words = unsafe { Array::from_ptr(handle) };
    let seen = data_pointer(&words)?;
    if seen != base {
        return Err(format!("it copied {bytes} B instead of wrapping them ({seen:p} is not {base:p})"));
    }
    Ok((Box::new(memory), words))
}

/// MLX's deleter: gives its share of the mapping back.
extern "C" fn drop_payload(payload: *mut c_void) {
    // SAFETY: the pointer is the one that `wrapped` made with Box::into_raw, handed back once.
    drop(unsafe { Box::from_raw(payload.cast::<Arc<Wrapped>>()) });
}

#[derive(Debug)]
struct Wrapped {
    base: NonNull<u8>,
    map: MmapMut,
}

// SAFETY: the address comes from the mapping it travels with.
unsafe impl Send for Wrapped {}
// SAFETY: as for Send.
unsafe impl Sync for Wrapped {}

// SAFETY: the mapping lives as long as the last Arc, does not move, and is zero-filled; MLX only reads it.
unsafe impl BankMemory for Arc<Wrapped> {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len_bytes(&self) -> usize {
        self.map.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SLOT_ALIGNMENT_BYTES;

    #[test]
    fn mlx_sees_what_was_written_into_a_slot_and_copies_nothing() {
        let (bank, array) = mlx_bank(3, SLOT_ALIGNMENT_BYTES).unwrap();
        let before = array.all_slots(Dtype::Uint32, 4, 8, &[2, 3]).unwrap();
        let one = array.one_slot(SlotId(2), Dtype::Uint8, 1, 12, &[4]).unwrap();
        mlx_rs::transforms::eval([&before, &one]).unwrap();
        // SAFETY: one thread, and no MLX work is under way.
        let slot = unsafe { bank.slot_mut(SlotId(2)) };
        for (index, word) in slot.chunks_exact_mut(4).enumerate() {
            word.copy_from_slice(&(index as u32).to_le_bytes());
        }
        let total = before.sum_axes(&[1, 2], None).unwrap();
        assert_eq!(total.as_slice::<u32>(), &[0, 0, 2 + 3 + 4 + 5 + 6 + 7]);
        assert_eq!(one.as_slice::<u8>(), &[3, 0, 0, 0]);
        let seen = data_pointer(&before).unwrap().as_ptr() as usize;
        assert_eq!(seen, bank.slot_pointer(SlotId(0)).as_ptr() as usize + 8, "a view is a copy");
    }

    #[test]
    fn views_reach_the_end_of_a_bank_of_more_items_than_an_i32_counts_and_no_further() {
        // 4.5 GB: more than 2³¹ items of one byte, and of two.
        let (slots, slot_bytes) = (17, 1 << 28);
        let (bank, array) = mlx_bank(slots, slot_bytes).unwrap();
        let last = SlotId(slots - 1);
        // SAFETY: one thread, and no MLX work is under way.
        let bytes = unsafe { bank.slot_mut(last) };
        bytes[slot_bytes as usize - 4..].copy_from_slice(&[1, 2, 3, 4]);
        for (dtype, item_bytes) in [(Dtype::Uint8, 1), (Dtype::Uint16, 2), (Dtype::Uint32, 4)] {
            let (offset, items) = (slot_bytes as usize - 4, 4 / item_bytes as i32);
            let all = array.all_slots(dtype, item_bytes, offset, &[items]).unwrap();
            let one = array.one_slot(last, dtype, item_bytes, offset, &[items]).unwrap();
            for (view, items_before) in [(all, 16 * items), (one, 0)] {
                let flat = view.reshape(&[-1]).unwrap().index(items_before..);
                let bytes = flat.view_dtype(Dtype::Uint8).unwrap();
                assert_eq!(bytes.as_slice::<u8>(), &[1, 2, 3, 4], "{dtype:?} {items_before}");
            }
            let beyond = array.words().nbytes() - array.skipped_bytes() - last.index() * slot_bytes as usize;
            assert!(array.one_slot(last, dtype, item_bytes, beyond, &[1]).is_err(), "{dtype:?}");
        }
    }

    #[test]
    fn a_backend_that_copies_instead_of_wrapping_is_refused() {
        match wrapped(4 * SLOT_ALIGNMENT_BYTES as usize) {
            Ok((memory, words)) => assert_eq!(data_pointer(&words).unwrap(), memory.base()),
            Err(reason) => assert!(reason.contains("copied 65536 B"), "{reason}"),
        }
    }
}
