//! Packing a source into a slab.

use std::{
    fs::File,
    ops::{ControlFlow, RangeInclusive},
    path::{Path, PathBuf},
};

use super::{
    disk::Disk,
    draft::{Draft, Record, layout},
    error::PackError,
    unfinished::{Unfinished, check_unchanged},
    workers::{self, MAX_THREADS},
};
use crate::{
    formats::{
        Head, HeadState, Table, bytes_checksum, first_nonzero_padding, record_checksum, whole_pages,
        zero_padding,
    },
    os,
    sources::ExpertSource,
    store::{ReadTally, check_record, read_expert},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// How to pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackOptions {
    /// The layers to pack, by number; those without experts do not count. Default: all.
    pub layers: Option<RangeInclusive<u32>>,
    /// Replace what lies under the path, and begin anew if an unfinished slab does not fit. Default: no. No effect where
    /// neither is there.
    pub force: bool,
    /// Threads that read and write, one expert each at a time; each has a buffer of one slot. Default 2. Between 1 and
    /// 256.
    pub threads: u32,
}

impl Default for PackOptions {
    fn default() -> Self {
        Self { layers: None, force: false, threads: 2 }
    }
}

/// How far packing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackProgress {
    /// Records that are in the slab.
    pub done_records: u64,
    /// Of them, those that an earlier run had written, and that were found sound.
    pub kept_records: u64,
    /// Records in all.
    pub all_records: u64,
    /// Bytes of the records that are in the slab.
    pub done_bytes: u64,
    /// Bytes of all records.
    pub all_bytes: u64,
}

/// What was packed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackReport {
    /// The slab.
    pub path: PathBuf,
    /// Its length.
    pub file_bytes: u64,
    /// Records in it.
    pub records: u64,
    /// Of them, those that an earlier run had written.
    pub kept_records: u64,
}

/// Packs the experts of `source` into a slab at `path`: one aligned record per expert, laid out as its slot. Blocks.
///
/// The slab is written to `path` with `.partial` appended, flushed, and renamed, so that `path` names what it named before
/// or the whole slab. After a failure or a kill the partial slab stays, and packing the same source to the same path goes
/// on from there: every record in it is read and compared with its checksum first. Experts whose checksum the source knows
/// are compared with it as they are read.
///
/// `progress` is called on this thread, once before the first record and after each; if it breaks, packing stops, and can
/// go on later.
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use streamed_experts::{PackOptions, open_source, pack};
///
/// let source = open_source("Qwen3-30B-A3B-4bit")?;
/// pack(&*source, "qwen3.slab", &PackOptions::default(), |progress| {
///     eprintln!("{} of {}", progress.done_records, progress.all_records);
///     ControlFlow::Continue(())
/// })?;
/// let slab = open_source("qwen3.slab")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Something under the path already, a directory even with force, another packer at work on it, a partial slab of another source, too little room, an
/// expert that cannot be read or is damaged, a source that changes meanwhile, a write that fails.
pub fn pack(
    source: &dyn ExpertSource,
    path: impl AsRef<Path>,
    options: &PackOptions,
    progress: impl FnMut(PackProgress) -> ControlFlow<()>,
) -> Result<PackReport, PackError> {
    pack_through(source, path.as_ref(), options, |file| file, progress)
}

/// [`pack`], writing through what `wrap` makes of the file.
pub(super) fn pack_through<D: Disk>(
    source: &dyn ExpertSource,
    path: &Path,
    options: &PackOptions,
    wrap: impl FnOnce(File) -> D,
    mut progress: impl FnMut(PackProgress) -> ControlFlow<()>,
) -> Result<PackReport, PackError> {
    let threads = options.threads;
    if threads == 0 || threads > MAX_THREADS {
        return Err(PackError::Threads { threads, limit: MAX_THREADS });
    }
    if path.is_dir() {
        return Err(PackError::Directory { path: path.into() });
    }
    if path.exists() && !options.force {
        return Err(PackError::Exists { path: path.into() });
    }
    let draft = Draft::new(source, path, options.layers.as_ref())?;
    let unfinished = Unfinished::open(path)?;
    let begun = unfinished.begun(&draft, options.force)?;
    check_room(path, &draft, &unfinished)?;
    let partial = unfinished.path.clone();
    let packing = Packing { source, draft: &draft, path: &partial, disk: &wrap(unfinished.file) };
    let table: Vec<AtomicU64> = match begun {
        Some(table) => packing.resume(table)?,
        None => packing.begin()?,
    };
    let kept_records = packing.write_records(&table, threads, &mut progress)?;
    check_unchanged(source, &draft)?;
    packing.finish(&table)?;
    let rename_error = |source| PackError::File { what: "rename", path: partial.clone(), source };
    std::fs::rename(&partial, path).map_err(rename_error)?;
    os::sync_directory_of(path).map_err(rename_error)?;
    let (file_bytes, records) = (draft.head.file_bytes, draft.head.records);
    Ok(PackReport { path: path.into(), file_bytes, records, kept_records })
}

fn check_room(path: &Path, draft: &Draft, unfinished: &Unfinished) -> Result<(), PackError> {
    let needed_bytes = draft.head.file_bytes.saturating_sub(unfinished.allocated_bytes());
    let free = os::free_bytes(os::directory_of(path)).map_err(|source| PackError::File {
        what: "ask for the room beside",
        path: path.into(),
        source,
    })?;
    match free {
        Some(free_bytes) if free_bytes < needed_bytes => {
            Err(PackError::NoSpace { path: path.into(), needed_bytes, free_bytes })
        }
        _ => Ok(()),
    }
}

