//! Products with matrices that stay in memory, in dispatches of our own: dense layers and the shared expert.
//!
//! # Soundness
//! The kernels trust their inputs. *Type*: weights are u32, scales and biases of the type in the spec, x of one of three float
//! types; each selects the kernel. *Bounds*: [`QuantisedMatrix`] compares the arrays' shapes with the spec that the kernel is
//! compiled for, x's last dimension is compared with it, its rows are counted. Alignment: [`settled`] looks at every array.
//! *Initialisation*: every element of an output is written (kernels/README.md; the tests show it). *Lifetime*: MLX
//! counts its references to the arrays, which nothing writes. *Threads*: arrays stay on the calling thread.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};

use mlx_rs::{Array, Dtype, ops::sigmoid};

use super::{
    custom::{Backend, Kernels},
    rows::{settled, words},
};
use crate::{
    compute::gpu::{Call, GpuLinear, GpuSwiGlu, LinearSpec, Rounding, UnsupportedLinear, WorkError},
    formats::FloatType,
    mlx::{
        MlxError,
        convert::float_type,
        ops::{Format, Packed, quantized_matmul},
    },
};

/// An array that a product cannot take.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinearError {
    /// An array of another type.
    #[error("{what} must be {needed}, not {dtype:?}")]
    Dtype {
        /// Which array.
        what: &'static str,
        /// What it must be.
        needed: &'static str,
        /// What it is.
        dtype: Dtype,
    },
    /// An array of another shape.
    #[error("{what} must be {needed}, not {shape:?}")]
    Shape {
        /// Which array.
        what: &'static str,
        /// What it must be.
        needed: String,
        /// What it is.
        shape: Vec<i32>,
    },
    /// More rows than one dispatch takes, where the options leave no other way.
    #[error("{rows} rows are more than the {limit} of one dispatch")]
    TooManyRows {
        /// Rows of x.
        rows: usize,
        /// The most.
        limit: usize,
    },
    /// Matrices that do not belong together.
    #[error(transparent)]
    Sizes(UnsupportedLinear),
    /// MLX's own error.
    #[error("MLX refused")]
    Mlx(#[from] MlxError),
}

/// Why MLX's own products compute instead of this crate's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotFused {
    /// MLX's default device runs no custom kernels.
    #[error("MLX's default device runs no custom kernels")]
    Device,
    /// The kernels do not read this geometry.
    #[error(transparent)]
    Geometry(#[from] UnsupportedLinear),
}

/// When and how a product uses this crate's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseOptions {
    /// Where [`FusedSwiGlu`] rounds. No effect on [`QuantisedLinear`]. Default: [`Rounding::F32`].
    pub rounding: Rounding,
    /// With fewer rows than this, MLX's own products compute. Default 1: never.
    pub min_rows: usize,
    /// With more rows than this, MLX's own products compute, which have matrix units. Default 4. For bits that do not depend on
    /// the number of rows: `min_rows` 1, `max_rows` `usize::MAX`.
    pub max_rows: usize,
}

impl Default for DenseOptions {
    fn default() -> Self {
        Self { rounding: Rounding::default(), min_rows: 1, max_rows: 4 }
    }
}

/// A matrix `[rows, columns]` in MLX's affine format, checked once.
#[derive(Clone, Debug)]
pub struct QuantisedMatrix {
    spec: LinearSpec,
    weight: Array,
    scales: Array,
    biases: Array,
}

