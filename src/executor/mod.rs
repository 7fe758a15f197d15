//! The executor: a layer's experts, leased, computed and composed.

mod error;
#[expect(
    clippy::module_inception,
    reason = "the module is named after what it does, the file after the type"
)]
mod executor;
mod families;
mod foresight;
mod layer;
mod notes;
mod options;
mod wave;

pub use error::{ExecuteError, ExecutorOpenError};
pub use executor::StreamedExpertExecutor;
pub use foresight::ForesightCounts;
pub(crate) use layer::LayerShape;
pub use notes::{EndedTurn, TurnError};
pub use options::{ExecutorOptions, Family, RecordOptions, TierFamily};
pub(crate) use wave::run_waves;
