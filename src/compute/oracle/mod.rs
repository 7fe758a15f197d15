//! A mixture-of-experts layer in scalar f64, from the stored bytes: what every kernel is checked against.
//!
//! Nothing here is fast, and nothing but the order of sums is chosen: weights are dequantised one row at a time
//! ([`dequantise_row`](crate::dequantise_row)), products and sums run in f64 from the first column to the last, ranks are
//! added in rank order, then the shared row. The same pieces compute what surrounds routed experts in a comparison: a
//! router's logits ([`Linear`]) and a shared expert ([`Mlp`]).

mod layer;
mod linear;
mod mlp;

pub use layer::{OracleError, compose, expert_rows, layer};
pub use linear::Linear;
pub use mlp::{Mlp, activate};
