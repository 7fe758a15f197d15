//! Our own GPU kernels through MLX: on Metal, and on CUDA from the same text.

mod custom;
mod forward;
mod tier;

pub(crate) use custom::Backend;
pub(crate) use forward::KernelForward;
pub(crate) use tier::{KernelTier, Unsupported};