impl QuantisedMatrix {
    /// `weight` is `[rows, columns × bits / 32]` u32 as MLX packs it; `scales` and `biases` are `[rows, columns / group]`, rounded
    /// up, in f32, f16 or bf16, and alike. On CUDA the arrays are copied: drop those given. Else this waits for them, and copies
    /// one only if it is not contiguous or not aligned to 16 B.
    ///
    /// # Errors
    /// Types or shapes that do not belong together, or what MLX answers.
    pub fn new(
        weight: &Array,
        scales: &Array,
        biases: &Array,
        bits: u32,
        group: u32,
    ) -> Result<Self, LinearError> {
        if weight.dtype() != Dtype::Uint32 {
            return Err(LinearError::Dtype { what: "weight", needed: "u32", dtype: weight.dtype() });
        }
        let kind = float("scales", scales)?;
        if biases.dtype() != scales.dtype() {
            return Err(LinearError::Dtype {
                what: "biases",
                needed: "of scales' type",
                dtype: biases.dtype(),
            });
        }
        let shape = |what, needed: String, array: &Array| LinearError::Shape {
            what,
            needed,
            shape: array.shape().to_vec(),
        };
        let whole = || shape("weight", format!("[rows, words] of whole codes of {bits} bits"), weight);
        let &[rows, row_words] = weight.shape() else { return Err(whole()) };
        let [rows, row_words] = [rows, row_words].map(|size| u32::try_from(size).unwrap_or(0));
        let columns = row_words.checked_mul(32).and_then(|row_bits| row_bits.checked_div(bits));
        let Some(columns) = columns.filter(|columns| columns * bits == row_words * 32 && *columns > 0) else {
            return Err(whole());
        };
        let groups = columns.checked_div(group).map(|_| columns.div_ceil(group)).ok_or_else(whole)?;
        for (what, array) in [("scales", scales), ("biases", biases)] {
            if array.shape().iter().map(|&size| i64::from(size)).ne([rows, groups].map(i64::from)) {
                return Err(shape(what, format!("[{rows}, {groups}]"), array));
            }
        }
        let spec = LinearSpec { rows, columns, bits, group, scales: kind };
        let backend = Backend::of_default_device();
        let [weight, scales, biases] =
            [settled(weight, backend)?, settled(scales, backend)?, settled(biases, backend)?];
        Ok(Self { spec, weight, scales, biases })
    }

    /// Sizes and format.
    #[must_use]
    pub const fn spec(&self) -> LinearSpec {
        self.spec
    }

    fn arrays(&self) -> [&Array; 3] {
        [&self.weight, &self.scales, &self.biases]
    }

    /// MLX's own product, in x's type.
    fn stock(&self, x: &Array) -> Result<Array, MlxError> {
        let format =
            Format { mode: c"affine", bits: self.spec.bits as i32, group: self.spec.group.cast_signed() };
        let packed =
            Packed { weight: &self.weight, scales: &self.scales, biases: Some(&self.biases), format };
        quantized_matmul(x, packed)?.as_dtype(x.dtype())
    }
}

/// y = x · Wᵀ for a matrix in MLX's affine format, in one dispatch of this crate's own where it can.
///
/// One thread at a time uses it; a clone is another thread's.
#[derive(Clone, Debug)]
pub struct QuantisedLinear {
    matrix: QuantisedMatrix,
    kernel: Result<GpuLinear, UnsupportedLinear>,
    device: Device,
    options: DenseOptions,
}

impl QuantisedLinear {
    /// Compiles nothing yet: MLX compiles a kernel when it is first dispatched for a type of x and a size of tiles.
    #[must_use]
    pub fn new(matrix: QuantisedMatrix, options: DenseOptions) -> Self {
        let kernel = GpuLinear::new(matrix.spec);
        Self { matrix, kernel, device: Device::new(), options }
    }

    /// Whether this crate's kernels can compute products with matrices of `spec`.
    ///
    /// # Errors
    /// Why they cannot.
    pub fn supports(spec: LinearSpec) -> Result<(), UnsupportedLinear> {
        GpuLinear::new(spec).map(|_| ())
    }

    /// Whether this one uses them, on MLX's default device as it was when this was made.
    ///
    /// # Errors
    /// Why MLX's own products compute instead.
    pub fn fused(&self) -> Result<(), NotFused> {
        self.device.fused(self.kernel)
    }

    /// How many of this crate's kernels were dispatched so far.
    #[must_use]
    pub const fn dispatches(&self) -> u64 {
        self.device.dispatches.get()
    }

