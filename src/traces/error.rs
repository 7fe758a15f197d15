//! Why a trace was not read.

use std::{
    io,
    path::{Path, PathBuf},
};

/// A trace that was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The system did not give the file.
    #[error("{path}: cannot read the trace", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// A line that is not one of a trace.
    #[error("line {line}: {what}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// No requests.
    #[error("a trace without requests")]
    Empty,
    /// Any of these, in a file.
    #[error("{path}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<TraceError>,
    },
}

impl TraceError {
    pub(super) fn of_file(self, path: &Path) -> Self {
        match self {
            Self::Io { source, .. } => Self::Io { path: path.to_owned(), source },
            other => Self::File { path: path.to_owned(), source: Box::new(other) },
        }
    }
}
