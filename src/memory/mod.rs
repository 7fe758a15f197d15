//! The bank: one page-aligned allocation cut into slots.

mod bank;

pub use bank::{Bank, BankError, BankMemory};
