//! Reading every expert of a source, and comparing it with its checksum.

use std::{ops::ControlFlow, path::PathBuf};

use super::{
    draft::layout,
    error::VerifyError,
    origin::{files_of, keys, origin_of},
    workers::{self, MAX_THREADS},
};
use crate::{
    formats::{SlotLayout, first_nonzero_padding},
    ids::ExpertKey,
    sources::{ExpertChecksums, ExpertSource, FileChange, LayerChecksums},
    store::{LoadError, ReadTally, check_record, read_expert},
};

/// No report names more bad records than this; it counts the others.
const MAX_BAD_RECORDS: usize = 1000;

/// How to verify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Threads that read, one expert each at a time; each has a buffer of one slot. Default 4. Between 1 and 256.
    pub threads: u32,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { threads: 4 }
    }
}

/// How far verifying has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyProgress {
    /// Experts read.
    pub done_records: u64,
    /// Experts in all.
    pub all_records: u64,
    /// Bytes read.
    pub done_bytes: u64,
    /// Bytes in all.
    pub all_bytes: u64,
    /// Bad records found.
    pub bad_records: u64,
}

/// What was found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Experts read.
    pub records: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Experts that were compared with a checksum. The others could be read, and that is all that is known of them.
    pub compared_records: u64,
    /// Bad records.
    pub bad_records: u64,
    /// The first thousand of them, in the order of the source.
    pub bad: Vec<BadRecord>,
    /// Files that have changed since the source was opened.
    pub changed: Vec<(PathBuf, FileChange)>,
    /// The checksums of all experts, if nothing is bad and nothing has changed.
    pub checksums: Option<ExpertChecksums>,
}

impl VerifyReport {
    /// Whether nothing is bad and nothing has changed.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.bad_records == 0 && self.changed.is_empty()
    }
}

/// A record that is not as it should be.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadRecord {
    /// It cannot be read, or its checksum differs.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// Bytes between its components are not zero. They are never used; but something wrote there.
    #[error("{key} in {}: the padding at offset {offset_bytes} B is not zero", path.display())]
    Padding {
        /// The expert.
        key: ExpertKey,
        /// The file.
        path: PathBuf,
        /// Where in the file.
        offset_bytes: u64,
    },
}

/// Reads every expert of `source` once and compares it with its checksum, where the source has one: a slab has, others have
/// with [`Checksummed`](crate::Checksummed). Blocks. Headers and ranges were checked when the source was opened.
///
/// `progress` is called on this thread, once before the first expert and after each; if it breaks, verifying stops.
///
/// # Errors
/// An impossible number of threads, files that cannot be told, or a stop. Bad records are no errors: the report has them.
pub fn verify(
    source: &dyn ExpertSource,
    options: &VerifyOptions,
    mut progress: impl FnMut(VerifyProgress) -> ControlFlow<()>,
) -> Result<VerifyReport, VerifyError> {
    let threads = options.threads;
    if threads == 0 || threads > MAX_THREADS {
        return Err(VerifyError::Threads { threads, limit: MAX_THREADS });
    }
    let experts: Vec<(ExpertKey, usize)> =
        source.layers().iter().flat_map(|layer| keys(layer).map(|key| (key, layer.tier.index()))).collect();
    let mut now = VerifyProgress {
        all_records: experts.len() as u64,
        all_bytes: experts.iter().map(|&(key, _)| bytes_of(source, key)).sum(),
        ..VerifyProgress::default()
    };
    let stopped = |now: VerifyProgress| VerifyError::Stopped {
        done_records: now.done_records,
        all_records: now.all_records,
    };
    if progress(now).is_break() {
        return Err(stopped(now));
    }
    let work = |job: usize, buffer: &mut Vec<u8>| {
        let (key, tier) = experts[job];
        (job, read_and_check(source, layout(source, tier), key, buffer))
    };
    let mut checksums = vec![0; experts.len()];
    let mut bad = Vec::new();
    let flow = workers::run(experts.len(), threads, work, |(job, outcome)| {
        now.done_records += 1;
        now.done_bytes += bytes_of(source, experts[job].0);
        match outcome {
            Ok(checksum) => checksums[job] = checksum,
            Err(found) => {
                now.bad_records += 1;
                bad.push((job, found));
                bad.sort_by_key(|&(job, _)| job);
                bad.truncate(MAX_BAD_RECORDS);
            }
        }
        progress(now)
    });
    if flow.is_break() && now.done_records < now.all_records {
        return Err(stopped(now));
    }
    let compared = experts.iter().filter(|&&(key, _)| source.checksum(key).is_some()).count();
    let mut report = VerifyReport {
        records: now.done_records,
        bytes: now.done_bytes,
        compared_records: compared as u64,
        bad_records: now.bad_records,
        bad: bad.into_iter().map(|(_, found)| found).collect(),
        changed: changed(source),
        checksums: None,
    };
    if report.is_sound() {
        report.checksums = Some(list(source, &checksums)?);
    }
    Ok(report)
}

fn read_and_check(
    source: &dyn ExpertSource,
    layout: &SlotLayout,
    key: ExpertKey,
    buffer: &mut Vec<u8>,
) -> Result<u64, BadRecord> {
    buffer.resize(usize::try_from(layout.slot_bytes()).expect("a slot lies in memory"), 0);
    read_expert(source, key, buffer, &mut ReadTally::default())?;
    let checksum = check_record(source, layout, key, buffer)?;
    match source.segments(key) {
        // Stored as the slot is laid out, padding included.
        Some([whole]) if whole.len_bytes == layout.slot_bytes() => first_nonzero_padding(layout, buffer)
            .map_or(Ok(checksum), |at| {
                let path = source.path(whole.file).into();
                Err(BadRecord::Padding { key, path, offset_bytes: whole.file_offset_bytes + at })
            }),
        _ => Ok(checksum),
    }
}

fn bytes_of(source: &dyn ExpertSource, key: ExpertKey) -> u64 {
    source.segments(key).unwrap_or_default().iter().map(|segment| segment.len_bytes).sum()
}

fn changed(source: &dyn ExpertSource) -> Vec<(PathBuf, FileChange)> {
    let files = files_of(source, source.layers());
    files.into_iter().filter_map(|file| Some((source.path(file).into(), source.changed(file)?))).collect()
}

/// The checksums by layer.
fn list(source: &dyn ExpertSource, checksums: &[u64]) -> Result<ExpertChecksums, VerifyError> {
    let origin = origin_of(source, source.layers())
        .map_err(|(path, error)| VerifyError::Origin { path, source: error })?;
    let (mut layers, mut first) = (Vec::new(), 0);
    for layer in source.layers() {
        let own = first..first + layer.experts as usize;
        first = own.end;
        layers.push(LayerChecksums {
            layer: layer.layer,
            record_bytes: layout(source, layer.tier.index()).record_bytes(),
            checksums: checksums[own].to_vec(),
        });
    }
    Ok(ExpertChecksums::new(origin, layers))
}
