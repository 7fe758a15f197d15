//! What can be wrong with a slab.

use std::{io, path::PathBuf};

/// A slab that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlabError {
    /// The system did not open it.
    #[error("could not open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The system did not read its head, manifest or table.
    #[error("could not read the {what} of {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Which part.
        what: &'static str,
        /// What the system answered.
        source: io::Error,
    },
    /// A file that is something else.
    #[error("{} is not a slab", path.display())]
    NotASlab {
        /// The file.
        path: PathBuf,
    },
    /// A slab that was never finished. Packing it again goes on where it ended.
    #[error("{} is an unfinished slab; pack it again to finish it", path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// A slab of a version that this library does not know.
    #[error("{} is a slab of version {found}; this library reads version {known}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// What is known.
        known: u32,
    },
    /// A part that has changed since it was written.
    #[error("the {what} of {} is damaged: its checksum is {found:016x}, and should be {expected:016x}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Which part.
        what: &'static str,
        /// What was written.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// Bytes behind a part that should be zero.
    #[error("the {what} of {} is damaged: byte {offset_bytes} of the file, behind it, should be zero", path.display())]
    Padding {
        /// The file.
        path: PathBuf,
        /// Which part.
        what: &'static str,
        /// Where in the file.
        offset_bytes: u64,
    },
    /// A number beyond any model's.
    #[error("{} has {found} {what}, and {limit} is the limit", path.display())]
    Count {
        /// The file.
        path: PathBuf,
        /// Of what.
        what: &'static str,
        /// How many.
        found: u64,
        /// How many there may be.
        limit: u64,
    },
    /// A file that is shorter or longer than what it should hold.
    #[error("{} has {file_bytes} B, and should have {expected_bytes} B: it was cut, or something was appended", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        file_bytes: u64,
        /// What its head or its manifest says.
        expected_bytes: u64,
    },
    /// A manifest that is no manifest.
    #[error("the manifest of {} cannot be read", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A manifest that contradicts itself or this library.
    #[error("the manifest of {} cannot be believed: {reason}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// In what.
        reason: String,
    },
}
