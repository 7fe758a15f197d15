//! Reading one expert into one slot.

use std::io;

use super::error::LoadError;
use crate::{
    ids::ExpertKey,
    sources::{ExpertSource, Segment},
    sync::Arc,
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
}

/// Reads every segment of `key` into `slot`. Bytes between segments stay as they are.
pub(crate) fn read_expert(
    source: &dyn ExpertSource,
    key: ExpertKey,
    slot: &mut [u8],
    tally: &mut ReadTally,
) -> Result<(), LoadError> {
    let segments = source.segments(key).ok_or(LoadError::NoSegments { key })?;
    let slot_bytes = slot.len() as u64;
    for segment in segments {
        let bytes = part_of(slot, segment).ok_or(LoadError::OutsideSlot {
            key,
            slot_offset_bytes: segment.slot_offset_bytes,
            len_bytes: segment.len_bytes,
            slot_bytes,
        })?;
        read_segment(source, key, segment, bytes, tally)?;
    }
    Ok(())
}

fn part_of<'a>(slot: &'a mut [u8], segment: &Segment) -> Option<&'a mut [u8]> {
    let start = usize::try_from(segment.slot_offset_bytes).ok()?;
    let len = usize::try_from(segment.len_bytes).ok()?;
    slot.get_mut(start..start.checked_add(len)?)
}

fn read_segment(
    source: &dyn ExpertSource,
    key: ExpertKey,
    segment: &Segment,
    bytes: &mut [u8],
    tally: &mut ReadTally,
) -> Result<(), LoadError> {
    let path = || source.path(segment.file).to_owned();
    let (mut done, mut interruptions) = (0, 0);
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        let wanted = rest.len();
        let offset_bytes = segment.file_offset_bytes.saturating_add(done as u64);
        match source.read_at(segment.file, rest, offset_bytes) {
            Ok(0) => {
                return Err(LoadError::UnexpectedEnd {
                    key,
                    path: path(),
                    offset_bytes: segment.file_offset_bytes,
                    wanted_bytes: segment.len_bytes,
                    got_bytes: done as u64,
                    change: source.changed(segment.file),
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
                return Err(LoadError::Read {
                    key,
                    path: path(),
                    offset_bytes,
                    len_bytes: wanted as u64,
                    source,
                });
            }
        }
    }
    Ok(())
}