    /// `[..., columns]` to `[..., rows]` of the same type (f32, f16 or bf16), unevaluated. Waits for `x`, but not on CUDA.
    ///
    /// # Errors
    /// Another type or width of x, more rows than a dispatch takes, or what MLX answers.
    pub fn apply(&self, x: &Array) -> Result<Array, LinearError> {
        let spec = self.matrix.spec;
        let input = Input::new(x, spec.columns)?;
        let (Ok(kernel), Some(kernels)) = (&self.kernel, self.device.kernels(&self.options, input.count))
        else {
            return Ok(self.matrix.stock(x)?);
        };
        let call = kernel.call(input.kind, input.count).map_err(too_many)?;
        let rows = input.settled(spec.columns, kernels.backend())?;
        let counts = self.device.counts(input.count);
        let [weight, scales, biases] = self.matrix.arrays();
        // SAFETY: the arrays have the sizes in the spec that the call was made for; the rest as the module says.
        let out = unsafe { self.device.dispatch(kernels, &call, &[&rows, weight, scales, biases, &counts]) }?;
        input.shaped(&out, spec.rows)
    }
}

/// silu(x · gateᵀ) × (x · upᵀ), the expansion of a SwiGLU layer, in one dispatch of this crate's own where it can.
///
/// x is loaded once for both products; gate and up may differ in bits, group and type of scales. One thread at a time
/// uses it; a clone is another thread's.
#[derive(Clone, Debug)]
pub struct FusedSwiGlu {
    gate: QuantisedMatrix,
    up: QuantisedMatrix,
    kernel: Result<GpuSwiGlu, UnsupportedLinear>,
    device: Device,
    options: DenseOptions,
}

impl FusedSwiGlu {
    /// Compiles nothing yet: MLX compiles a kernel when it is first dispatched for a type of x and a size of tiles.
    ///
    /// # Errors
    /// [`LinearError::Sizes`] if gate and up have different rows or columns.
    pub fn new(
        gate: QuantisedMatrix,
        up: QuantisedMatrix,
        options: DenseOptions,
    ) -> Result<Self, LinearError> {
        let kernel = match GpuSwiGlu::new(gate.spec, up.spec) {
            Err(sizes @ UnsupportedLinear::SizesDiffer { .. }) => return Err(LinearError::Sizes(sizes)),
            kernel => kernel,
        };
        Ok(Self { gate, up, kernel, device: Device::new(), options })
    }

    /// Whether this crate's kernels can compute the expansion with these matrices.
    ///
    /// # Errors
    /// Why they cannot.
    pub fn supports(gate: LinearSpec, up: LinearSpec) -> Result<(), UnsupportedLinear> {
        GpuSwiGlu::new(gate, up).map(|_| ())
    }

    /// Whether this one uses them, on MLX's default device as it was when this was made.
    ///
    /// # Errors
    /// Why MLX's own products compute instead.
    pub fn fused(&self) -> Result<(), NotFused> {
        self.device.fused(self.kernel)
    }

    /// How many of this crate's kernels were dispatched so far.
    #[must_use]
    pub const fn dispatches(&self) -> u64 {
        self.device.dispatches.get()
    }

    /// `[..., columns]` to `[..., rows]` of the same type (f32, f16 or bf16), unevaluated. Waits for `x`, but not on CUDA. Where MLX
    /// computes, it rounds as [`Rounding::Match`] whatever the options say.
    ///
    /// # Errors
    /// Another type or width of x, more rows than a dispatch takes, or what MLX answers.
    pub fn apply(&self, x: &Array) -> Result<Array, LinearError> {
        let spec = self.gate.spec;
        let input = Input::new(x, spec.columns)?;
        let (Ok(kernel), Some(kernels)) = (&self.kernel, self.device.kernels(&self.options, input.count))
        else {
            let gate = self.gate.stock(x)?;
            return Ok(gate.multiply(sigmoid(&gate)?)?.multiply(self.up.stock(x)?)?);
        };
        let call = kernel.call(input.kind, input.count, self.options.rounding).map_err(too_many)?;
        let rows = input.settled(spec.columns, kernels.backend())?;
        let counts = self.device.counts(input.count);
        let ([gate, gate_scales, gate_biases], [up, up_scales, up_biases]) =
            (self.gate.arrays(), self.up.arrays());
        let inputs = [&rows, gate, gate_scales, gate_biases, up, up_scales, up_biases, &counts];
        // SAFETY: the arrays have the sizes in the specs that the call was made for; the rest as the module says.
        let out = unsafe { self.device.dispatch(kernels, &call, &inputs) }?;
        input.shaped(&out, spec.rows)
    }
}

