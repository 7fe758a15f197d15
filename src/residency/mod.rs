//! Which experts are in memory: the plan, the slot table, leases, pressure, telemetry.

mod admission;
mod advisor;
mod cancel;
mod error;
mod governor;
mod lease;
mod manager;
#[cfg(all(test, streamed_experts_loom))]
mod models;
mod plan;
mod plan_error;
mod pressure;
mod settle;
mod spread;
mod state;
mod table;
mod telemetry;

pub use cancel::CancelToken;
pub use error::{CloseError, LeaseError, OpenError};
pub use governor::GovernorOptions;
pub use lease::{Lease, NotReady};
pub use manager::{ManagerOptions, ResidencyManager};
pub use plan::{Budget, LayerPlan, ResidencyPlan, TierPlan};
pub use plan_error::{PlanError, TierNeed};
pub use pressure::{PressureError, ReleaseFailure, SafePoint};
pub use telemetry::{AheadCounts, PolicyCounts, ReadCounts, RequestCounts, SlotCounts, TelemetrySnapshot};
