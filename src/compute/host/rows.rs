//! Rows of f32 that several threads fill at once, each its own part.
//!
//! # Soundness
//! *Type*: every bit pattern is an f32. *Initialisation*: the values come from a `&mut [f32]`. *Lifetime*: `'a` borrows
//! that slice exclusively for as long as the handle lives. *Bounds*: [`SharedRows::part`] checks the row and the range.
//! *Threads*: the handle gives out `&mut` parts from `&self`; that two parts never overlap is the contract of
//! [`SharedRows::part`].
#![allow(unsafe_code)]

use std::{marker::PhantomData, ops::Range};

/// `rows × width` values behind one exclusive borrow, given out in parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedRows<'a> {
    values: *mut f32,
    rows: usize,
    width: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer stands for the exclusive borrow of a `[f32]`, which is Send.
unsafe impl Send for SharedRows<'_> {}
// SAFETY: parts taken through shared handles do not overlap, by the contract of `part`.
unsafe impl Sync for SharedRows<'_> {}

impl<'a> SharedRows<'a> {
    /// All whole rows of `values`.
    pub(super) fn new(values: &'a mut [f32], width: usize) -> Self {
        Self { rows: values.len() / width, width, values: values.as_mut_ptr(), borrow: PhantomData }
    }

    /// The values `range` of row `row`.
    ///
    /// # Safety
    /// No other part that overlaps this one may be alive.
    ///
    /// # Panics
    /// If the row or the range does not exist.
    #[expect(clippy::mut_from_ref, reason = "exclusive access to the part is the caller's contract")]
    pub(super) unsafe fn part(&self, row: usize, range: Range<usize>) -> &mut [f32] {
        assert!(row < self.rows && range.start <= range.end && range.end <= self.width, "{row} {range:?}");
        // SAFETY: the row and the start lie inside the borrowed slice, as just checked.
        let first = unsafe { self.values.add(row * self.width + range.start) };
        // SAFETY: the range lies inside the borrowed slice; exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(first, range.len()) }
    }
}
