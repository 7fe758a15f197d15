//! The loads that wait for readers, and those that readers are at.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{
    drives::{Drive, DriveTelemetry},
    error::LoadError,
    options::ReadPriority,
    plan::{self, Home, Run},
    pool::Load,
    read::ReadTally,
};
use crate::{
    ids::{ExpertKey, FileId, SlotRef, TierId},
    memory::{PartedFilling, SlotPart},
    sync::{Condvar, Mutex, MutexGuard, lock, wait, wait_for},
};

/// No piece is smaller than this while there is more to take: smaller reads cost more than they gain.
const MIN_PIECE_BYTES: u64 = 256 << 10;

/// Every priority, first served first.
const PRIORITIES: usize = 3;

/// First in, first out within a priority; bounded by the number of slots, since a slot waits for one load at most.
///
/// A load is opened once (where its bytes lie is looked up), then read in pieces by the readers of the drives it lies on, and
/// lands with its last piece. How much a reader takes depends on how much is queued for its drive.
#[derive(Debug)]
pub(super) struct ReadQueue {
    inner: Mutex<Waiting>,
    /// For each drive: there is work for one of its readers.
    work: Vec<Condvar>,
    /// A reader has ended.
    ended: Condvar,
}

#[derive(Debug)]
struct Waiting {
    loads: Vec<Option<Queued>>,
    idle: Vec<usize>,
    /// Loads that are not opened, or of which not everything has been taken.
    lines: [VecDeque<usize>; PRIORITIES],
    drives: Vec<Drive>,
    /// What each reader is at.
    readers: Vec<Option<UnderWay>>,
    /// Readers that have not ended.
    alive: usize,
    closed: bool,
}

/// One load, from its asking to its landing.
#[derive(Debug)]
struct Queued {
    load: Load,
    priority: ReadPriority,
    asked: Instant,
    stage: Stage,
    filling: Option<PartedFilling>,
    /// What no reader has taken.
    runs: VecDeque<Run>,
    /// Pieces that readers have.
    pieces: u32,
    began: Option<Instant>,
    tally: ReadTally,
    /// The first failure by place, and that place.
    failure: Option<((usize, u64), LoadError)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asked,
    Opening,
    Open,
}

/// A piece that a reader reads now.
#[derive(Clone, Debug)]
struct UnderWay {
    key: ExpertKey,
    file: FileId,
    offset_bytes: u64,
    bytes: u64,
    drive: usize,
    since: Instant,
    warned: bool,
}

/// What a reader does next.
#[derive(Debug)]
pub(super) enum Work {
    /// Look up where a load's bytes lie, and say so by [`ReadQueue::opened`].
    Open(usize, Load),
    /// Read, and say so by [`ReadQueue::returned`].
    Read(Piece),
}

/// Some bytes of one expert, for one reader.
#[derive(Debug)]
pub(super) struct Piece {
    load: usize,
    pub(super) key: ExpertKey,
    pub(super) reads: Vec<PieceRead>,
}

/// One read of a piece.
#[derive(Debug)]
pub(super) struct PieceRead {
    /// What it reads, as it was in the queue.
    pub(super) run: Run,
    /// The copy that it reads.
    pub(super) home: Home,
    pub(super) part: SlotPart,
}

/// How reading a piece ended.
#[derive(Debug)]
pub(super) struct PieceOutcome {
    pub(super) tally: ReadTally,
    pub(super) service: Duration,
    /// Which of its reads failed, and how.
    pub(super) failure: Option<(usize, LoadError)>,
}

/// A load of which everything has been read, or that has failed and that no reader is at.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) load: Load,
    pub(super) filling: Option<PartedFilling>,
    pub(super) result: Result<(), LoadError>,
    pub(super) tally: ReadTally,
    pub(super) service_ns: u64,
}

