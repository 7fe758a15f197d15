//! The family: instruction set and threads chosen once, then calls.

use std::{fmt, sync::Arc, thread::available_parallelism};

use rayon::iter::{IntoParallelIterator, ParallelIterator};

use crate::formats::{ExpertGeometry, GeometryError, Projection, SlotLayout};

use super::{
    error::HostError,
    isa::Isa,
    job::{HostJob, validate},
    options::{HostActivations, HostIsa, HostOptions, HostThreads},
    plan::{Coding, Plan},
    schedule::{self, Call},
    scratch::{CallScratch, ScratchShelf},
};

/// How a host family would compute a geometry.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum HostSupport {
    /// Every projection by kernels made for its storage format.
    Fast,
    /// Correctly, but at least one projection value by value: many times slower.
    Generic,
    /// Not at all: the geometry does not exist.
    Unsupported(GeometryError),
}

/// Where tasks run.
pub(super) enum Threads {
    /// On the calling thread.
    Caller,
    /// In a pool.
    Pool(Arc<rayon::ThreadPool>),
}

impl Threads {
    fn new(threads: HostThreads) -> Result<Self, HostError> {
        let count = match threads {
            HostThreads::Pool(pool) => return Ok(Self::Pool(pool)),
            HostThreads::Count(count) => count.get(),
            HostThreads::All => available_parallelism().map_or(1, usize::from),
        };
        if count == 1 {
            return Ok(Self::Caller);
        }
        rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|index| format!("host-expert-{index}"))
            .build()
            .map(|pool| Self::Pool(Arc::new(pool)))
            .map_err(|source| HostError::Pool { threads: count, source })
    }

    /// Runs `task` for every number below `tasks`, and returns when all are done.
    pub(super) fn for_each(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        match self {
            Self::Caller => (0..tasks).for_each(task),
            Self::Pool(pool) => pool.install(|| (0..tasks).into_par_iter().for_each(task)),
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Caller => 1,
            Self::Pool(pool) => pool.current_num_threads(),
        }
    }
}

/// Experts computed on the CPU, straight from the bytes of their slots.
///
/// Calls may come from several threads at once; they then share the pool's threads. A call blocks until its outputs
/// are written. After the largest call has been seen, calls reuse its memory.
///
/// ```
/// use streamed_experts::{
///     ExpertGeometry, ExpertView, HostFamily, HostJob, HostOptions, Quantisation, SlotLayout,
/// };
///
/// let geometry = ExpertGeometry::uniform(64, 32, Quantisation::Signed { bits: 8, group: None });
/// let layout = SlotLayout::new(&geometry)?;
/// let slot = vec![0; layout.slot_bytes() as usize];
/// let expert = ExpertView::new(&geometry, &layout, &slot)?;
///
/// let family = HostFamily::new(HostOptions::new().thread_count(1))?;
/// let (input, mut output) = (vec![1.0; 2 * 64], vec![f32::NAN; 3 * 64]);
/// // Row 1 of the input uses the expert; its product becomes row 2 of the output.
/// family.run(&[HostJob { expert, rows: &[1], pairs: &[2] }], &input, &mut output)?;
/// assert!(output[..128].iter().all(|y| y.is_nan()));
/// assert!(output[128..].iter().all(|&y| y == 0.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HostFamily {
    isa: Isa,
    activations: HostActivations,
    threads: Threads,
    scratch: ScratchShelf,
}

impl fmt::Debug for HostFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFamily")
            .field("isa", &self.isa())
            .field("activations", &self.activations)
            .field("threads", &self.threads.count())
            .finish_non_exhaustive()
    }
}

impl HostFamily {
    /// A family with the given options. Starts its threads, unless it shares the caller's.
    ///
    /// # Errors
    /// [`HostError::Isa`] for an instruction set that this machine does not have; [`HostError::Pool`] if the threads
    /// cannot be started.
    pub fn new(options: HostOptions) -> Result<Self, HostError> {
        let isa = match options.isa {
            None => Isa::best(),
            Some(isa) => Isa::get(isa).ok_or(HostError::Isa { isa })?,
        };
        Ok(Self {
            isa,
            activations: options.activations,
            threads: Threads::new(options.threads)?,
            scratch: ScratchShelf::default(),
        })
    }

    /// The instruction set in use.
    #[must_use]
    pub const fn isa(&self) -> HostIsa {
        match self.isa {
            Isa::Portable(_) => HostIsa::Portable,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => HostIsa::Avx2,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => HostIsa::Avx512,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(_) => HostIsa::Neon,
        }
    }

    /// How many threads a call is spread over.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.count()
    }

    /// How experts of `geometry` would be computed.
    #[must_use]
    pub fn supports(&self, geometry: &ExpertGeometry) -> HostSupport {
        if let Err(error) = SlotLayout::new(geometry) {
            return HostSupport::Unsupported(error);
        }
        let generic =
            |projection| Plan::new(geometry, projection, self.activations, false).coding == Coding::Values;
        if Projection::ALL.into_iter().any(generic) { HostSupport::Generic } else { HostSupport::Fast }
    }

    /// Computes `down(act(gate · x, up · x))`, with the projections' biases where the model has them, for every use
    /// of every job.
    ///
    /// `input` is `[rows, hidden]`, `output` `[pairs, hidden]`. A job's use i reads input row `rows[i]` and overwrites
    /// output row `pairs[i]`; other output rows keep what they hold. No weight of a route is applied. A call without
    /// jobs does nothing. The bytes of experts may lie at any address; slots, which are page-aligned, are fastest.
    ///
    /// # Errors
    /// Jobs of different geometries, views whose parts do not fit them, jobs without rows or with lists of different
    /// lengths, slices that are no whole number of rows, rows and pairs that do not exist, pairs that occur twice. They
    /// are all found before any work: `output` is then untouched.
    pub fn run(&self, jobs: &[HostJob<'_>], input: &[f32], output: &mut [f32]) -> Result<(), HostError> {
        self.scratch.with(|scratch| {
            let geometry = validate(jobs, input, output, &mut scratch.pairs)?;
            if let Some(geometry) = geometry {
                self.dispatch(geometry, jobs, input, output, scratch);
            }
            Ok(())
        })
    }

    fn dispatch(
        &self,
        geometry: &ExpertGeometry,
        jobs: &[HostJob<'_>],
        input: &[f32],
        output: &mut [f32],
        scratch: &mut CallScratch,
    ) {
        let threads = &self.threads;
        let call = Call { geometry, activations: self.activations, jobs, input };
        match self.isa {
            Isa::Portable(lanes) => schedule::run(lanes, threads, call, output, scratch),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(lanes) => schedule::run(lanes, threads, call, output, scratch),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(lanes) => schedule::run(lanes, threads, call, output, scratch),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(lanes) => schedule::run(lanes, threads, call, output, scratch),
        }
    }
}
