//! How an executor is opened.

use std::path::PathBuf;

use crate::{
    compute::host::HostOptions,
    policy::{CachePolicy, Echo, PolicyScope},
    recorder::RecorderLimits,
    residency::{Budget, ManagerOptions},
    usage::SwapOptions,
};

/// Who computes the experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// MLX's own quantised products, on MLX's default device. Needs the `mlx` feature.
    #[cfg_attr(feature = "mlx", default)]
    Stock,
    /// This crate's own kernels on Apple's GPUs, through MLX. A tier that they cannot compute (other formats than signed and
    /// affine 4 and 8 bits, odd widths) is computed by [`Family::Stock`]; the executor says which family a tier has.
    /// Needs the `mlx` feature, and a GPU. Never yet run on one.
    Metal,
    /// The same kernels on NVIDIA GPUs, through MLX's CUDA backend.
    Cuda,
    /// This crate's CPU kernels, straight from the slots. Needs nothing.
    #[cfg_attr(not(feature = "mlx"), default)]
    Host,
    /// This crate's own kernels where MLX's default device is a GPU that runs them ([`Family::Metal`], [`Family::Cuda`]), tier by
    /// tier: [`Family::Stock`] computes a tier whose geometry they do not read, and
    /// [`families`](crate::StreamedExpertExecutor::families) says why. Without a GPU: [`Family::Host`].
    Auto,
}

/// Who computes the experts of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierFamily {
    /// The family. Never [`Family::Auto`].
    pub family: Family,
    /// If this crate's GPU kernels were asked for and [`Family::Stock`] computes instead: why.
    pub instead_of_kernels: Option<String>,
}

impl Family {
    /// The family of this crate's own kernels on MLX's default device: [`Family::Metal`] or [`Family::Cuda`]. `None` where that
    /// is the CPU, or without the `mlx` feature.
    #[must_use]
    pub fn of_gpu() -> Option<Self> {
        #[cfg(feature = "mlx")]
        return crate::mlx::kernels::Backend::of_default_device().map(|backend| match backend {
            crate::mlx::kernels::Backend::Metal => Self::Metal,
            crate::mlx::kernels::Backend::Cuda => Self::Cuda,
        });
        #[cfg(not(feature = "mlx"))]
        None
    }

    /// The family's name in messages and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Metal => "metal",
            Self::Cuda => "cuda",
            Self::Host => "host",
            Self::Auto => "auto",
        }
    }
}

/// Options of [`StreamedExpertExecutor::open`](crate::StreamedExpertExecutor::open).
#[derive(Clone, Debug)]
pub struct ExecutorOptions {
    /// What may be held in memory.
    pub budget: Budget,
    /// Who computes. Default: stock with the `mlx` feature, host without.
    pub family: Family,
    /// Whether every row is computed by the same kernels however many rows come with it, so that its bits do not depend on its
    /// company: what the verification of a draft needs. Default: no, the fastest kernels for the number of rows. No effect
    /// on the host family, where it is always so.
    pub fixed_family: bool,
    /// Threads and arithmetic of the host family. No effect on the others.
    pub host: HostOptions,
    /// How the manager reads. None of it changes a result.
    pub manager: ManagerOptions,
    /// Makes each tier's cache policy. Default [`Echo::boxed`]. It does not change a result.
    pub policy: fn(&PolicyScope<'_>) -> Box<dyn CachePolicy>,
    /// A [usage ledger](crate::UsageLedger): read when the executor is opened, counted into by every forward, saved by
    /// [`StreamedExpertExecutor::end_turn`](crate::StreamedExpertExecutor::end_turn). Default: none.
    pub ledger: Option<PathBuf>,
    /// Which pinned experts [`StreamedExpertExecutor::end_turn`](crate::StreamedExpertExecutor::end_turn) swaps for
    /// resident ones that the ledger has seen more of. Default: none. No effect without a ledger or without pinned
    /// experts.
    pub swap_pins: Option<SwapOptions>,
    /// Writes every route to a file, for [`replay`](crate::replay). Default: no.
    pub record: Option<RecordOptions>,
}

/// Where routes are written, and how much of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    /// A file that does not exist yet.
    pub path: PathBuf,
    /// Default 256 MiB, without weights.
    pub limits: RecorderLimits,
}

impl RecordOptions {
    /// A file at `path` within the default limits.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), limits: RecorderLimits::default() }
    }
}

impl ExecutorOptions {
    /// Everything at its default within `budget`.
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        Self {
            budget,
            family: Family::default(),
            fixed_family: false,
            host: HostOptions::default(),
            manager: ManagerOptions::default(),
            policy: Echo::boxed,
            ledger: None,
            swap_pins: None,
            record: None,
        }
    }
}