impl ReadQueue {
    /// A queue for `limit` loads, allocated now, and the readers of `drives`, numbered drive by drive.
    pub(super) fn new(limit: usize, drives: Vec<Drive>) -> Self {
        let readers = drives.iter().map(|drive| drive.readers as usize).sum();
        let work = drives.iter().map(|_| Condvar::new()).collect();
        let waiting = Waiting {
            loads: (0..limit).map(|_| None).collect(),
            idle: (0..limit).rev().collect(),
            lines: std::array::from_fn(|_| VecDeque::with_capacity(limit)),
            drives,
            readers: vec![None; readers],
            alive: 0,
            closed: false,
        };
        Self { inner: Mutex::new(waiting), work, ended: Condvar::new() }
    }

    /// Queues `load`.
    pub(super) fn push(&self, load: Load, priority: ReadPriority) {
        let mut waiting = lock(&self.inner);
        debug_assert!(!waiting.closed, "a load after closing");
        let id = waiting.idle.pop().expect("no more loads than slots");
        waiting.loads[id] = Some(Queued {
            load,
            priority,
            asked: Instant::now(),
            stage: Stage::Asked,
            filling: None,
            runs: VecDeque::new(),
            pieces: 0,
            began: None,
            tally: ReadTally::default(),
            failure: None,
        });
        waiting.lines[priority as usize].push_back(id);
        drop(waiting);
        self.work.iter().for_each(Condvar::notify_one);
    }

    /// Takes a load back; `false` if a reader has any of it already.
    pub(super) fn cancel(&self, tier: TierId, slot: SlotRef) -> bool {
        let mut waiting = lock(&self.inner);
        let Some(id) = waiting.find(tier, slot) else { return false };
        let untouched = waiting.load(id).began.is_none() && waiting.load(id).stage != Stage::Opening;
        if untouched {
            waiting.leave_line(id);
            drop(waiting.remove(id)); // with its filling: the slot is free
        }
        untouched
    }

    /// Serves a load before others, if it is not served so early already.
    pub(super) fn promote(&self, tier: TierId, slot: SlotRef, priority: ReadPriority) {
        let mut waiting = lock(&self.inner);
        let Some(id) = waiting.find(tier, slot) else { return };
        if waiting.load(id).priority > priority {
            waiting.leave_line(id);
            waiting.load(id).priority = priority;
            waiting.lines[priority as usize].push_back(id);
        }
    }

    /// What reader `reader`, of the drive at position `drive`, does next; blocks until there is something. `None` once the
    /// queue is closed and every load has ended.
    pub(super) fn next(&self, reader: usize, drive: usize) -> Option<Work> {
        let mut waiting = lock(&self.inner);
        loop {
            if let Some(work) = waiting.take(reader, drive) {
                if waiting.has_work(drive) {
                    self.work[drive].notify_one();
                }
                return Some(work);
            }
            if waiting.closed && waiting.is_empty() {
                return None;
            }
            waiting = wait(&self.work[drive], waiting);
        }
    }

    /// Says where the bytes of a load lie.
    pub(super) fn opened(
        &self,
        id: usize,
        plan: Result<(PartedFilling, VecDeque<Run>), LoadError>,
    ) -> Option<Finished> {
        let mut waiting = lock(&self.inner);
        let load = waiting.load(id);
        load.stage = Stage::Open;
        match plan {
            Ok((filling, runs)) => {
                load.filling = Some(filling);
                load.runs = runs;
            }
            Err(error) => load.failure = Some(((0, 0), error)),
        }
        if load.runs.is_empty() {
            waiting.leave_line(id);
        } else {
            let drives: Vec<_> = (0..self.work.len()).filter(|&drive| waiting.has_work(drive)).collect();
            drives.into_iter().for_each(|drive| self.work[drive].notify_one());
        }
        self.finish(waiting, id)
    }

