//! Writing slabs, and checking what was written.

mod disk;
mod draft;
mod error;
mod origin;
mod pack;
mod unfinished;
mod verify;
mod workers;

#[cfg(test)]
mod faults;

pub use error::{PackError, VerifyError};
pub use pack::{PackOptions, PackProgress, PackReport, pack};
pub use verify::{BadRecord, VerifyOptions, VerifyProgress, VerifyReport, verify};
