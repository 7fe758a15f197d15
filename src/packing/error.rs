//! Slabs that cannot be packed, and sources that cannot be verified.

use std::{io, path::PathBuf};

use crate::{formats::SlabError, ids::LayerId, sources::FileChange, store::LoadError};

/// A slab that was not packed. What lay under its path before still does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// Something lies under the path already.
    #[error("{} is there already; pack with force to replace it", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// A directory, where a file is to be.
    #[error("{} is a directory; name the slab in it, such as {}", path.display(), path.join("model.slab").display())]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// Another process or thread packs to the same path.
    #[error("{} is being written by somebody else", path.display())]
    Busy {
        /// The unfinished slab.
        path: PathBuf,
    },
    /// What lies where the unfinished slab belongs is the beginning of another one, or something else.
    #[error(
        "{} was not begun from this source with these layers, or is something else; pack with force to begin anew",
        path.display()
    )]
    Foreign {
        /// The unfinished slab.
        path: PathBuf,
    },
    /// No layer of the source was asked for.
    #[error(
        "the source has no layer between {first} and {last}; its layers with experts are {low} to {high}"
    )]
    NoLayers {
        /// The first asked for.
        first: LayerId,
        /// The last asked for.
        last: LayerId,
        /// The first that the source has.
        low: LayerId,
        /// The last that the source has.
        high: LayerId,
    },
    /// A source without a layer.
    #[error("the source has no layer with experts")]
    Empty,
    /// Too few or too many threads.
    #[error("{threads} threads: between 1 and {limit} are possible")]
    Threads {
        /// Asked for.
        threads: u32,
        /// At most.
        limit: u32,
    },
    /// A source beyond the limits of a slab.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// Too little room.
    #[error("{needed_bytes} B are needed beside {}, and {free_bytes} B are free", path.display())]
    NoSpace {
        /// The path.
        path: PathBuf,
        /// What is still to be written.
        needed_bytes: u64,
        /// What is free.
        free_bytes: u64,
    },
    /// The system did not open, lock, read or rename the unfinished slab.
    #[error("could not {what} {}", path.display())]
    File {
        /// What it should have done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The system did not write. What was written is kept: packing again goes on from there.
    #[error("could not write {len_bytes} B at offset {offset_bytes} B of {}", path.display())]
    Write {
        /// The unfinished slab.
        path: PathBuf,
        /// Where.
        offset_bytes: u64,
        /// How much.
        len_bytes: u64,
        /// What the system answered.
        source: io::Error,
    },
    /// The source's files could not be told.
    #[error("could not read {} to tell it from others", path.display())]
    Origin {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// An expert could not be read, or is damaged.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// A file of the source changed while it was packed. What was packed of it cannot be trusted.
    #[error("{} changed while it was packed: {change}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// How.
        change: FileChange,
    },
    /// The caller said stop. What was written is kept: packing again goes on from there.
    #[error("stopped after {done_records} of {all_records} records")]
    Stopped {
        /// How many are written.
        done_records: u64,
        /// Of how many.
        all_records: u64,
    },
}

/// A source that could not be verified. (One that was verified and is damaged is a report.)
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// Too few or too many threads.
    #[error("{threads} threads: between 1 and {limit} are possible")]
    Threads {
        /// Asked for.
        threads: u32,
        /// At most.
        limit: u32,
    },
    /// The source's files could not be told.
    #[error("could not read {} to tell it from others", path.display())]
    Origin {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The caller said stop.
    #[error("stopped after {done_records} of {all_records} records")]
    Stopped {
        /// How many were read.
        done_records: u64,
        /// Of how many.
        all_records: u64,
    },
}