/// The kernels of MLX's default device, if it has any, and what was dispatched.
#[derive(Clone, Debug)]
struct Device {
    kernels: Option<Kernels>,
    dispatches: Cell<u64>,
    /// The number of rows given last, and the array that says it: the GPU has it already.
    counts: RefCell<Option<(usize, Array)>>,
}

impl Device {
    fn new() -> Self {
        let kernels = Backend::of_default_device().map(Kernels::new);
        Self { kernels, dispatches: Cell::new(0), counts: RefCell::new(None) }
    }

    /// `counts` of the kernels' contract.
    fn counts(&self, count: usize) -> Array {
        let mut last = self.counts.borrow_mut();
        match &*last {
            Some((known, array)) if *known == count => array.clone(),
            _ => last.insert((count, words(&[u32::try_from(count).unwrap_or(u32::MAX)]))).1.clone(),
        }
    }

    fn fused<K>(&self, kernel: Result<K, UnsupportedLinear>) -> Result<(), NotFused> {
        kernel?;
        if self.kernels.is_some() { Ok(()) } else { Err(NotFused::Device) }
    }

    /// The kernels, unless the options leave `count` rows to MLX.
    fn kernels(&self, options: &DenseOptions, count: usize) -> Option<&Kernels> {
        let ours = count > 0 && (options.min_rows..=options.max_rows).contains(&count);
        self.kernels.as_ref().filter(|_| ours)
    }

    /// # Safety
    /// As [`Kernels::dispatch`].
    unsafe fn dispatch(&self, kernels: &Kernels, call: &Call, inputs: &[&Array]) -> Result<Array, MlxError> {
        // SAFETY: the caller's.
        let output = unsafe { kernels.dispatch(call, inputs) }?;
        self.dispatches.set(self.dispatches.get() + 1);
        Ok(output)
    }
}

/// x, looked at.
struct Input<'a> {
    x: &'a Array,
    kind: FloatType,
    count: usize,
}

impl<'a> Input<'a> {
    fn new(x: &'a Array, columns: u32) -> Result<Self, LinearError> {
        let kind = float("x", x)?;
        match x.shape().split_last() {
            Some((&width, leading)) if u32::try_from(width) == Ok(columns) => {
                let count = leading.iter().map(|&size| usize::try_from(size).unwrap_or(0)).product();
                Ok(Self { x, kind, count })
            }
            _ => {
                let needed = format!("[..., {columns}]");
                Err(LinearError::Shape { what: "x", needed, shape: x.shape().to_vec() })
            }
        }
    }

    fn settled(&self, columns: u32, backend: Backend) -> Result<Array, MlxError> {
        settled(&self.x.reshape(&[-1, columns.cast_signed()])?, Some(backend))
    }

    fn shaped(&self, out: &Array, width: u32) -> Result<Array, LinearError> {
        let mut shape = self.x.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = width.cast_signed();
        }
        Ok(out.reshape(&shape)?)
    }
}

fn float(what: &'static str, array: &Array) -> Result<FloatType, LinearError> {
    let needed = "f32, f16 or bf16";
    float_type(array).ok_or(LinearError::Dtype { what, needed, dtype: array.dtype() })
}

fn too_many(error: WorkError) -> LinearError {
    match error {
        WorkError::TooMany { count, limit, .. } => LinearError::TooManyRows { rows: count, limit },
        other => LinearError::Mlx(MlxError::custom(other.to_string())),
    }
}
