//! Mixture-of-experts layers larger than memory.
#![deny(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]

mod compute;
mod formats;
mod ids;
mod memory;
#[cfg(feature = "mlx")]
mod mlx;
mod os;
mod policy;
mod residency;
mod routing;
mod sources;
mod store;
mod sync;

pub use compute::host::{
    HostActivations, HostError, HostFamily, HostIsa, HostJob, HostOptions, HostSupport, HostThreads, convert,
};
pub use compute::oracle;
pub use formats::{
    Activation, ConfigError, DecodeError, ExpertGeometry, ExpertView, FloatType, GeometryError, HeaderError,
    Part, Projection, ProjectionGeometry, Quantisation, SlotLayout, decode_floats, dequantise_row,
};
pub use ids::{ExpertId, ExpertKey, FileId, Generation, LayerId, SlotId, SlotRef, TierId};
pub use memory::{Bank, BankError, BankMemory, MemoryInfo, SLOT_ALIGNMENT_BYTES};
pub use policy::{CachePolicy, Evictable, ExpertNumbering, Lru, PolicyLayer, PolicyScope, Verdict};
pub use residency::{
    Budget, CancelToken, CloseError, LayerPlan, Lease, LeaseError, ManagerOptions, NotReady, OpenError,
    PlanError, PolicyCounts, PressureError, ReadCounts, ReleaseFailure, RequestCounts, ResidencyManager,
    ResidencyPlan, SafePoint, SlotCounts, TelemetrySnapshot, TierNeed, TierPlan, Times,
};
pub use routing::{BatchPlan, ExpertUse, Job, NoAuxTc, RankedPair, RouteError, Router, RouterError, Routes};
pub use safetensors::Dtype;
pub use sources::{
    Colibri, ColibriOptions, ExpertSource, MlxCheckpoint, Segment, SourceError, SparseLayer, Tensor,
    TensorError, TensorIndex, Tier, open_source,
};
pub use store::{LoadError, LoadErrors};

/// The MLX bindings this crate was built with: `links = "mlx"` allows one version in a program, so use this one.
#[cfg(feature = "mlx")]
pub use mlx_rs;
