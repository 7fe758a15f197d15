//! How many readers a drive wants, and how much at a time: measured, for a moment, when a source is opened.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use super::options::Calibration;
use crate::{
    ids::{ExpertId, ExpertKey, FileId},
    sources::{DIRECT_ALIGNMENT_BYTES, ExpertSource, replace_file},
    sync::{
        atomic::{AtomicU64, Ordering::Relaxed},
        thread,
    },
};

/// A drive with less of a source's experts is not worth measuring.
const LEAST_BYTES: u64 = 1 << 30;

/// Readers that are tried with each size, fewest first.
const DEPTHS: [u32; 4] = [1, 2, 4, 8];

/// Bytes of a piece that are tried.
const SIZES: [u64; 2] = [1 << 20, 4 << 20];

/// How long each is tried.
const TRIAL: Duration = Duration::from_millis(80);

/// How long all of them may take; what has been tried by then is chosen from.
const ALL_TRIALS: Duration = Duration::from_millis(1500);

/// The least that reads as fast as this share of the best is chosen: more readers only get into each other's way.
const GOOD_ENOUGH: f64 = 0.95;

/// Places that trials read from.
const MAX_PLACES: usize = 4096;

/// How a drive is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) readers: u32,
    pub(super) piece_bytes: u64,
}

/// Consecutive bytes of a file.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    file: FileId,
    offset_bytes: u64,
    len_bytes: u64,
}

/// What is written beside a source.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    drive: u64,
    len_bytes: u64,
    modified_ns: u64,
    readers: u32,
    piece_bytes: u64,
}

const VERSION: u32 = 1;

/// The shape of each drive: measured or known, or `asked` where that is not to be or cannot.
pub(super) fn shapes(
    source: &dyn ExpertSource,
    drives: &BTreeMap<FileId, usize>,
    count: usize,
    asked: Shape,
    calibration: Calibration,
) -> Vec<Shape> {
    if calibration == Calibration::Off {
        return vec![asked; count];
    }
    let mut stretches: Vec<Vec<Stretch>> = vec![Vec::new(); count];
    for stretch in stretches_of(source) {
        stretches[drives[&stretch.file]].push(stretch);
        if let Some(file) = source.mirror(stretch.file) {
            stretches[drives[&file]].push(Stretch { file, ..stretch });
        }
    }
    let shape = |stretches: Vec<Stretch>| {
        let bytes: u64 = stretches.iter().map(|stretch| stretch.len_bytes).sum();
        if bytes < LEAST_BYTES {
            return asked;
        }
        shape(source, &stretches, calibration).unwrap_or(asked)
    };
    stretches.into_iter().map(shape).collect()
}

fn stretches_of(source: &dyn ExpertSource) -> impl Iterator<Item = Stretch> {
    let layers = source.layers().iter();
    let keys = layers
        .flat_map(|layer| (0..layer.experts).map(|expert| ExpertKey::new(layer.layer, ExpertId(expert))));
    keys.filter_map(|key| source.segments(key)).flatten().map(|segment| Stretch {
        file: segment.file,
        offset_bytes: segment.file_offset_bytes,
        len_bytes: segment.len_bytes,
    })
}

/// What a drive wants, known or measured; `None` if it cannot be read.
fn shape(source: &dyn ExpertSource, stretches: &[Stretch], calibration: Calibration) -> Option<Shape> {
    let first = stretches.iter().map(|stretch| stretch.file).min()?;
    let (path, drive) = (source.path(first), source.drive(first));
    if calibration == Calibration::Kept
        && let Some(known) = known(path, drive)
    {
        return Some(known);
    }
    let found = measure(source, stretches)?;
    if calibration == Calibration::Kept {
        keep(path, drive, found);
    }
    Some(found)
}

/// Where the shape of the drive of `path` is kept.
fn kept_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().map(OsString::from).unwrap_or_default();
    name.push(".drive.json");
    path.with_file_name(name)
}

/// Length and time of the last change.
fn stamp(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some((metadata.len(), u64::try_from(modified.as_nanos()).ok()?))
}

/// What was measured before, if it was on the same drive with the same file.
fn known(path: &Path, drive: u64) -> Option<Shape> {
    let (len_bytes, modified_ns) = stamp(path)?;
    let kept: Kept = serde_json::from_slice(&fs::read(kept_path(path)).ok()?).ok()?;
    let Kept { readers, piece_bytes, .. } = kept;
    let same = kept == Kept { version: VERSION, drive, len_bytes, modified_ns, readers, piece_bytes };
    let possible = DEPTHS.contains(&readers) && SIZES.contains(&piece_bytes);
    (same && possible).then_some(Shape { readers, piece_bytes })
}

