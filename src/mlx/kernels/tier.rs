//! One tier's bank with our kernels over it.
//!
//! # Soundness
//! The kernels trust their inputs, so everything they index with is checked before a dispatch. *Type*: the bank is u32
//! words; x has one of three float types, which selects the kernel. *Bounds*: [`GpuExpert`] made sure that a slot holds what
//! the kernels read of it; [`Tiles`], [`Terms`] and [`ComposeTerms`] check every slot, row and pair; shapes of x, shared rows
//! and parts are compared here. Alignment: slots and their parts lie on 16 KiB boundaries, outputs of MLX on 16 B or more,
//! x is looked at. *Initialisation*: every element of an output is written (kernels/README.md; the tests show it).
//! *Lifetime*: the graph holds the arrays; slots may only be refilled after the outputs are evaluated, which is the
//! fence of [`super::KernelForward`]. *Threads*: arrays stay on the calling thread.
#![allow(unsafe_code)]

use std::cell::Cell;

use mlx_rs::{Array, Dtype, ops::concatenate, transforms::eval};

use super::{
    custom::{Backend, Kernels},
    rows::{bits, settled, views},
};
use crate::{
    compute::gpu::{Call, ComposeTerms, GpuExpert, Terms, Tiles, UnsupportedGeometry, WorkError},
    formats::{ExpertGeometry, FloatType, SlotLayout},
    mlx::{MlxError, bank::BankArray, convert::float_type},
    routing::BatchPlan,
};

/// Why our kernels cannot compute a tier.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unsupported {
    /// MLX's default device is another.
    #[error("MLX's default device runs no {wanted:?} kernels (it has {found:?})")]
    Device {
        /// The backend asked for.
        wanted: Backend,
        /// The backend of the default device, if it runs custom kernels at all.
        found: Option<Backend>,
    },
    /// Experts that the kernels do not read.
    #[error(transparent)]
    Geometry(#[from] UnsupportedGeometry),
}

