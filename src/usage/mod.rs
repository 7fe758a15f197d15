//! How often each expert was asked for, over many runs, and which ones deserve a slot for ever.

mod ledger;
mod pins;
mod swaps;

pub use ledger::{DamagedLedger, LedgerError, UsageLedger};
pub use pins::{PinOptions, plan_pins};
pub use swaps::{PinSwap, SwapOptions, plan_swaps};
