//! The host family: experts computed on the CPU, straight from the bytes of their slots.
//!
//! A call takes the jobs of a wave (or of a part of one) and writes `down(act(gate · x, up · x))`, unweighted, for
//! every pair of a job. It works in two passes over the wave, each spread over experts × blocks of output rows: gate and
//! up together with the activation, then down. Weights are unpacked into registers, or for many rows into a panel of a
//! few kilobytes, never into a copy of the expert.
//!
//! # The bits of a row
//! Every product of a weight row with an input row is summed in one order that depends on the storage format, the width
//! and the instruction set alone. So the bits of an output row depend neither on how many rows came with it, nor on the
//! number of threads, nor on how the jobs of a wave were split over calls. They may differ between instruction sets.

mod activation;
mod dequantise;
mod error;
mod family;
mod forward;
mod job;
mod lanes;
mod options;
mod pack;
mod plan;
mod rows;
mod schedule;
mod scratch;

pub mod convert;

pub use error::HostError;
pub use family::{HostFamily, HostSupport};
pub(crate) use forward::HostForward;
pub use job::HostJob;
pub use options::{HostActivations, HostIsa, HostOptions, HostThreads};

mod isa;
mod kernels;
