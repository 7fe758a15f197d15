//! Experts that could not be loaded.

use std::{fmt, io, path::PathBuf, time::Duration};

use crate::{ids::ExpertKey, sources::FileChange, sync::Arc};

/// An expert that could not be loaded. Its slot is free again, and the next request for it reads anew.
///
/// Every lease that waited for the expert gets the error; hence it can be cloned.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The system refused a read.
    #[error("could not read {key}: {len_bytes} B at offset {offset_bytes} B of {}", path.display())]
    Read {
        /// The expert.
        key: ExpertKey,
        /// The file.
        path: PathBuf,
        /// Where the read that failed began.
        offset_bytes: u64,
        /// How much it asked for.
        len_bytes: u64,
        /// What the system answered.
        source: Arc<io::Error>,
    },
    /// The file ends inside the expert: it was cut since it was opened.
    #[error(
        "{} ends inside {key}: wanted {wanted_bytes} B at offset {offset_bytes} B, got {got_bytes} B{}", path.display(),
        note(change)
    )]
    UnexpectedEnd {
        /// The expert.
        key: ExpertKey,
        /// The file.
        path: PathBuf,
        /// Where the segment begins.
        offset_bytes: u64,
        /// Length of the segment.
        wanted_bytes: u64,
        /// How much of it there was.
        got_bytes: u64,
        /// How the file has changed since it was opened, where that can be seen.
        change: Option<FileChange>,
    },
    /// The expert's bytes are not those that its checksum was taken of.
    #[error(
        "{key} at offset {offset_bytes} B of {} is damaged: its checksum is {found:016x}, and should be \
         {expected:016x}{}", path.display(), note(change)
    )]
    Checksum {
        /// The expert.
        key: ExpertKey,
        /// The file that its first read is from.
        path: PathBuf,
        /// Where that read begins.
        offset_bytes: u64,
        /// What the source says.
        expected: u64,
        /// What the bytes have.
        found: u64,
        /// How the file has changed since it was opened, where that can be seen.
        change: Option<FileChange>,
    },
    /// Reads of one segment were interrupted again and again.
    #[error(
        "reading {key} at offset {offset_bytes} B of {} was interrupted {interruptions} times in a row", path.display()
    )]
    Interrupted {
        /// The expert.
        key: ExpertKey,
        /// The file.
        path: PathBuf,
        /// Where the read began.
        offset_bytes: u64,
        /// How often.
        interruptions: u32,
    },
    /// The source says that it read more than it was asked for.
    #[error("the source answers {got_bytes} B for a read of {wanted_bytes} B of {key}")]
    Overlong {
        /// The expert.
        key: ExpertKey,
        /// What was asked for.
        wanted_bytes: u64,
        /// What it claims.
        got_bytes: u64,
    },
    /// The source names no reads for an expert that its layer should have.
    #[error("the source has no segments for {key}")]
    NoSegments {
        /// The expert.
        key: ExpertKey,
    },
    /// A segment does not lie inside the slot.
    #[error("a segment of {key} takes {len_bytes} B at {slot_offset_bytes} B of a slot of {slot_bytes} B")]
    OutsideSlot {
        /// The expert.
        key: ExpertKey,
        /// Where the segment would go.
        slot_offset_bytes: u64,
        /// How long it is.
        len_bytes: u64,
        /// Size of the slot.
        slot_bytes: u64,
    },
    /// Two segments of an expert go to the same bytes of the slot.
    #[error(
        "segments of {key} overlap in its slot: {first_len_bytes} B at {first_offset_bytes} B, and another at \
         {second_offset_bytes} B"
    )]
    Overlap {
        /// The expert.
        key: ExpertKey,
        /// Where the first of them goes.
        first_offset_bytes: u64,
        /// How long it is.
        first_len_bytes: u64,
        /// Where the second goes.
        second_offset_bytes: u64,
    },
    /// The source panicked, or, which would be a bug, the code that takes what was read. The reader goes on.
    #[error("the source panicked while it read {key}: {message}")]
    Panicked {
        /// The expert.
        key: ExpertKey,
        /// The panic's message.
        message: String,
    },
    /// Nothing has landed for as long as [`ReadOptions::stall_limit`](crate::ReadOptions::stall_limit) allows. Reads under
    /// way go on; their slots are used again when they have returned.
    #[error("no expert of a lease has landed for {:.1} s{}", waited.as_secs_f64(), slowest_note(slowest))]
    Stalled {
        /// How long the lease has waited.
        waited: Duration,
        /// The slowest read under way, of this request or of another.
        slowest: Option<SlowRead>,
    },
    /// The wait was cancelled. What has been read stays consistent.
    #[error("the wait for experts of a lease was cancelled")]
    Cancelled,
}

/// A read that takes long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowRead {
    /// The expert that is read.
    pub key: ExpertKey,
    /// The file.
    pub path: PathBuf,
    /// Where in the file the read began.
    pub offset_bytes: u64,
    /// How long it has taken up to now.
    pub time: Duration,
}

impl fmt::Display for SlowRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, path, offset_bytes, time } = self;
        let seconds = time.as_secs_f64();
        write!(f, "{key} at offset {offset_bytes} B of {}, under way for {seconds:.1} s", path.display())
    }
}

fn slowest_note(slowest: &Option<SlowRead>) -> String {
    slowest.as_ref().map_or(String::new(), |read| format!("; the slowest read is {read}"))
}

/// The end of a message: how a file has changed.
fn note(change: &Option<FileChange>) -> String {
    change.map_or(String::new(), |change| format!(" ({change})"))
}

/// Every error of one lease; at least one.
#[derive(Clone, Debug)]
pub struct LoadErrors {
    errors: Vec<LoadError>,
}

impl LoadErrors {
    /// `Ok` if there are none.
    pub(crate) fn check(errors: Vec<LoadError>) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Self { errors }) }
    }

    pub(crate) fn into_errors(self) -> Vec<LoadError> {
        self.errors
    }

    /// The errors, in rank order of the request where they belong to an expert.
    #[must_use]
    pub fn errors(&self) -> &[LoadError] {
        &self.errors
    }
}

impl fmt::Display for LoadErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, error) in self.errors.iter().enumerate() {
            if position > 0 {
                f.write_str("; ")?;
            }
            fmt::Display::fmt(error, f)?;
            if let LoadError::Read { source, .. } = error {
                write!(f, " ({source})")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for LoadErrors {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.errors.first().and_then(std::error::Error::source)
    }
}
