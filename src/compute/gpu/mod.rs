//! Our own GPU kernels: their text, what they can compute, and the numbers that a dispatch needs.
//!
//! Nothing here names a backend: MLX runs the calls described here, and the tests run the same ones on the CPU. The
//! contract of each kernel is in kernels/README.md.

mod call;
mod expert;
mod linear;
mod text;
mod work;

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use call::Scalar;
pub(crate) use call::{Call, Parameter};
pub(crate) use expert::{GpuExpert, UnsupportedGeometry};
pub(crate) use linear::{GpuLinear, GpuSwiGlu};
pub use linear::{LinearSpec, Rounding, UnsupportedLinear};
pub(crate) use text::KernelName;
#[cfg(feature = "mlx")]
pub(crate) use text::cuda_source;
pub(crate) use work::{ComposeTerms, Terms, Tiles, WorkError, padded};
