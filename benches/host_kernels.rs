//! Figures of the host kernels.

fn main() {}
