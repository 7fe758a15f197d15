//! How an executor is opened.

use crate::residency::{Budget, ManagerOptions};

/// Who computes the experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// MLX's own quantised products, on MLX's default device. Needs the `mlx` feature.
    #[cfg_attr(feature = "mlx", default)]
    Stock,
    /// This crate's CPU kernels, straight from the slots. Needs nothing.
    #[cfg_attr(not(feature = "mlx"), default)]
    Host,
    /// [`Family::Stock`] where MLX has a GPU, else [`Family::Host`] where it has a fast path for the geometry, else
    /// whichever there is.
    Auto,
}

impl Family {
    /// The family's name in messages and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Host => "host",
            Self::Auto => "auto",
        }
    }
}

/// Options of [`StreamedExpertExecutor::open`](crate::StreamedExpertExecutor::open).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ExecutorOptions {
    /// What may be held in memory.
    pub budget: Budget,
    /// Who computes. Default: stock with the `mlx` feature, host without.
    pub family: Family,
    /// Readers and policy.
    pub manager: ManagerOptions,
}
