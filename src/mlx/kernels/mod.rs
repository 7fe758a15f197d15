//! Our own GPU kernels through MLX: on Metal, and on CUDA from the same text.

mod custom;
mod dense;
mod forward;
mod rows;
mod tier;

pub(crate) use custom::Backend;
pub use dense::{DenseOptions, FusedSwiGlu, LinearError, NotFused, QuantisedLinear, QuantisedMatrix};
pub(crate) use forward::KernelForward;
pub(crate) use tier::{KernelTier, Unsupported};