/// Why our kernels did not compute.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelError {
    /// Experts that the kernels do not read.
    #[error(transparent)]
    Geometry(#[from] UnsupportedGeometry),
    /// Indices out of range, or too much for one dispatch.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// An input of another type.
    #[error("{what} must be f32, f16 or bf16 and alike, not {dtype:?}")]
    Dtype {
        /// Which array.
        what: &'static str,
        /// What it is.
        dtype: mlx_rs::Dtype,
    },
    /// An input of another shape.
    #[error("{what} must be {needed:?}, not {given:?}")]
    Shape {
        /// Which array.
        what: &'static str,
        /// What is needed.
        needed: [i32; 2],
        /// What was given.
        given: Vec<i32>,
    },
    /// MLX's own error.
    #[error("MLX refused")]
    Mlx(#[from] MlxError),
}

/// Rows that the kernels can read: `[rows, hidden]`, contiguous and aligned.
#[derive(Debug)]
pub(crate) struct Rows {
    array: Array,
    kind: FloatType,
}

impl Rows {
    /// The rows' type.
    pub(crate) const fn kind(&self) -> FloatType {
        self.kind
    }

    /// How many rows there are.
    pub(crate) fn count(&self) -> usize {
        usize::try_from(self.array.shape()[0]).unwrap_or(0)
    }
}

/// Expert outputs of one part of a plan.
#[derive(Debug)]
pub(crate) struct Part {
    /// The plan's pair number of each row.
    pub(crate) pairs: Vec<u32>,
    /// Weighted rows `[pairs, hidden]` f32.
    pub(crate) rows: Array,
}

/// Our kernels over one tier's bank.
#[derive(Clone, Debug)]
pub(crate) struct KernelTier {
    bank: BankArray,
    expert: GpuExpert,
    layout: Array,
    kernels: Kernels,
    dispatches: Cell<u64>,
}

impl KernelTier {
    /// Whether the kernels can compute `geometry` on `backend`, being MLX's default device.
    ///
    /// # Errors
    /// Why they cannot: another family must.
    pub(crate) fn supports(geometry: &ExpertGeometry, backend: Backend) -> Result<(), Unsupported> {
        let found = Backend::of_default_device();
        if found != Some(backend) {
            return Err(Unsupported::Device { wanted: backend, found });
        }
        GpuExpert::new(geometry)?;
        Ok(())
    }

    /// The kernels over `bank`, whose slots are laid out by `layout`.
    ///
    /// # Errors
    /// A geometry that they do not read, or what MLX answers.
    pub(crate) fn new(
        bank: BankArray,
        geometry: &ExpertGeometry,
        layout: &SlotLayout,
        backend: Backend,
    ) -> Result<Self, KernelError> {
        let expert = GpuExpert::new(geometry)?;
        let words = GpuExpert::layout_words(layout, bank.skipped_bytes());
        let layout = Array::from_slice(&words, &[words.len().try_into().unwrap_or(i32::MAX)]);
        eval([&layout])?;
        let (kernels, dispatches) = (Kernels::new(backend), Cell::new(0));
        Ok(Self { bank, expert, layout, kernels, dispatches })
    }

    /// Where the kernels run.
    pub(crate) const fn backend(&self) -> Backend {
        self.kernels.backend()
    }

    /// Width of input and output rows.
    pub(crate) const fn hidden(&self) -> i32 {
        self.expert.hidden()
    }

    /// How many kernels were dispatched since this was asked last.
    pub(crate) fn take_dispatches(&self) -> u64 {
        self.dispatches.take()
    }

    /// `x`, `[rows, hidden]`, as the kernels take it: see [`settled`].
    ///
    /// # Errors
    /// Another shape or type, or what MLX answers.
    pub(crate) fn prepare(&self, x: &Array, what: &'static str) -> Result<Rows, KernelError> {
        let kind = float_type(x).ok_or(KernelError::Dtype { what, dtype: x.dtype() })?;
        let rows = x.shape().first().copied().unwrap_or(0);
        self.check_shape(x, what, rows)?;
        Ok(Rows { array: settled(x, Some(self.backend()))?, kind })
    }

    /// The weighted rows of the pairs of `tiles`, unevaluated: two dispatches.
    ///
    /// # Errors
    /// What MLX answers.
    pub(crate) fn rows(&self, x: &Rows, tiles: &Tiles, per_tile: usize) -> Result<Part, KernelError> {
        let weights = bits(&tiles.weights);
        let [tile_words, pair_rows, weights] = views([&tiles.tiles, &tiles.rows, &weights])?;
        let inner = self.gate_up(x, tiles, per_tile, &tile_words, &pair_rows)?;
        let call = self.expert.down(tiles.rows.len(), tiles.count(), per_tile);
        let weights = weights.view_dtype(Dtype::Float32)?;
        // SAFETY: inner comes from gate_up over the same tiles; the rest as the module says.
        let rows = unsafe {
            self.dispatch(&call, &[&inner, self.bank.words(), &self.layout, &tile_words, &weights])
        }?;
        Ok(Part { pairs: tiles.pairs.clone(), rows })
    }

    /// The whole layer of `plan`, whose pairs `tiles` holds all, as `[rows, hidden]` in x's type, unevaluated: two
    /// dispatches.
    ///
    /// # Errors
    /// If tiles and plan do not belong together, or what MLX answers.
    pub(crate) fn layer(
        &self,
        x: &Rows,
        plan: &BatchPlan,
        tiles: &Tiles,
        per_tile: usize,
        shared: Option<&Rows>,
    ) -> Result<Array, KernelError> {
        let terms = Terms::new(plan, tiles)?;
        let shared_rows = self.shared_rows(x, plan, shared)?;
        let weights = bits(&terms.weights);
        let [tile_words, pair_rows, offsets, pairs, weights] =
            views([&tiles.tiles, &tiles.rows, &terms.offsets, &terms.terms, &weights])?;
        let inner = self.gate_up(x, tiles, per_tile, &tile_words, &pair_rows)?;
        let call = self.expert.down_compose(x.kind, plan.rows(), terms.ranks, shared.is_some());
        let weights = weights.view_dtype(Dtype::Float32)?;
        let inputs = [&inner, self.bank.words(), &self.layout, &offsets, &pairs, &weights, &shared_rows];
        // SAFETY: the terms name slots and rows of these tiles; the rest as the module says.
        unsafe { self.dispatch(&call, &inputs) }
    }

    /// Adds up parts that hold all pairs of `plan`, as `[rows, hidden]` in x's type, unevaluated: one dispatch, and a copy
    /// of the parts if there are several.
    ///
    /// # Errors
    /// If parts and plan do not belong together, or what MLX answers.
    pub(crate) fn compose(
        &self,
        x: &Rows,
        plan: &BatchPlan,
        parts: &[Part],
        shared: Option<&Rows>,
    ) -> Result<Array, KernelError> {
        let pairs: Vec<&[u32]> = parts.iter().map(|part| &part.pairs[..]).collect();
        let terms = ComposeTerms::new(plan, &pairs)?;
        for part in parts {
            self.check_shape(&part.rows, "a part", i32::try_from(part.pairs.len()).unwrap_or(i32::MAX))?;
        }
        let shared_rows = self.shared_rows(x, plan, shared)?;
        let rows = match parts {
            [] => Array::zeros::<f32>(&[1, self.hidden()])?,
            [part] => part.rows.clone(),
            parts => concatenate(&parts.iter().map(|part| &part.rows).collect::<Vec<_>>(), 0)?,
        };
        let call = self.expert.compose(x.kind, plan.rows(), shared.is_some());
        let [offsets, terms] = views([&terms.offsets, &terms.terms])?;
        // SAFETY: the terms name rows of the parts, whose shapes were checked; the rest as the module says.
        unsafe { self.dispatch(&call, &[&rows, &offsets, &terms, &shared_rows]) }
    }

    /// Tiles of `jobs` for this bank.
    ///
    /// # Errors
    /// As [`Tiles::new`].
    pub(crate) fn tiles<'a>(
        &self,
        x: &Rows,
        jobs: impl IntoIterator<Item = (crate::ids::SlotId, &'a [crate::routing::ExpertUse])>,
        per_tile: usize,
    ) -> Result<Tiles, KernelError> {
        let slots = u32::try_from(self.bank.slots()).unwrap_or(0);
        Ok(Tiles::new(jobs, per_tile, slots, x.count())?)
    }

    /// `tile_words` and `pair_rows` are those of `tiles`.
    fn gate_up(
        &self,
        x: &Rows,
        tiles: &Tiles,
        per_tile: usize,
        tile_words: &Array,
        pair_rows: &Array,
    ) -> Result<Array, KernelError> {
        let call = self.expert.gate_up(x.kind, tiles.rows.len(), tiles.count(), per_tile);
        // SAFETY: the tiles were made for this bank and this many rows of x; the rest as the module says.
        unsafe { self.dispatch(&call, &[&x.array, self.bank.words(), &self.layout, tile_words, pair_rows]) }
    }

    /// The shared rows, or an array that stands for none.
    fn shared_rows(&self, x: &Rows, plan: &BatchPlan, shared: Option<&Rows>) -> Result<Array, KernelError> {
        let rows = i32::try_from(plan.rows()).unwrap_or(i32::MAX);
        self.check_shape(&x.array, "x", rows)?;
        let Some(shared) = shared else { return Ok(x.array.clone()) };
        self.check_shape(&shared.array, "the shared rows", rows)?;
        if shared.kind != x.kind {
            return Err(KernelError::Dtype { what: "the shared rows", dtype: shared.array.dtype() });
        }
        Ok(shared.array.clone())
    }

    fn check_shape(&self, array: &Array, what: &'static str, rows: i32) -> Result<(), KernelError> {
        let needed = [rows, self.hidden()];
        if array.shape() == needed {
            return Ok(());
        }
        Err(KernelError::Shape { what, needed, given: array.shape().to_vec() })
    }

    /// # Safety
    /// As [`Kernels::dispatch`].
    unsafe fn dispatch(&self, call: &Call, inputs: &[&Array]) -> Result<Array, KernelError> {
        // SAFETY: the caller's.
        let output = unsafe { self.kernels.dispatch(call, inputs) }?;
        self.dispatches.set(self.dispatches.get() + 1);
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        formats::{Quantisation, SlotLayout},
        mlx::{
            kernels::rows::{ALIGNMENT_BYTES, address},
            mlx_bank,
        },
    };

    const GEOMETRY: ExpertGeometry =
        ExpertGeometry::uniform(64, 32, Quantisation::Signed { bits: 4, group: None });

    /// A tier as a GPU would have it, wherever the test runs.
    fn tier(backend: Backend) -> KernelTier {
        let layout = SlotLayout::new(&GEOMETRY).unwrap();
        let (_, bank) = mlx_bank(2, layout.slot_bytes()).unwrap();
        KernelTier::new(bank, &GEOMETRY, &layout, backend).unwrap()
    }

    #[test]
    fn a_missing_gpu_and_unsupported_experts_are_told_apart() {
        let mxfp4 = ExpertGeometry::uniform(64, 32, Quantisation::Mxfp4);
        let found = Backend::of_default_device();
        for backend in [Backend::Metal, Backend::Cuda] {
            match KernelTier::supports(&mxfp4, backend) {
                Err(Unsupported::Geometry(_)) => assert_eq!(found, Some(backend)),
                Err(Unsupported::Device { wanted, found: here }) => {
                    assert_eq!((wanted, here), (backend, found));
                    assert_ne!(found, Some(backend));
                }
                Ok(()) => panic!("MXFP4 is supported"),
            }
        }
    }

    #[test]
    fn wrong_shapes_and_types_are_refused_before_any_dispatch() {
        let tier = tier(Backend::Metal);
        let wide = Array::zeros::<f32>(&[1, 65]).unwrap();
        assert!(matches!(tier.prepare(&wide, "x"), Err(KernelError::Shape { needed: [1, 64], .. })));
        let integers = Array::zeros::<i32>(&[1, 64]).unwrap();
        assert!(matches!(tier.prepare(&integers, "x"), Err(KernelError::Dtype { what: "x", .. })));
        assert_eq!(tier.take_dispatches(), 0);
    }

    #[test]
    fn rows_that_begin_anywhere_are_aligned_without_changing_a_bit() {
        let tier = tier(Backend::Metal);
        let flat: Vec<f32> = (0..200).map(|i| 0.5 - i as f32).collect();
        for skipped in 0..9 {
            let rows =
                Array::from_slice(&flat, &[200]).as_strided(&[2, 64][..], &[64, 1][..], skipped).unwrap();
            let rows = tier.prepare(&rows, "x").unwrap();
            // MLX's CPU memory, which no kernel reads, begins 8 bytes off.
            let start = if Backend::of_default_device().is_some() { 0 } else { 8 };
            let misaligned = address(&rows.array) % ALIGNMENT_BYTES;
            assert!(misaligned == 0 || misaligned == start, "{skipped} skipped: {misaligned}");
            assert_eq!(rows.array.as_slice::<f32>(), &flat[skipped..skipped + 128]);
        }
    }

    #[test]
    fn without_a_gpu_a_dispatch_is_an_error() {
        if Backend::of_default_device().is_some() {
            return;
        }
        for backend in [Backend::Metal, Backend::Cuda] {
            let tier = tier(backend);
            let x = tier.prepare(&Array::zeros::<f32>(&[1, 64]).unwrap(), "x").unwrap();
            let uses = [crate::routing::ExpertUse { row: 0, rank: 0, pair: 0, weight: 1.0 }];
            let tiles = tier.tiles(&x, [(crate::ids::SlotId(1), &uses[..])], 1).unwrap();
            assert!(matches!(tier.rows(&x, &tiles, 1), Err(KernelError::Mlx(_))), "{backend:?}");
        }
    }
}
