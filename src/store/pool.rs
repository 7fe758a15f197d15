//! The reader threads.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    fmt, io,
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use super::{
    calibrate::{self, Shape},
    checks::Checks,
    drives::{Drive, DriveTelemetry},
    error::{LoadError, SlowRead},
    options::{ReadMode, ReadOptions, ReadPriority},
    plan::{self, Home, Run},
    queue::{Finished, MirrorFailure, Piece, PieceOutcome, ReadQueue, Work},
    read::{self, Place, ReadTally, Way},
};
use crate::{
    ids::{ExpertKey, FileId, SlotRef, TierId},
    memory::{LatchedBank, PartedFilling},
    sources::{ExpertSource, files_with_experts},
    sync::{Arc, Mutex, atomic::AtomicBool, lock, thread},
};

/// One expert to read into one slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) key: ExpertKey,
    pub(crate) tier: TierId,
    pub(crate) slot: SlotRef,
}

/// How a load ended.
#[derive(Debug)]
pub(crate) struct Landing {
    pub(crate) load: Load,
    pub(crate) result: Result<(), LoadError>,
    pub(crate) tally: ReadTally,
    /// From the beginning of the first read to the end of the last, by the readers' clock.
    pub(crate) service_ns: u64,
}

/// Where loads go when they have ended. Called by reader threads, without any lock of the store.
pub(crate) trait LoadSink: Send + Sync {
    /// Takes the outcome of a load that was submitted and not cancelled. Called once for each.
    fn landed(&self, landing: Landing);

    /// `landed` has panicked, which is a bug of ours: tells whoever waits for the load. Called once at most for each.
    fn lost(&self, load: Load, error: LoadError);
}

/// A fixed number of threads for each drive, which read experts into slots.
#[derive(Debug)]
pub(crate) struct ReaderPool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    /// How long closing waits for readers; for ever if `None`.
    patience: Option<Duration>,
}