    /// Takes a piece back that has been read, or could not be. What a mirror could not read goes back into the queue, for
    /// the first copy; then the drive is told, if it is the first time.
    pub(super) fn returned(
        &self,
        reader: usize,
        drive: usize,
        piece: Piece,
        outcome: PieceOutcome,
    ) -> (Option<Finished>, Option<MirrorFailure>) {
        let now = Instant::now();
        let Piece { load: id, reads, .. } = piece;
        // The parts end here, before anybody may take the same bytes again.
        let runs: Vec<_> = reads.into_iter().map(|PieceRead { run, home, part: _ }| (run, home)).collect();
        let mut waiting = lock(&self.inner);
        waiting.readers[reader] = None;
        let load = waiting.load(id);
        let priority = load.priority;
        load.pieces -= 1;
        load.tally.add(&outcome.tally);
        let mut failed_mirror = None;
        if let Some((at, error)) = outcome.failure {
            let (failed, home) = &runs[at];
            if *home == failed.home {
                load.fail((failed.segment, failed.file_offset_bytes), error);
                waiting.leave_line(id);
            } else {
                failed_mirror = Some(error);
                let again = runs.into_iter().map(|(run, _)| Run { mirror: None, ..run });
                waiting.read_again(id, again);
            }
        }
        waiting.drives[drive].returned(now, outcome.service, &outcome.tally, priority);
        let failed_mirror = failed_mirror.and_then(|error| {
            waiting.drives[drive].mirror_failed();
            let first = !std::mem::replace(&mut waiting.drives[drive].retired, true);
            self.work.iter().for_each(Condvar::notify_one);
            first.then_some(MirrorFailure { error })
        });
        (self.finish(waiting, id), failed_mirror)
    }

    /// The load, if it has ended: then it leaves the queue.
    fn finish(&self, mut waiting: MutexGuard<'_, Waiting>, id: usize) -> Option<Finished> {
        let load = waiting.load(id);
        if load.pieces > 0 || !load.runs.is_empty() {
            return None;
        }
        let ended = waiting.remove(id);
        if waiting.closed && waiting.is_empty() {
            self.work.iter().for_each(Condvar::notify_all);
        }
        let service_ns = ended.began.map_or(0, |began| began.elapsed().as_nanos());
        Some(Finished {
            load: ended.load,
            filling: ended.filling,
            result: ended.failure.map_or(Ok(()), |(_, error)| Err(error)),
            tally: ended.tally,
            service_ns: u64::try_from(service_ns).unwrap_or(u64::MAX),
        })
    }

    /// The read that is under way for the longest time.
    pub(super) fn slowest(&self) -> Option<(ExpertKey, FileId, u64, Duration)> {
        let waiting = lock(&self.inner);
        let slowest = waiting.readers.iter().flatten().min_by_key(|read| read.since)?;
        Some((slowest.key, slowest.file, slowest.offset_bytes, slowest.since.elapsed()))
    }

    /// The read that is under way for the longest time, if that is at least `limit` and it was not told before.
    pub(super) fn newly_stalled(&self, limit: Duration) -> Option<(ExpertKey, FileId, u64, Duration)> {
        let mut waiting = lock(&self.inner);
        let Waiting { readers, drives, .. } = &mut *waiting;
        let slowest = readers.iter_mut().flatten().min_by_key(|read| read.since)?;
        if slowest.warned || slowest.since.elapsed() < limit {
            return None;
        }
        slowest.warned = true;
        drives[slowest.drive].stalled();
        Some((slowest.key, slowest.file, slowest.offset_bytes, slowest.since.elapsed()))
    }

    /// What each drive did; and, if `reset`, begins anew.
    pub(super) fn telemetry(&self, reset: bool) -> Vec<DriveTelemetry> {
        let now = Instant::now();
        let mut waiting = lock(&self.inner);
        let telemetry = waiting.drives.iter().map(|drive| drive.telemetry(now)).collect();
        if reset {
            waiting.drives.iter_mut().for_each(|drive| drive.reset(now));
        }
        telemetry
    }

