//! The executor: a layer's experts, leased, computed and composed.

mod error;
mod wave;

pub use error::{ComputeError, ExecuteError};
pub(crate) use wave::{Forward, run_waves};