/// What every reader has.
struct Shared {
    queue: ReadQueue,
    source: Arc<dyn ExpertSource>,
    banks: Arc<[LatchedBank]>,
    sink: Arc<dyn LoadSink>,
    checks: Checks,
    mode: ReadMode,
    /// The drive of each file that holds experts, by its position.
    drives: BTreeMap<FileId, usize>,
    /// For each drive, whether it refuses direct reads.
    refused: Vec<AtomicBool>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl ReaderPool {
    /// Starts threads for each drive, `readers` or as many as calibration finds, for at most `limit` waiting loads.
    ///
    /// # Errors
    /// If the system refuses a thread; those already started end.
    pub(crate) fn start(
        source: &Arc<dyn ExpertSource>,
        banks: &Arc<[LatchedBank]>,
        sink: &Arc<dyn LoadSink>,
        checks: Checks,
        readers: u32,
        options: &ReadOptions,
        limit: usize,
    ) -> io::Result<Self> {
        let (numbers, drives) = drives_of(&**source);
        let asked = Shape { readers, piece_bytes: options.piece_bytes };
        let shapes = calibrate::shapes(&**source, &drives, numbers.len(), asked, options.calibration);
        let drive = |(&number, shape): (&u64, &Shape)| {
            Drive::new(number, shape.readers, shape.piece_bytes, options.mode)
        };
        let shared = Arc::new(Shared {
            queue: ReadQueue::new(limit, numbers.iter().zip(&shapes).map(drive).collect()),
            source: Arc::clone(source),
            banks: Arc::clone(banks),
            sink: Arc::clone(sink),
            checks,
            mode: options.mode,
            drives,
            refused: numbers.iter().map(|_| AtomicBool::new(false)).collect(),
        });
        let pool = Self { shared, threads: Mutex::default(), patience: options.stall_limit };
        let all = shapes.iter().enumerate();
        let all = all.flat_map(|(drive, shape)| (0..shape.readers).map(move |_| drive));
        for (reader, drive) in all.enumerate() {
            let shared = Arc::clone(&pool.shared);
            shared.queue.reader_begins();
            let spawned = thread::Builder::new()
                .name(format!("streamed-experts-read-{reader}"))
                .spawn(move || shared.serve(reader, drive));
            match spawned {
                Ok(thread) => lock(&pool.threads).push(thread),
                Err(error) => {
                    pool.shared.queue.reader_ends();
                    pool.close();
                    return Err(error);
                }
            }
        }
        Ok(pool)
    }

    /// Queues a load. The caller has the slot for nothing else until it lands or is cancelled.
    pub(crate) fn submit(&self, load: Load, priority: ReadPriority) {
        self.shared.queue.push(load, priority);
    }

    /// Takes a queued load back. `false`: a reader has some of it, and it will land.
    pub(crate) fn cancel(&self, tier: TierId, slot: SlotRef) -> bool {
        self.shared.queue.cancel(tier, slot)
    }

    /// Serves a load with `priority`, if it is queued with a lower one.
    pub(crate) fn promote(&self, tier: TierId, slot: SlotRef, priority: ReadPriority) {
        self.shared.queue.promote(tier, slot, priority);
    }

    /// The read that is under way for the longest time.
    pub(crate) fn slowest(&self) -> Option<SlowRead> {
        self.shared.queue.slowest().map(|read| self.named(read))
    }

    /// The read that is under way for the longest time, if that is at least `limit` and it was not told before.
    pub(crate) fn newly_stalled(&self, limit: Duration) -> Option<SlowRead> {
        self.shared.queue.newly_stalled(limit).map(|read| self.named(read))
    }

    fn named(&self, (key, file, offset_bytes, time): (ExpertKey, FileId, u64, Duration)) -> SlowRead {
        SlowRead { key, path: self.shared.source.path(file).into(), offset_bytes, time }
    }

    /// What each drive did since the beginning or the last reset.
    pub(crate) fn drives(&self, reset: bool) -> Vec<DriveTelemetry> {
        self.shared.queue.telemetry(reset)
    }

    /// Finishes what is queued and waits for the readers to end; not longer than the limit of a stall, if there is one. Does
    /// nothing the second time.
    pub(crate) fn close(&self) {
        self.shared.queue.close();
        let threads = std::mem::take(&mut *lock(&self.threads));
        // A source may own the last handle and drop it on a reader; that one ends by itself.
        let (own, others): (Vec<_>, Vec<_>) =
            threads.into_iter().partition(|reader| reader.thread().id() == thread::current().id());
        if others.is_empty() {
            return;
        }
        if self.shared.queue.wait_for_readers(own.len(), self.patience) {
            for reader in others {
                let _ = reader.join();
            }
        } else if let Some(slowest) = self.slowest() {
            log::warn!("closed without waiting for a read: {slowest}"); // it owns what it writes to
        }
    }
}

/// The drives that a source's experts and their mirrors lie on, ascending; and the position of each file's.
fn drives_of(source: &dyn ExpertSource) -> (Vec<u64>, BTreeMap<FileId, usize>) {
    let mut files = files_with_experts(source);
    let mirrors: Vec<_> = files.iter().filter_map(|&file| source.mirror(file)).collect();
    files.extend(mirrors);
    let drives: BTreeMap<_, _> = files.into_iter().map(|file| (file, source.drive(file))).collect();
    let mut numbers: Vec<_> = drives.values().copied().collect();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.is_empty() {
        numbers.push(0); // a source whose experts have no bytes: somebody must say so
    }
    let position = |number| numbers.binary_search(&number).expect("every drive is listed");
    let drives = drives.into_iter().map(|(file, number)| (file, position(number))).collect();
    (numbers, drives)
}

impl Shared {
    fn serve(&self, reader: usize, drive: usize) {
        while let Some(work) = self.queue.next(reader, drive) {
            let (finished, failed_mirror) = match work {
                Work::Open(id, load) => (self.queue.opened(id, self.open(load)), None),
                Work::Read(piece) => self.read(reader, drive, piece),
            };
            if let Some(MirrorFailure { error }) = failed_mirror {
                log::warn!(
                    "a mirror failed, so that experts are read from the first copy alone from now on: {error}"
                );
            }
            if let Some(finished) = finished {
                self.land(finished);
            }
        }
        self.queue.reader_ends();
    }

    /// Where the bytes of a load lie, and the right to write its slot.
    fn open(&self, load: Load) -> Result<(PartedFilling, VecDeque<Run>), LoadError> {
        guarded(load.key, || {
            let slot_bytes = self.banks[load.tier.index()].bank().slot_bytes();
            // A file that held no expert when the pool was started is on the first drive as well as on any.
            let home = |file| Home { file, drive: self.drives.get(&file).copied().unwrap_or(0) };
            let runs = plan::runs(&*self.source, load.key, slot_bytes, home)?;
            let filling = PartedFilling::begin(&self.banks, load.tier, load.slot.slot);
            filling.whole().poison();
            Ok((filling, runs))
        })
    }

