//! The bank: one page-aligned allocation cut into slots; who may touch a slot; what memory the machine has.

mod bank;
mod info;
mod latch;

pub use bank::{Bank, BankError, BankMemory};
pub use info::{MemoryInfo, PressureLevel};
pub(crate) use latch::{LatchedBank, PartedFilling, ReadRight, SlotPart};

/// Every component of a slot, and the slot itself, begins on this boundary: the page size of Apple silicon.
pub const SLOT_ALIGNMENT_BYTES: u64 = 16_384;
