//! The store: a pool of readers that fill slots from a source. It knows nothing of leases or policies.

mod checks;
mod error;
mod pool;
mod queue;
mod read;

pub use checks::ChecksumMode;
pub(crate) use checks::{Checks, check_record};
pub use error::{LoadError, LoadErrors};
pub(crate) use pool::{Landing, Load, LoadSink, ReaderPool};
pub(crate) use read::{ReadTally, read_expert};
