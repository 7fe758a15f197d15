//! What is to be read for one expert: runs of consecutive bytes, cut into pieces for the readers.

use std::{collections::VecDeque, ops::Range};

use super::error::LoadError;
use crate::{
    ids::{ExpertKey, FileId},
    sources::{DIRECT_ALIGNMENT_BYTES, ExpertSource, Segment},
};

/// A file and the drive it lies on, by its position among the source's drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) file: FileId,
    pub(super) drive: usize,
}

/// Consecutive bytes of a file that go to consecutive bytes of the slot, and that no reader has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) home: Home,
    /// Where the same bytes lie as well.
    pub(super) mirror: Option<Home>,
    /// Which of the expert's segments it is of.
    pub(super) segment: usize,
    pub(super) file_offset_bytes: u64,
    pub(super) slot: Range<usize>,
}

impl Run {
    pub(super) const fn len(&self) -> usize {
        self.slot.end - self.slot.start
    }

    /// Takes about `most` bytes from the beginning; the cut is where a page of the file ends.
    fn take(&mut self, most: u64) -> Self {
        let end = self.file_offset_bytes + most.min(self.len() as u64);
        let page = end / DIRECT_ALIGNMENT_BYTES * DIRECT_ALIGNMENT_BYTES;
        let whole = end == self.file_offset_bytes + self.len() as u64;
        let end = if whole || page <= self.file_offset_bytes { end } else { page };
        let bytes = end - self.file_offset_bytes;
        let cut = self.slot.start + usize::try_from(bytes).expect("no more than the run has");
        let taken = Self { slot: self.slot.start..cut, ..self.clone() };
        self.file_offset_bytes = end;
        self.slot.start = cut;
        taken
    }
}

/// The runs of an expert, in the order of its segments.
///
/// # Errors
/// An expert without segments, and segments that leave the slot or overlap in it.
pub(super) fn runs(
    source: &dyn ExpertSource,
    key: ExpertKey,
    slot_bytes: usize,
    home: impl Fn(FileId) -> Home,
) -> Result<VecDeque<Run>, LoadError> {
    let segments = source.segments(key).ok_or(LoadError::NoSegments { key })?;
    let mut runs = VecDeque::with_capacity(segments.len());
    for (number, segment) in segments.iter().enumerate() {
        let slot = part_of(segment, slot_bytes).ok_or_else(|| outside(key, segment, slot_bytes))?;
        runs.push_back(Run {
            home: home(segment.file),
            mirror: source.mirror(segment.file).map(&home),
            segment: number,
            file_offset_bytes: segment.file_offset_bytes,
            slot,
        });
    }
    let mut places: Vec<_> = runs.iter().map(|run: &Run| run.slot.clone()).collect();
    places.sort_unstable_by_key(|place| place.start);
    if let Some(pair) = places.windows(2).find(|pair| pair[1].start < pair[0].end) {
        let (first, second) = (pair[0].start as u64, pair[1].start as u64);
        return Err(LoadError::Overlap {
            key,
            first_offset_bytes: first,
            first_len_bytes: pair[0].len() as u64,
            second_offset_bytes: second,
        });
    }
    runs.retain(|run| run.len() > 0);
    Ok(runs)
}

/// The bytes of the slot that a segment fills; `None` if it leaves the slot.
pub(super) fn part_of(segment: &Segment, slot_bytes: usize) -> Option<Range<usize>> {
    let start = usize::try_from(segment.slot_offset_bytes).ok()?;
    let end = start.checked_add(usize::try_from(segment.len_bytes).ok()?)?;
    (end <= slot_bytes).then_some(start..end)
}

pub(super) const fn outside(key: ExpertKey, segment: &Segment, slot_bytes: usize) -> LoadError {
    LoadError::OutsideSlot {
        key,
        slot_offset_bytes: segment.slot_offset_bytes,
        len_bytes: segment.len_bytes,
        slot_bytes: slot_bytes as u64,
    }
}

/// Takes about `most` bytes, in order, of the runs that `serves` says yes to. No crumbs are left behind.
pub(super) fn take(runs: &mut VecDeque<Run>, most: u64, serves: impl Fn(&Run) -> bool) -> Vec<Run> {
    let all: u64 = runs.iter().filter(|run| serves(run)).map(|run| run.len() as u64).sum();
    let mut left = if all <= most + most / 4 { all } else { most };
    let mut taken = Vec::new();
    for run in runs.iter_mut().filter(|run| serves(run)) {
        if left == 0 {
            break;
        }
        let part = run.take(left);
        left = left.saturating_sub(part.len() as u64);
        let cut = run.len() > 0;
        taken.push(part);
        if cut {
            break;
        }
    }
    runs.retain(|run| run.len() > 0);
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(file_offset_bytes: u64, slot: Range<usize>) -> Run {
        let home = Home { file: FileId(0), drive: 0 };
        Run { home, mirror: None, segment: 0, file_offset_bytes, slot }
    }

    /// Takes everything piece by piece; the lengths of the pieces.
    fn pieces(mut runs: VecDeque<Run>, most: u64) -> Vec<usize> {
        let (mut expected, mut pieces) = (runs.clone(), Vec::new());
        while !runs.is_empty() {
            let taken = take(&mut runs, most, |_| true);
            assert!(!taken.is_empty());
            for part in &taken {
                let whole = expected.front_mut().unwrap();
                assert_eq!(
                    (part.file_offset_bytes, part.slot.start),
                    (whole.file_offset_bytes, whole.slot.start)
                );
                whole.file_offset_bytes += part.len() as u64;
                whole.slot.start = part.slot.end;
                if whole.len() == 0 {
                    expected.pop_front();
                }
            }
            pieces.push(taken.iter().map(Run::len).sum());
        }
        assert!(expected.is_empty(), "every byte is taken once, in order");
        pieces
    }

    #[test]
    fn an_aligned_record_is_cut_into_aligned_pieces_without_crumbs() {
        let record = || VecDeque::from([run(16_384, 0..1_000_000)]);
        assert_eq!(pieces(record(), 262_144), [262_144, 262_144, 262_144, 213_568]);
        assert_eq!(pieces(record(), 900_000), [1_000_000]);
        assert_eq!(pieces(record(), 786_432), [783_616 + 2816, 213_568], "at the end of a page");
    }

    #[test]
    fn scattered_segments_are_put_together_and_cut_at_pages_of_the_file() {
        let runs =
            VecDeque::from([run(100, 0..10_000), run(50_000, 16_384..16_484), run(90_001, 20_000..40_000)]);
        assert_eq!(pieces(runs.clone(), 1 << 20), [30_100]);
        assert_eq!(pieces(runs, 8192), [8092, 1908 + 100 + 4207, 8192, 7601]);
    }

    #[test]
    fn a_piece_is_never_empty_however_little_is_asked_for() {
        assert_eq!(pieces(VecDeque::from([run(4095, 0..3)]), 1), [1, 1, 1]);
    }
}