fn keep(path: &Path, drive: u64, Shape { readers, piece_bytes }: Shape) {
    let Some((len_bytes, modified_ns)) = stamp(path) else { return };
    let kept = Kept { version: VERSION, drive, len_bytes, modified_ns, readers, piece_bytes };
    let written = serde_json::to_vec(&kept)
        .map_err(io::Error::from)
        .and_then(|json| replace_file(&kept_path(path), &json));
    if let Err(error) = written {
        log::debug!("the measured shape of a drive is not kept in {}: {error}", kept_path(path).display());
    }
}

/// Tries every shape for a moment. `None` if nothing could be read.
fn measure(source: &dyn ExpertSource, stretches: &[Stretch]) -> Option<Shape> {
    let step = stretches.len().div_ceil(MAX_PLACES).max(1);
    let places: Vec<_> = stretches.iter().copied().step_by(step).collect();
    let began = Instant::now();
    let mut trials = Vec::new();
    // Every size with one reader, with two, and so on: when time is up, what few readers can do is known.
    for (readers, piece_bytes) in DEPTHS.into_iter().flat_map(|depth| SIZES.map(|size| (depth, size))) {
        if began.elapsed() > ALL_TRIALS {
            break;
        }
        let shape = Shape { readers, piece_bytes };
        trials.push((shape, rate(source, &places, shape, trials.len() as u64)?));
    }
    choose(&trials)
}

/// The first shape that is good enough.
fn choose(trials: &[(Shape, f64)]) -> Option<Shape> {
    let best = trials.iter().map(|trial| trial.1).fold(0.0, f64::max);
    trials.iter().find(|trial| trial.1 >= GOOD_ENOUGH * best).map(|trial| trial.0)
}

/// Bytes a second of reading at scattered places with as many threads; `None` if a read fails.
fn rate(source: &dyn ExpertSource, places: &[Stretch], shape: Shape, seed: u64) -> Option<f64> {
    let bytes = AtomicU64::new(0);
    let began = Instant::now();
    let read = |reader: u32| {
        let mut random = Random((seed << 32) + u64::from(reader) + 1);
        let mut memory = vec![0; usize::try_from(shape.piece_bytes + DIRECT_ALIGNMENT_BYTES).ok()?];
        let aligned = memory.as_ptr().align_offset(usize::try_from(DIRECT_ALIGNMENT_BYTES).ok()?);
        let buffer = &mut memory[aligned..];
        while began.elapsed() < TRIAL {
            let place = places[usize::try_from(random.below(places.len() as u64)?).ok()?];
            bytes.fetch_add(read_somewhere(source, place, shape.piece_bytes, buffer, &mut random)?, Relaxed);
        }
        Some(())
    };
    let all = thread::scope(|scope| {
        let threads: Vec<_> = (0..shape.readers).map(|reader| scope.spawn(move || read(reader))).collect();
        threads.into_iter().all(|thread| thread.join().is_ok_and(|ended| ended.is_some()))
    });
    let bytes = bytes.into_inner();
    (all && bytes > 0).then(|| bytes as f64 / began.elapsed().as_secs_f64())
}

/// Reads some aligned bytes of a stretch, past the page cache if that can be; how many.
fn read_somewhere(
    source: &dyn ExpertSource,
    place: Stretch,
    most_bytes: u64,
    buffer: &mut [u8],
    random: &mut Random,
) -> Option<u64> {
    let end = place.offset_bytes + place.len_bytes;
    let first = place.offset_bytes.next_multiple_of(DIRECT_ALIGNMENT_BYTES);
    let pages = end.saturating_sub(first) / DIRECT_ALIGNMENT_BYTES;
    if pages == 0 {
        return Some(0);
    }
    let wanted = pages.min(most_bytes / DIRECT_ALIGNMENT_BYTES);
    let offset_bytes = first + random.below(pages - wanted + 1)? * DIRECT_ALIGNMENT_BYTES;
    let len_bytes = wanted * DIRECT_ALIGNMENT_BYTES;
    let buffer = &mut buffer[..usize::try_from(len_bytes).ok()?];
    let read = source.read_direct_at(place.file, buffer, offset_bytes).or_else(|_| {
        source.forget(place.file, offset_bytes, len_bytes);
        let read = source.read_at(place.file, buffer, offset_bytes);
        source.forget(place.file, offset_bytes, len_bytes);
        read
    });
    match read {
        Ok(0) => None,
        Ok(read) => Some(read as u64),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Some(0),
        Err(_) => None,
    }
}

