//! `--family`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use streamed_experts::Family;

/// What this build has; whether the machine has it too is known when an executor is opened.
const BUILT: &[(Family, &str)] = &[
    #[cfg(feature = "mlx")]
    (Family::Stock, "MLX's quantised products, on MLX's default device"),
    (Family::Host, "this crate's CPU kernels"),
    #[cfg(feature = "mlx")]
    (Family::Metal, "this crate's kernels on Apple's GPUs, through MLX"),
    #[cfg(feature = "mlx")]
    (Family::Cuda, "this crate's kernels on NVIDIA GPUs, through MLX"),
    (Family::Auto, "this crate's kernels where MLX has a GPU, else host"),
];

/// Reads a family's name, and lists them in `--help`.
pub fn parser() -> impl TypedValueParser<Value = Family> {
    let values = BUILT.iter().map(|&(family, what)| PossibleValue::new(family.name()).help(what));
    PossibleValuesParser::new(values).try_map(|name| {
        let found = BUILT.iter().find(|(family, _)| family.name() == name);
        found.map(|&(family, _)| family).ok_or("no such family")
    })
}
