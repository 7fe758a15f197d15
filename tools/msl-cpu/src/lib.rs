//! Runs Metal kernels where there is no Metal, to test them.
//!
//! MLX wraps the body of a custom kernel into a function whose signature it generates from the arrays of the call.
//! [`Signature::wrap`] makes the same text; [`Kernel::compile`] compiles it with the system's C++ compiler against a
//! stand-in for `metal_stdlib` (shim/), and [`Kernel::launch`] runs it: the threads of a threadgroup are fibers, so
//! barriers, simdgroup operations and 8×8 matrices work. [`Mode::Checked`] watches every memory access as well.
//! [`type_check`] has clang look at the address spaces, and [`lint`] finds what neither of them refuses.
//!
//! None of this proves that Apple's compiler takes the text, nor how fast it would be.
//!
//! ```
//! use msl_cpu::{Argument, Dtype, Kernel, Mode, Signature};
//!
//! let inputs = [Argument { name: "a", dtype: Dtype::F32, shape: &[8] }];
//! let signature = Signature { name: "twice", inputs: &inputs, outputs: &[("out", Dtype::F32)], template: &[] };
//! let body = "uint i = thread_position_in_grid.x; out[i] = 2 * a[i];";
//! let kernel = Kernel::compile(&signature.wrap("", body), Mode::Checked, &std::env::temp_dir())?;
//! let a: Vec<u8> = (0..8).flat_map(|i| (i as f32).to_le_bytes()).collect();
//! let (outputs, stats) = kernel.launch(&[&a], &[32], &msl_cpu::Launch { grid: [8, 1, 1], ..Default::default() });
//! assert_eq!(stats.errors, 0);
//! assert_eq!(outputs[0][28..], 14f32.to_le_bytes());
//! # Ok::<(), msl_cpu::CompileError>(())
//! ```

mod compile;
mod launch;
mod lint;
mod lower;
mod signature;
mod strict;

pub use compile::{CompileError, Kernel, Mode};
pub use launch::{Launch, Stats};
pub use lint::lint;
pub use signature::{Argument, Dtype, KernelText, Signature, Template};
pub use strict::{Strict, type_check};