/// Places to read need not be better than this (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> Option<u64> {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.checked_rem(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{LayerId, TierId},
        sources::{Segment, SparseLayer, Tier},
    };

    /// One file of 2 GiB of experts that does not exist: reads take time and read nothing.
    #[derive(Debug)]
    struct Timed {
        path: PathBuf,
        layers: [SparseLayer; 1],
        segments: Vec<[Segment; 1]>,
        reads: AtomicU64,
        fails: bool,
    }

    impl Timed {
        fn new(folder: &Path) -> Self {
            let path = folder.join("experts.bin");
            fs::write(&path, "as long as this").unwrap();
            let segment = |expert: u64| {
                let (len_bytes, slot_offset_bytes) = (64 << 20, 0);
                [Segment {
                    file: FileId(0),
                    file_offset_bytes: expert * len_bytes,
                    slot_offset_bytes,
                    len_bytes,
                }]
            };
            Self {
                path,
                layers: [SparseLayer { layer: LayerId(0), tier: TierId(0), experts: 32 }],
                segments: (0..32).map(segment).collect(),
                reads: AtomicU64::new(0),
                fails: false,
            }
        }

        fn shape(&self, calibration: Calibration) -> Shape {
            let asked = Shape { readers: 3, piece_bytes: 5 };
            shapes(self, &BTreeMap::from([(FileId(0), 0)]), 1, asked, calibration)[0]
        }

        /// How often it was read since this was last asked.
        fn reads(&self) -> u64 {
            self.reads.swap(0, Relaxed)
        }
    }

    impl ExpertSource for Timed {
        fn tiers(&self) -> &[Tier] {
            &[]
        }
        fn layers(&self) -> &[SparseLayer] {
            &self.layers
        }
        fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
            self.segments.get(key.expert.index()).map(|segments| &segments[..])
        }
        fn read_at(&self, _: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
            assert!(offset_bytes.is_multiple_of(4096) && offset_bytes + buffer.len() as u64 <= 2 << 30);
            if self.fails {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            self.reads.fetch_add(1, Relaxed);
            thread::sleep(Duration::from_nanos(buffer.len() as u64 * 2));
            Ok(buffer.len())
        }
        fn path(&self, _: FileId) -> &Path {
            &self.path
        }
    }

    #[test]
    fn the_least_that_is_nearly_the_best_is_chosen() {
        let shape = |readers| Shape { readers, piece_bytes: 1 << 20 };
        let trials = |rates: [f64; 4]| [1, 2, 4, 8].map(shape).into_iter().zip(rates).collect::<Vec<_>>();
        for (rates, readers) in [
            ([1.0, 1.0, 1.01, 0.9], 1),
            ([1.0, 1.9, 2.0, 2.0], 2),
            ([1.0, 1.8, 3.0, 3.5], 8),
            ([0.1, 5.0, 1.0, 0.5], 2),
        ] {
            assert_eq!(choose(&trials(rates)), Some(shape(readers)), "{rates:?}");
        }
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn measuring_afresh_reads_and_writes_nothing_down() {
        let folder = tempfile::tempdir().unwrap();
        let source = Timed::new(folder.path());
        let found = source.shape(Calibration::Afresh);
        assert!(DEPTHS.contains(&found.readers) && SIZES.contains(&found.piece_bytes), "{found:?}");
        assert!(source.reads() > 0 && !folder.path().join("experts.bin.drive.json").exists());
    }

    #[test]
    fn what_was_measured_is_believed_for_the_same_file_and_never_when_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let source = Timed::new(folder.path());
        let found = source.shape(Calibration::Kept);
        assert!(source.reads() > 0);
        assert_eq!((source.shape(Calibration::Kept), source.reads()), (found, 0));
        let kept = folder.path().join("experts.bin.drive.json");
        for damaged in ["", "{}", &fs::read_to_string(&kept).unwrap().replace("readers\":", "readers\":7")] {
            fs::write(&kept, damaged).unwrap();
            source.shape(Calibration::Kept);
            assert!(source.reads() > 0, "{damaged}");
        }
        fs::write(&source.path, "another length").unwrap();
        source.shape(Calibration::Kept);
        assert!(source.reads() > 0);
    }

    #[test]
    fn without_calibration_or_without_a_drive_that_can_be_read_the_options_hold() {
        let folder = tempfile::tempdir().unwrap();
        let mut source = Timed::new(folder.path());
        let asked = Shape { readers: 3, piece_bytes: 5 };
        assert_eq!((source.shape(Calibration::Off), source.reads()), (asked, 0));
        source.fails = true;
        assert_eq!(source.shape(Calibration::Afresh), asked);
        source.fails = false;
        source.path = folder.path().join("not there/experts.bin");
        assert_ne!(source.shape(Calibration::Kept), asked, "that it cannot be kept is no error");
        assert!(source.reads() > 0);
        source.segments.truncate(15);
        assert_eq!((source.shape(Calibration::Afresh), source.reads()), (asked, 0), "too little to measure");
    }
}