    fn read(
        &self,
        reader: usize,
        drive: usize,
        mut piece: Piece,
    ) -> (Option<Finished>, Option<MirrorFailure>) {
        let way = match self.mode {
            ReadMode::Buffered => Way::Buffered,
            ReadMode::Direct => Way::Direct { refused: &self.refused[drive] },
        };
        let (mut tally, mut at, key) = (ReadTally::default(), 0, piece.key);
        let began = Instant::now();
        // The tally may be short after a panic, and the slot holds part of an expert: it is freed, never leased.
        let result = guarded(key, || {
            for (number, read) in piece.reads.iter_mut().enumerate() {
                at = number;
                let place = Place { key, file: read.home.file, offset_bytes: read.run.file_offset_bytes };
                read::read_range(&*self.source, way, place, read.part.bytes(), &mut tally)?;
            }
            Ok(())
        });
        let failure = result.err().map(|error| (at, error));
        let outcome = PieceOutcome { tally, service: began.elapsed(), failure };
        self.queue.returned(reader, drive, piece, outcome)
    }

    /// Checks an expert that was read whole, and hands it over.
    fn land(&self, finished: Finished) {
        let Finished { load, filling, result, tally, service_ns } = finished;
        let result = result.and_then(|()| match &filling {
            Some(filling) => guarded(load.key, || {
                self.checks.check(&*self.source, load.tier, load.key, filling.whole().bytes())
            }),
            None => Ok(()),
        });
        drop(filling); // before anybody may read the slot
        let landing = Landing { load, result, tally, service_ns };
        let landed = guarded(load.key, || {
            self.sink.landed(landing);
            Ok(())
        });
        if let Err(error) = landed {
            let _ = guarded(load.key, || {
                self.sink.lost(load, error);
                Ok(())
            });
        }
    }
}

/// Makes an error of a panic.
fn guarded<T>(key: ExpertKey, work: impl FnOnce() -> Result<T, LoadError>) -> Result<T, LoadError> {
    let caught = std::panic::catch_unwind(AssertUnwindSafe(work));
    caught.unwrap_or_else(|panic| Err(LoadError::Panicked { key, message: message(panic.as_ref()) }))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{ExpertId, Generation, LayerId, SlotId},
        memory::Bank,
        store::ChecksumMode,
        sync::mpsc,
    };

    /// Panics at the first landing; tells of the others, and of what was lost.
    struct Broken(Mutex<mpsc::Sender<String>>, AtomicBool);

    impl LoadSink for Broken {
        fn landed(&self, landing: Landing) {
            let first = !self.1.swap(true, std::sync::atomic::Ordering::SeqCst);
            assert!(!first, "the table is wrong");
            lock(&self.0).send(format!("{} {:?}", landing.load.key, landing.result)).unwrap();
        }

        fn lost(&self, load: Load, error: LoadError) {
            lock(&self.0).send(format!("{} lost: {error}", load.key)).unwrap();
        }
    }

    #[test]
    fn a_panic_in_the_landing_is_told_and_the_reader_goes_on() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen3_moe-affine4-g64-bf16");
        let source: Arc<dyn ExpertSource> = crate::sources::open_source(path).unwrap().into();
        let bank = Bank::anonymous(2, source.tiers()[0].layout.slot_bytes()).unwrap();
        let banks: Arc<[LatchedBank]> = vec![LatchedBank::new(bank)].into();
        let (send, told) = mpsc::channel();
        let sink: Arc<dyn LoadSink> = Arc::new(Broken(Mutex::new(send), AtomicBool::new(false)));
        let checks = Checks::new(&*source, ChecksumMode::Off).unwrap();
        let pool = ReaderPool::start(&source, &banks, &sink, checks, 1, &ReadOptions::default(), 2).unwrap();
        for expert in 0..2 {
            let slot = SlotRef { slot: SlotId(expert), generation: Generation(1) };
            let key = ExpertKey::new(LayerId(0), ExpertId(expert));
            pool.submit(Load { key, tier: TierId(0), slot }, ReadPriority::Demand);
        }
        let next = || told.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(next(), "L0E0 lost: the source panicked while it read L0E0: the table is wrong");
        assert_eq!(next(), "L0E1 Ok(())");
        drop(banks[0].fill(SlotId(0))); // nobody has the slot any more
        pool.close();
    }
}
