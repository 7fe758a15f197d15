//! Mixture-of-experts layers whose experts do not fit in memory.
//!
//! An inference engine hands a layer's rows and routes to a [`StreamedExpertExecutor`]; it keeps a bounded number of experts
//! in page-aligned slots, reads the others from disk while the resident ones compute, and returns the weighted rows plus
//! the shared expert's. Where an expert lives decides speed, never the result.
//!
//! ```
//! use std::sync::Arc;
//! use streamed_experts::{
//!     BatchPlan, Budget, ExecutorOptions, ExpertSource, LayerId, Routes, StreamedExpertExecutor, open_source,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source: Arc<dyn ExpertSource> = Arc::from(open_source("tests/fixtures/qwen3_moe-affine4-g64-bf16")?);
//! let options = ExecutorOptions::new(Budget { working_slots: 2, ..Budget::new(2_000_000) });
//! let mut executor = StreamedExpertExecutor::open(source, &options)?;
//!
//! // One row that goes to experts 5 and 1 of layer 0, in that order.
//! let routes = Routes::from_top_k(1, 2, &[5, 1], &[0.75, 0.25], 8)?;
//! let plan = BatchPlan::new(&routes, 8)?;
//! let row = vec![0.5; 128];
//! let first = executor.execute_rows(LayerId(0), &row, &plan, None)?;
//! let again = executor.execute_rows(LayerId(0), &row, &plan, None)?;
//! assert_eq!(first, again); // the first time from disk, the second from memory: the same bits
//! assert_eq!(executor.manager().telemetry().requests.hits, 2);
//! # Ok(())
//! # }
//! ```
//!
//! # How a forward goes
//!
//! ```text
//! router logits ─▶ Router ─▶ Routes ─▶ BatchPlan: unique experts, in waves
//!                                          │ per wave
//! readers ◀── misses ── ResidencyManager ──▶ Lease (slots held, generations)
//!    │   files → slots       policy, budget      │
//!    └──────────────────────────────────────────▶ family: stock MLX │ host kernels; hits first, then misses
//!                                                 │ fence, release
//!                                                 ▼
//!                       Σ over ranks of weight × row, in rank order, + shared row
//! ```
//!
//! A slot is *idle*, *loading* (one reader writes it), *ready* (resident between forwards), or *leased* (read by somebody;
//! nothing may evict or overwrite it). Each refill gives it a new generation:
//!
//! ```text
//! idle ──reserve──▶ loading ──landed──▶ leased ──release──▶ ready (kept) or idle (not kept)
//!   ▲                  │                  ▲                    │   │
//!   └── failed ◀───────┘                  └────── hit ─────────┘   └──evict──▶ idle
//! ```
//!
//! # Memory
//!
//! budget ≥ fixed + Σ over tiers of slot bytes × (working + resident + pinned): see [`ResidencyPlan`]. A budget too small is
//! refused with every term, one beyond the machine's memory too.
//!
//! # Features
//!
//! | feature | default | costs | gives |
//! | --- | --- | --- | --- |
//! | `mlx` | yes | MLX | [`Family::Stock`], slots that MLX reads in place, MLX arrays in and out |
//! | `metal`, `accelerate` | no | | MLX's backends on macOS |
//!
//! # When not to use this
//!
//! When the model fits in memory; when the drive is so slow that misses per token × expert bytes make no bearable time; for
//! dense models; for training.
//!
//! # What has been run where
//!
//! Linux x86-64 with MLX's CPU backend: every test. macOS with Metal: type-checked only, not run yet. MLX's CUDA backend: the
//! executor and the GPU kernels have run on an NVIDIA H200, by hand.
#![deny(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

mod compute;
mod executor;
mod formats;
mod ids;
mod memory;
#[cfg(feature = "mlx")]
mod mlx;
mod os;
mod packing;
mod policy;
mod recorder;
mod replay;
mod residency;
mod routing;
mod sources;
mod store;
mod sync;
mod traces;
mod usage;

pub use compute::host::{
    HostActivations, HostError, HostFamily, HostIsa, HostJob, HostOptions, HostSupport, HostThreads, convert,
};
pub use compute::{ComputeError, oracle};
pub use executor::{
    EndedTurn, ExecuteError, ExecutorOpenError, ExecutorOptions, Family, ForesightCounts, RecordOptions,
    StreamedExpertExecutor, TierFamily, TurnError,
};
pub use formats::{
    Activation, ConfigError, DecodeError, ExpertGeometry, ExpertView, FloatType, GeometryError, HeaderError,
    Origin, OriginFile, Part, Projection, ProjectionGeometry, Quantisation, SlabError, SlotLayout,
    decode_floats, dequantise_row, record_checksum,
};
pub use ids::{ExpertId, ExpertKey, FileId, Generation, LayerId, SlotId, SlotRef, TierId};
pub use memory::{Bank, BankError, BankMemory, MemoryInfo, PressureLevel, SLOT_ALIGNMENT_BYTES};
pub use packing::{
    BadRecord, PackError, PackOptions, PackProgress, PackReport, VerifyError, VerifyOptions, VerifyProgress,
    VerifyReport, pack, verify,
};
pub use policy::{
    CachePolicy, Echo, Evictable, ExpertNumbering, Frequency, Lru, PolicyLayer, PolicyScope, S3Fifo, Verdict,
};
pub use recorder::{RecorderError, RecorderLimits, RouteRecorder};
pub use replay::{Bounds, HitCounts, Machine, ReplaySlots, Replayed, belady, bounds, replay, replay_from};
pub use residency::{
    AheadCounts, Budget, CancelToken, CloseError, GovernorOptions, LayerPlan, Lease, LeaseError,
    ManagerOptions, NotReady, OpenError, PlanError, PolicyCounts, PressureError, ReadCounts, ReleaseFailure,
    RequestCounts, ResidencyManager, ResidencyPlan, SafePoint, SlotCounts, TelemetrySnapshot, TierNeed,
    TierPlan,
};
pub use routing::{
    BatchPlan, ExpertUse, Job, LookAhead, LookAheadError, NoAuxTc, RankedPair, RouteError, Router,
    RouterError, Routes,
};
pub use safetensors::Dtype;
pub use sources::{
    Checksummed, ChecksumsError, Colibri, ColibriOptions, DIRECT_ALIGNMENT_BYTES, ExpertChecksums,
    ExpertSource, FileChange, Mapped, Mirrored, MlxCheckpoint, Segment, SlabSource, SourceError, SparseLayer,
    Tensor, TensorError, TensorIndex, Tier, open_source,
};
pub use store::{
    Calibration, ChecksumMode, DriveTelemetry, LoadError, LoadErrors, ReadMode, ReadOptions, ReadPriority,
    SlowRead, Times,
};
pub use traces::{Trace, TraceError, TraceLayer, TraceRequest};
pub use usage::{
    DamagedLedger, LedgerError, PinOptions, PinSwap, SwapOptions, UsageLedger, plan_pins, plan_swaps,
};

#[cfg(any(feature = "mlx", test))]
pub use compute::gpu::{LinearSpec, Rounding, UnsupportedLinear};
#[cfg(feature = "mlx")]
pub use mlx::kernels::{DenseOptions, FusedSwiGlu, LinearError, NotFused, QuantisedLinear, QuantisedMatrix};

/// The MLX bindings this crate was built with: `links = "mlx"` allows one version in a program, so use this one.
#[cfg(feature = "mlx")]
pub use mlx_rs;

/// The README's examples, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
