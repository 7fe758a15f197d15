//! The kernels' text.

/// Helper functions that every kernel's text begins with.
const HEADER: &str = include_str!("../../../kernels/experts.h");

/// What makes the text CUDA.
#[cfg(feature = "mlx")]
const CUDA_PRELUDE: &str = include_str!("../../../kernels/cuda_prelude.h");

/// One of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KernelName {
    /// gate, up and the activation, for the pairs of a wave.
    GateUp,
    /// down, weighted, for the pairs of a wave.
    Down,
    /// down, weighted, added up by rows, with the shared row.
    DownCompose,
    /// Weighted rows added up, with the shared row.
    Compose,
    /// One product with a matrix.
    Linear,
    /// Two products with the same rows, and the activation.
    SwiGlu,
}

impl KernelName {
    /// How many there are.
    pub(crate) const COUNT: usize = 6;

    /// All of them.
    #[cfg(test)]
    pub(crate) const ALL: [Self; Self::COUNT] =
        [Self::GateUp, Self::Down, Self::DownCompose, Self::Compose, Self::Linear, Self::SwiGlu];

    /// The name that compiled kernels are kept under.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::GateUp => "streamed_experts_gate_up",
            Self::Down => "streamed_experts_down",
            Self::DownCompose => "streamed_experts_down_compose",
            Self::Compose => "streamed_experts_compose",
            Self::Linear => "streamed_experts_linear",
            Self::SwiGlu => "streamed_experts_swiglu",
        }
    }

    /// The body of the kernel function, in Metal.
    pub(crate) const fn body(self) -> &'static str {
        match self {
            Self::GateUp => include_str!("../../../kernels/gate_up.metal"),
            Self::Down => include_str!("../../../kernels/down.metal"),
            Self::DownCompose => include_str!("../../../kernels/down_compose.metal"),
            Self::Compose => include_str!("../../../kernels/compose.metal"),
            Self::Linear => include_str!("../../../kernels/linear.metal"),
            Self::SwiGlu => include_str!("../../../kernels/swiglu.metal"),
        }
    }

    /// The name of its output.
    pub(crate) const fn output(self) -> &'static str {
        match self {
            Self::GateUp => "inner",
            _ => "out",
        }
    }

    /// What stands before the kernel function, in Metal.
    pub(crate) const fn header(self) -> &'static str {
        HEADER
    }
}

/// Header and body of a kernel as CUDA: the prelude goes first, threadgroup variables become shared ones, and the address
/// space `device` goes (as an empty macro it would empty CUDA's own `__device__`).
#[cfg(feature = "mlx")]
pub(crate) fn cuda_source(kernel: KernelName) -> (String, String) {
    let cuda =
        |text: &str| text.replace("  threadgroup float ", "  __shared__ float ").replace("device ", "");
    (format!("{CUDA_PRELUDE}\n{}", cuda(kernel.header())), cuda(kernel.body()))
}
