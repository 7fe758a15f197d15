//! The store: readers for each drive that fill slots from a source. It knows nothing of leases or policies.

mod calibrate;
mod checks;
mod drives;
mod error;
mod options;
mod plan;
mod pool;
mod queue;
mod read;
mod times;

pub use checks::ChecksumMode;
pub(crate) use checks::{Checks, check_record};
pub use drives::DriveTelemetry;
pub use error::{LoadError, LoadErrors, SlowRead};
pub use options::{Calibration, ReadMode, ReadOptions, ReadPriority};
pub(crate) use pool::{Landing, Load, LoadSink, ReaderPool};
pub(crate) use read::{ReadTally, read_expert};
#[cfg(test)]
pub(crate) use times::MAX_TIME_NS;
pub(crate) use times::Recorder;
pub use times::Times;