/// What writing needs.
struct Packing<'a, D> {
    source: &'a dyn ExpertSource,
    draft: &'a Draft,
    path: &'a Path,
    disk: &'a D,
}

/// One record that is in the slab.
struct Done {
    bytes: u64,
    kept: bool,
}

impl<D: Disk> Packing<'_, D> {
    /// Writes everything but the records. The table reads as zeros: no record is there.
    fn begin(&self) -> Result<Vec<AtomicU64>, PackError> {
        let head = self.draft.head;
        let len_error = |source| PackError::File { what: "lengthen", path: self.path.into(), source };
        self.disk.set_len(0).map_err(len_error)?;
        self.disk.set_len(head.file_bytes).map_err(len_error)?;
        self.write(&self.draft.manifest, Head::MANIFEST_OFFSET_BYTES)?;
        self.write(&head.to_bytes(), 0)?;
        Ok(self.draft.records.iter().map(|_| AtomicU64::new(0)).collect())
    }

    /// Marks the slab as unfinished: it may have been finished and not yet renamed. Nobody has looked at the zeros behind
    /// head and manifest, so they are written again.
    fn resume(&self, table: Table) -> Result<Vec<AtomicU64>, PackError> {
        self.write(&whole_pages(&self.draft.head.to_bytes()), 0)?;
        self.write(&whole_pages(&self.draft.manifest), Head::MANIFEST_OFFSET_BYTES)?;
        Ok(table.0.into_iter().map(AtomicU64::new).collect())
    }

    /// Writes every record that is not there; how many were.
    fn write_records(
        &self,
        table: &[AtomicU64],
        threads: u32,
        progress: &mut impl FnMut(PackProgress) -> ControlFlow<()>,
    ) -> Result<u64, PackError> {
        let head = &self.draft.head;
        let mut now = PackProgress {
            done_records: 0,
            kept_records: 0,
            all_records: head.records,
            done_bytes: 0,
            all_bytes: head.file_bytes - head.records_offset_bytes(),
        };
        let stopped = |now: PackProgress| PackError::Stopped {
            done_records: now.done_records,
            all_records: now.all_records,
        };
        if progress(now).is_break() {
            return Err(stopped(now));
        }
        let work = |job: usize, buffer: &mut Vec<u8>| self.record(job, &table[job], buffer);
        let flow = workers::run(self.draft.records.len(), threads, work, |outcome| {
            let done = match outcome {
                Ok(done) => done,
                Err(error) => return ControlFlow::Break(error),
            };
            now.done_records += 1;
            now.kept_records += u64::from(done.kept);
            now.done_bytes += done.bytes;
            progress(now).map_break(|()| stopped(now))
        });
        match flow {
            // Whoever breaks behind the last record has all of them.
            ControlFlow::Break(PackError::Stopped { done_records, all_records })
                if done_records == all_records =>
            {
                Ok(now.kept_records)
            }
            ControlFlow::Break(error) => Err(error),
            ControlFlow::Continue(()) => Ok(now.kept_records),
        }
    }

    /// Brings one record into the slab, unless it is there and sound.
    fn record(&self, job: usize, entry: &AtomicU64, buffer: &mut Vec<u8>) -> Result<Done, PackError> {
        let Record { key, tier, offset_bytes } = self.draft.records[job];
        let layout = layout(self.source, tier);
        let bytes = layout.slot_bytes();
        buffer.resize(usize::try_from(bytes).expect("a slot lies in memory"), 0);
        // Relaxed: an entry is touched by one worker, then by this function's caller, which has joined it.
        let written = entry.load(Relaxed);
        if written != 0 && self.disk.read_exact_at(buffer, offset_bytes).is_ok() {
            let sound =
                record_checksum(layout, buffer) == written && first_nonzero_padding(layout, buffer).is_none();
            if sound && self.source.checksum(key).is_none_or(|known| known == written) {
                return Ok(Done { bytes, kept: true });
            }
        }
        read_expert(self.source, key, buffer, &mut ReadTally::default())?;
        zero_padding(layout, buffer);
        let checksum = check_record(self.source, layout, key, buffer)?;
        self.write(buffer, offset_bytes)?;
        let at = self.draft.head.table_offset_bytes() + job as u64 * Table::ENTRY_BYTES;
        self.write(&checksum.to_le_bytes(), at)?;
        entry.store(checksum, Relaxed);
        Ok(Done { bytes, kept: false })
    }

    /// Makes the slab whole: table, flush, head, flush. Only then is it one that a reader accepts.
    fn finish(&self, table: &[AtomicU64]) -> Result<(), PackError> {
        let table = Table(table.iter().map(|entry| entry.load(Relaxed)).collect()).to_bytes();
        let mut head = self.draft.head;
        self.write(&whole_pages(&table), head.table_offset_bytes())?;
        self.sync()?;
        head.state = HeadState::Finished;
        head.table_checksum = bytes_checksum(&table);
        self.write(&head.to_bytes(), 0)?;
        self.sync()
    }

    fn write(&self, bytes: &[u8], offset_bytes: u64) -> Result<(), PackError> {
        let len_bytes = bytes.len() as u64;
        self.disk.write_all_at(bytes, offset_bytes).map_err(|source| PackError::Write {
            path: self.path.into(),
            offset_bytes,
            len_bytes,
            source,
        })
    }

    fn sync(&self) -> Result<(), PackError> {
        self.disk.sync().map_err(|source| PackError::File { what: "flush", path: self.path.into(), source })
    }
}
