//! How a host family is set up.

use std::{num::NonZeroUsize, sync::Arc};

/// Where a host family's threads come from.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum HostThreads {
    /// A pool of its own with one thread per core that the system grants the process.
    #[default]
    All,
    /// A pool of its own with this many threads. One: everything runs on the calling thread.
    Count(NonZeroUsize),
    /// The caller's pool, shared with whatever else it does.
    Pool(Arc<rayon::ThreadPool>),
}

/// In which precision activations enter the products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HostActivations {
    /// f32 as given, summed in f32.
    #[default]
    Exact,
    /// Rounded to eight bits, with one scale per 32 columns, and summed as integers: less work per weight, and the same
    /// bits on every instruction set. An expert's output is off by less than 2 % on evenly spread inputs (tested: the
    /// norm of the difference against the norm of the row). Formats whose groups are no multiple of 32 columns, and those
    /// that are computed value by value, stay exact.
    Int8,
}

/// An instruction set that the kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HostIsa {
    /// Plain Rust, for every machine. Multiplications and additions round separately.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, DQ and VNNI: Intel's since Cascade Lake and Ice Lake, AMD's since Zen 4.
    Avx512,
    /// aarch64 with NEON, which every such processor has.
    Neon,
}

/// Options of [`HostFamily::new`](super::HostFamily::new).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HostOptions {
    /// The threads. Default: one per core.
    pub threads: HostThreads,
    /// The precision of activations. Default: exact.
    pub activations: HostActivations,
    /// The instruction set. Default, `None`: the best that the machine has.
    pub isa: Option<HostIsa>,
}

impl HostOptions {
    /// The defaults: one thread per core, exact, the best instruction set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`Self::threads`].
    #[must_use]
    pub fn threads(mut self, threads: HostThreads) -> Self {
        self.threads = threads;
        self
    }

    /// Sets [`Self::threads`] to a pool of `count` threads; zero counts as one.
    #[must_use]
    pub fn thread_count(self, count: usize) -> Self {
        self.threads(HostThreads::Count(NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN)))
    }

    /// Sets [`Self::activations`].
    #[must_use]
    pub const fn activations(mut self, activations: HostActivations) -> Self {
        self.activations = activations;
        self
    }

    /// Sets [`Self::isa`].
    #[must_use]
    pub const fn isa(mut self, isa: HostIsa) -> Self {
        self.isa = Some(isa);
        self
    }
}
