//! A unit of work as the caller states it, and what must hold before any of it starts.

use crate::formats::{ExpertGeometry, ExpertView, Part, Projection};

use super::error::HostError;

/// One expert with the rows that use it.
#[derive(Clone, Copy, Debug)]
pub struct HostJob<'a> {
    /// The expert.
    pub expert: ExpertView<'a>,
    /// Per use, the input row.
    pub rows: &'a [u32],
    /// Per use, the output row: as many as `rows`, each written by one use of the call only.
    pub pairs: &'a [u32],
}

/// A bit per output row, kept between calls.
#[derive(Debug, Default)]
pub(super) struct PairSet(Vec<u64>);

impl PairSet {
    fn reset(&mut self, pairs: usize) {
        self.0.clear();
        self.0.resize(pairs.div_ceil(64), 0);
    }

    /// Adds `pair`; false if it was there.
    fn insert(&mut self, pair: u32) -> bool {
        let (word, bit) = (pair as usize / 64, 1 << (pair % 64));
        let fresh = self.0[word] & bit == 0;
        self.0[word] |= bit;
        fresh
    }
}

/// Checks a whole call. Returns the jobs' geometry; `None` where there are no jobs.
///
/// Afterwards: every job has the same geometry, its parts have the geometry's sizes, its rows exist in `input`, its
/// pairs exist in `output`, and no pair occurs twice in the call.
pub(super) fn validate<'a>(
    jobs: &[HostJob<'a>],
    input: &[f32],
    output: &[f32],
    pairs_seen: &mut PairSet,
) -> Result<Option<&'a ExpertGeometry>, HostError> {
    let Some(first) = jobs.first() else { return Ok(None) };
    let geometry = first.expert.geometry();
    let hidden = geometry.hidden as usize;
    let rows = whole_rows("input", input.len(), hidden)?;
    let pairs = whole_rows("output", output.len(), hidden)?;
    pairs_seen.reset(pairs);
    for (job, HostJob { expert, rows: job_rows, pairs: job_pairs }) in jobs.iter().enumerate() {
        if expert.geometry() != geometry {
            return Err(HostError::MixedGeometry { job });
        }
        check_parts(job, expert)?;
        if job_rows.is_empty() {
            return Err(HostError::NoRows { job });
        }
        if job_rows.len() != job_pairs.len() {
            return Err(HostError::Uneven { job, rows: job_rows.len(), pairs: job_pairs.len() });
        }
        if let Some(&row) = job_rows.iter().find(|&&row| row as usize >= rows) {
            return Err(HostError::RowOutOfRange { job, row, rows });
        }
        for &pair in *job_pairs {
            if pair as usize >= pairs {
                return Err(HostError::PairOutOfRange { job, pair, pairs });
            }
            if !pairs_seen.insert(pair) {
                return Err(HostError::PairTwice { job, pair });
            }
        }
    }
    Ok(Some(geometry))
}

fn whole_rows(slice: &'static str, values: usize, hidden: usize) -> Result<usize, HostError> {
    if hidden == 0 || !values.is_multiple_of(hidden) {
        return Err(HostError::PartialRow { slice, values, hidden });
    }
    Ok(values / hidden)
}

fn check_parts(job: usize, expert: &ExpertView<'_>) -> Result<(), HostError> {
    for projection in Projection::ALL {
        for part in Part::ALL {
            let needed_bytes = expert
                .geometry()
                .part_bytes(projection, part)
                .map_err(|source| HostError::Geometry { job, source })?;
            let given_bytes = expert.part(projection, part).len() as u64;
            if needed_bytes != given_bytes || (part == Part::Weight && needed_bytes == 0) {
                return Err(HostError::PartBytes { job, projection, part, needed_bytes, given_bytes });
            }
        }
    }
    Ok(())
}
