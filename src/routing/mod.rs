//! From router logits to routes, and from routes to the plan of a forward. Pure: no clock, lock or I/O.

mod batch_plan;
mod look_ahead;
mod router;
mod routes;

pub use batch_plan::{BatchPlan, ExpertUse, Job, RankedPair};
pub use look_ahead::{LookAhead, LookAheadError};
pub use router::{NoAuxTc, Router, RouterError};
pub use routes::{RouteError, Routes};
