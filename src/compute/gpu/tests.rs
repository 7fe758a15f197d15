//! If these fail, the GPU kernels compute something else than their contract says, or touch memory that is not theirs. They run
//! on the CPU, as text that MLX would hand to Metal: what Apple's compiler and GPU make of it is not tested here.

mod bench;
mod checked;
mod linear;
mod numbers;
mod source;
mod validation;
