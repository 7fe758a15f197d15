//! A small text-generation engine around the library, for several mixture-of-experts architectures.
//!
//! Where the library plugs in, in the order in which an engine meets it:
//!
//! 1. [`repository`]: `MlxCheckpoint`/`open_source` finds the experts, `TensorIndex` reads everything else;
//! 2. [`model`]: a `Budget`, with the dense part declared as fixed, opens a `StreamedExpertExecutor`;
//! 3. [`experts`]: router logits become `Routes`, these a `BatchPlan`, and the executor computes it. This is the whole
//!    of what changes in a layer.
//!
//! The rest is what any engine has: [`attention`], [`latent`], [`cache`], [`rope`], [`weights`], [`tokens`], [`chat`], [`sample`].
//! Activations are f32: MLX's quantised product on a CPU sums in the type of its input, and bf16 is too coarse for that.
#![allow(dead_code, reason = "each program that includes the engine uses its part")]

pub mod attention;
pub mod cache;
pub mod chat;
pub mod config;
pub mod experts;
pub mod generate;
pub mod latent;
pub mod model;
pub mod repository;
pub mod rope;
pub mod rows;
pub mod sample;
pub mod tokens;
pub mod weights;

/// Anything that ends a run, as one sentence.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