    /// Lets readers end when nothing is left.
    pub(super) fn close(&self) {
        lock(&self.inner).closed = true;
        self.work.iter().for_each(Condvar::notify_all);
    }

    /// A reader begins.
    pub(super) fn reader_begins(&self) {
        lock(&self.inner).alive += 1;
    }

    /// A reader ends.
    pub(super) fn reader_ends(&self) {
        lock(&self.inner).alive -= 1;
        self.ended.notify_all();
    }

    /// Waits until no more than `left` readers are there, or the time is over; whether they are.
    pub(super) fn wait_for_readers(&self, left: usize, limit: Option<Duration>) -> bool {
        let began = Instant::now();
        let mut waiting = lock(&self.inner);
        while waiting.alive > left {
            waiting = match limit.map(|limit| limit.checked_sub(began.elapsed())) {
                None => wait(&self.ended, waiting),
                Some(None) => return false,
                Some(Some(time)) => wait_for(&self.ended, waiting, time),
            };
        }
        true
    }
}

/// A mirror that could not be read for the first time.
#[derive(Debug)]
pub(super) struct MirrorFailure {
    pub(super) error: LoadError,
}

impl Queued {
    fn fail(&mut self, place: (usize, u64), error: LoadError) {
        if self.failure.as_ref().is_none_or(|&(before, _)| place < before) {
            self.failure = Some((place, error));
        }
        self.runs.clear();
    }
}

impl Waiting {
    fn load(&mut self, id: usize) -> &mut Queued {
        self.loads[id].as_mut().expect("a load that has not ended")
    }

    fn is_empty(&self) -> bool {
        self.idle.len() == self.loads.len()
    }

    fn remove(&mut self, id: usize) -> Queued {
        self.idle.push(id);
        self.loads[id].take().expect("a load that has not ended")
    }

    /// The load of a slot, if it is in a line.
    fn find(&self, tier: TierId, slot: SlotRef) -> Option<usize> {
        let ours = |load: &Queued| load.load.tier == tier && load.load.slot == slot;
        self.lines.iter().flatten().copied().find(|&id| self.loads[id].as_ref().is_some_and(ours))
    }

    fn leave_line(&mut self, id: usize) {
        let priority = self.load(id).priority;
        self.lines[priority as usize].retain(|&queued| queued != id);
    }

    /// Puts what a mirror could not read back, unless the load has failed.
    fn read_again(&mut self, id: usize, runs: impl DoubleEndedIterator<Item = Run>) {
        let load = self.load(id);
        if load.failure.is_some() {
            return;
        }
        let in_line = !load.runs.is_empty();
        runs.rev().for_each(|run| load.runs.push_front(run));
        let priority = load.priority;
        if !in_line {
            self.lines[priority as usize].push_front(id);
        }
    }

    /// Which copy of a run a drive's reader reads, if the drive has any.
    fn copy_on(&self, drive: usize, run: &Run) -> Option<Home> {
        if run.home.drive == drive {
            return Some(run.home);
        }
        run.mirror.filter(|mirror| mirror.drive == drive && !self.drives[drive].retired)
    }

    fn has_work(&self, drive: usize) -> bool {
        let for_us = |load: &Queued| match load.stage {
            Stage::Asked => true,
            Stage::Opening => false,
            Stage::Open => load.runs.iter().any(|run| self.copy_on(drive, run).is_some()),
        };
        self.lines.iter().flatten().any(|&id| self.loads[id].as_ref().is_some_and(for_us))
    }

    /// Opens what is to be opened, so that it is known how much there is, then reads; one priority after the other.
    fn take(&mut self, reader: usize, drive: usize) -> Option<Work> {
        for line in 0..PRIORITIES {
            let asked = |&id: &usize| self.loads[id].as_ref().is_some_and(|load| load.stage == Stage::Asked);
            if let Some(id) = self.lines[line].iter().copied().find(asked) {
                let load = self.load(id);
                load.stage = Stage::Opening;
                return Some(Work::Open(id, load.load));
            }
            if let Some(piece) = self.take_piece(line, reader, drive) {
                return Some(Work::Read(piece));
            }
        }
        None
    }

