//! Kernel families, and the scalar oracle that all of them are checked against.

mod forward;
#[cfg(any(feature = "mlx", test))]
#[cfg_attr(
    not(feature = "mlx"),
    allow(unreachable_pub, reason = "public with the feature `mlx`; without it, only its tests are there")
)]
pub(crate) mod gpu;
pub(crate) mod host;
pub mod oracle;

pub use forward::ComputeError;
pub(crate) use forward::Forward;
