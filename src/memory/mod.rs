//! The bank: one page-aligned allocation cut into slots.

mod bank;

pub use bank::{Bank, BankError, BankMemory};

/// Every component of a slot, and the slot itself, begins on this boundary: the page size of Apple silicon.
pub const SLOT_ALIGNMENT_BYTES: u64 = 16_384;