    fn take_piece(&mut self, line: usize, reader: usize, drive: usize) -> Option<Piece> {
        let serves = |run: &Run| self.copy_on(drive, run).is_some();
        let first = self.lines[line]
            .iter()
            .copied()
            .find(|&id| self.loads[id].as_ref().is_some_and(|load| load.runs.iter().any(serves)));
        let id = first?;
        let most = self.share(line, drive);
        let mut runs = std::mem::take(&mut self.load(id).runs);
        let taken = plan::take(&mut runs, most, |run| self.copy_on(drive, run).is_some());
        let homes: Vec<_> = taken.iter().filter_map(|run| self.copy_on(drive, run)).collect();
        let now = Instant::now();
        let load = self.load(id);
        load.runs = runs;
        load.pieces += 1;
        let key = load.load.key;
        let filling = load.filling.as_ref().expect("an open load has its slot");
        let part = |(run, home): (Run, Home)| {
            let part = filling.part(run.slot.clone());
            PieceRead { run, home, part }
        };
        let reads: Vec<_> = taken.into_iter().zip(homes).map(part).collect();
        let waited = load.began.is_none().then(|| now - load.asked);
        load.began.get_or_insert(now);
        if load.runs.is_empty() {
            self.leave_line(id);
        }
        waited.into_iter().for_each(|waited| self.drives[drive].waited(waited));
        self.drives[drive].taken(now);
        let (file, offset_bytes) = (reads[0].home.file, reads[0].run.file_offset_bytes);
        let bytes = reads.iter().map(|read| read.run.len() as u64).sum();
        self.readers[reader] =
            Some(UnderWay { key, file, offset_bytes, bytes, drive, since: now, warned: false });
        Some(Piece { load: id, key, reads })
    }

    /// How much a reader of the drive takes: its share of what is queued and under way, within limits. Where drives share, a
    /// slow one takes less, so that none is waited for longer than another.
    fn share(&self, line: usize, drive: usize) -> u64 {
        let Drive { readers, piece_bytes, .. } = self.drives[drive];
        let readers = u64::from(readers);
        let under_way = self.readers.iter().flatten().filter(|read| read.drive == drive);
        let (mut queued, mut shared) = (under_way.map(|read| read.bytes).sum::<u64>(), None);
        for load in self.lines[line].iter().filter_map(|&id| self.loads[id].as_ref()) {
            for run in load.runs.iter().filter(|run| self.copy_on(drive, run).is_some()) {
                queued += run.len() as u64;
                shared = shared.or_else(|| self.other_copy(drive, run));
            }
            if queued >= readers * piece_bytes {
                break;
            }
        }
        let share = (queued.div_ceil(readers)).min(piece_bytes);
        let share = shared.map_or(share, |other| self.part_of(share, drive, other));
        share.max(MIN_PIECE_BYTES).min(piece_bytes)
    }

    /// The drive that could read a run instead.
    fn other_copy(&self, drive: usize, run: &Run) -> Option<usize> {
        let other = if run.home.drive == drive { run.mirror?.drive } else { run.home.drive };
        (other != drive && self.copy_on(other, run).is_some()).then_some(other)
    }

    /// What of a share a drive takes beside another: as much less as it is slower, all of it if it is the faster.
    fn part_of(&self, share: u64, drive: usize, other: usize) -> u64 {
        let (Some(own), Some(others)) = (self.drives[drive].recent(), self.drives[other].recent()) else {
            return share;
        };
        // own bytes ÷ own time, over those of the other.
        let (own, others) =
            (u128::from(own.0) * u128::from(others.1), u128::from(others.0) * u128::from(own.1));
        u64::try_from(u128::from(share).saturating_mul(own) / others).unwrap_or(share).min(share)
    }
}
