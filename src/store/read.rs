//! Reading bytes of one expert into one slot.

use std::io;

use super::{
    error::LoadError,
    plan::{outside, part_of},
};
use crate::{
    ids::{ExpertKey, FileId},
    sources::{DIRECT_ALIGNMENT_BYTES, ExpertSource},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// More interruptions in a row than this are an error, not weather.
const MAX_INTERRUPTIONS: u32 = 1000;

/// What reading took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadTally {
    /// Calls that read something.
    pub(crate) reads: u64,
    /// Bytes they read.
    pub(crate) bytes: u64,
    /// Calls that read less than they were asked for.
    pub(crate) short: u64,
    /// Calls that were interrupted.
    pub(crate) interrupted: u64,
    /// Reads that were to be direct, and could not for their offset, length or address.
    pub(crate) unaligned: u64,
    /// Reads that were to be direct, and that the file system refused.
    pub(crate) refused: u64,
}

impl ReadTally {
    pub(super) const fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.bytes += other.bytes;
        self.short += other.short;
        self.interrupted += other.interrupted;
        self.unaligned += other.unaligned;
        self.refused += other.refused;
    }
}

/// How bytes are read.
#[derive(Clone, Copy)]
pub(super) enum Way<'a> {
    /// Through the page cache.
    Buffered,
    /// Past it where that is possible. The flag remembers that the drive has refused.
    Direct {
        /// Whether the drive has refused.
        refused: &'a AtomicBool,
    },
}

/// Reads every segment of `key` into `slot`, through the page cache. Bytes between segments stay as they are.
pub(crate) fn read_expert(
    source: &dyn ExpertSource,
    key: ExpertKey,
    slot: &mut [u8],
    tally: &mut ReadTally,
) -> Result<(), LoadError> {
    let segments = source.segments(key).ok_or(LoadError::NoSegments { key })?;
    for segment in segments {
        let part = part_of(segment, slot.len()).ok_or_else(|| outside(key, segment, slot.len()))?;
        let place = Place { key, file: segment.file, offset_bytes: segment.file_offset_bytes };
        read_range(source, Way::Buffered, place, &mut slot[part], tally)?;
    }
    Ok(())
}

/// Where bytes of an expert lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) key: ExpertKey,
    pub(super) file: FileId,
    pub(super) offset_bytes: u64,
}

/// Fills `bytes` from `place`.
pub(super) fn read_range(
    source: &dyn ExpertSource,
    way: Way<'_>,
    place: Place,
    bytes: &mut [u8],
    tally: &mut ReadTally,
) -> Result<(), LoadError> {
    let Place { key, file, offset_bytes: first_bytes } = place;
    let path = || source.path(file).to_owned();
    let mut direct = matches!(way, Way::Direct { .. });
    let (mut done, mut interruptions) = (0, 0);
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        let wanted = rest.len();
        let offset_bytes = first_bytes.saturating_add(done as u64);
        let read = match way {
            Way::Direct { refused } if direct => {
                match read_direct(source, file, rest, offset_bytes, refused, tally) {
                    Some(read) => read,
                    None => {
                        direct = false;
                        continue;
                    }
                }
            }
            _ => source.read_at(file, rest, offset_bytes),
        };
        match read {
            Ok(0) => {
                return Err(LoadError::UnexpectedEnd {
                    key,
                    path: path(),
                    offset_bytes: first_bytes,
                    wanted_bytes: bytes.len() as u64,
                    got_bytes: done as u64,
                    change: source.changed(file),
                });
            }
            Ok(got) if got > wanted => {
                return Err(LoadError::Overlong { key, wanted_bytes: wanted as u64, got_bytes: got as u64 });
            }
            Ok(got) => {
                tally.reads += 1;
                tally.bytes += got as u64;
                tally.short += u64::from(got < wanted);
                done += got;
                interruptions = 0;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                tally.interrupted += 1;
                interruptions += 1;
                if interruptions > MAX_INTERRUPTIONS {
                    return Err(LoadError::Interrupted { key, path: path(), offset_bytes, interruptions });
                }
            }
            Err(error) => {
                let source = Arc::new(error);
                let len_bytes = wanted as u64;
                return Err(LoadError::Read { key, path: path(), offset_bytes, len_bytes, source });
            }
        }
    }
    if matches!(way, Way::Direct { .. }) && !direct {
        source.forget(file, first_bytes, bytes.len() as u64);
    }
    Ok(())
}

/// One direct read; `None`, and counted, if this read cannot be direct.
fn read_direct(
    source: &dyn ExpertSource,
    file: FileId,
    buffer: &mut [u8],
    offset_bytes: u64,
    refused: &AtomicBool,
    tally: &mut ReadTally,
) -> Option<io::Result<usize>> {
    let address = buffer.as_ptr() as u64;
    let aligned =
        [address, buffer.len() as u64, offset_bytes].iter().all(|n| n.is_multiple_of(DIRECT_ALIGNMENT_BYTES));
    if !aligned {
        tally.unaligned += 1;
        return None;
    }
    // Relaxed: a hint that guards no memory; who misses it is refused once more.
    if !refused.load(Relaxed) {
        match source.read_direct_at(file, buffer, offset_bytes) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput) =>
            {
                refused.store(true, Relaxed);
            }
            read => return Some(read),
        }
    }
    tally.refused += 1;
    None
}
