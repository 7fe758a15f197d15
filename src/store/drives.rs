//! The drives that a source lies on, and what was read from each.

use std::time::{Duration, Instant};

use super::{
    options::{ReadMode, ReadPriority},
    read::ReadTally,
    times::{Recorder, Times},
};

/// What was read from one drive, and how it did. A piece is what one reader reads at a time: a whole expert or some of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriveTelemetry {
    /// The drive's number, as [`ExpertSource::drive`](crate::ExpertSource::drive) has it.
    pub drive: u64,
    /// Readers that it has: the most pieces under way at once.
    pub readers: u32,
    /// About the most that one piece has.
    pub piece_bytes: u64,
    /// How it is to be read.
    pub mode: ReadMode,
    /// Bytes read for those that waited.
    pub demand_bytes: u64,
    /// Bytes read ahead for requests that are known.
    pub prefetch_bytes: u64,
    /// Bytes read on hints.
    pub hint_bytes: u64,
    /// Calls that read something.
    pub reads: u64,
    /// Time with at least one piece under way.
    pub busy_ns: u64,
    /// Pieces under way now. Not reset by draining.
    pub under_way: u32,
    /// The most pieces that were under way at once.
    pub most_under_way: u32,
    /// Reading one piece, by the reader's clock: no waiting in the queue.
    pub service_time: Times,
    /// Waiting in the queue, from the asking for an expert to its first piece.
    pub queue_time: Times,
    /// Calls that were interrupted or read less than they were asked for, and were continued.
    pub retries: u64,
    /// Reads that were to be direct and went through the page cache, because offset, length or address is not a multiple of
    /// 4096: those of checkpoints read where they lie.
    pub unaligned: u64,
    /// Reads that were to be direct and went through the page cache, because the file system refused.
    pub refused: u64,
    /// Pieces that this drive, as a mirror, could not read, and that were read from the first copy.
    pub mirror_failures: u64,
    /// Reads that took so long that a warning was given.
    pub stalls: u64,
}

impl DriveTelemetry {
    /// Bytes read.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.demand_bytes + self.prefetch_bytes + self.hint_bytes
    }

    /// Bytes a second while it was read from; 0 if it never was.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        if self.busy_ns == 0 { 0.0 } else { self.bytes() as f64 / self.busy_ns as f64 * 1e9 }
    }
}

/// A drive's rate is that of about so much busy time: twice as long, the older half forgotten.
const RECENT_NS: u64 = 2_000_000_000;

/// One drive, as the queue has it.
#[derive(Debug)]
pub(super) struct Drive {
    pub(super) readers: u32,
    pub(super) piece_bytes: u64,
    /// It has failed as a mirror: only what lies nowhere else is read from it.
    pub(super) retired: bool,
    /// Bytes and busy nanoseconds of the last seconds.
    recent: (u64, u64),
    counts: DriveTelemetry,
    busy_since: Option<Instant>,
    service: Recorder,
    queued: Recorder,
}

impl Drive {
    pub(super) fn new(drive: u64, readers: u32, piece_bytes: u64, mode: ReadMode) -> Self {
        Self {
            readers,
            piece_bytes,
            retired: false,
            recent: (0, 0),
            counts: none(drive, readers, piece_bytes, mode, 0),
            busy_since: None,
            service: Recorder::new(),
            queued: Recorder::new(),
        }
    }

    /// A reader has taken a piece.
    pub(super) fn taken(&mut self, now: Instant) {
        self.counts.under_way += 1;
        self.counts.most_under_way = self.counts.most_under_way.max(self.counts.under_way);
        self.busy_since.get_or_insert(now);
    }

    /// An expert has waited for its first piece.
    pub(super) fn waited(&mut self, time: Duration) {
        self.queued.record_duration(time);
    }

    /// A piece has been read, or could not be.
    pub(super) fn returned(
        &mut self,
        now: Instant,
        service: Duration,
        tally: &ReadTally,
        priority: ReadPriority,
    ) {
        let counts = &mut self.counts;
        counts.under_way -= 1;
        let busy_ns = nanoseconds(now, self.busy_since);
        self.busy_since = (counts.under_way > 0).then_some(now);
        counts.busy_ns += busy_ns;
        self.recent = (self.recent.0 + tally.bytes, self.recent.1 + busy_ns);
        if self.recent.1 > RECENT_NS {
            self.recent = (self.recent.0 / 2, self.recent.1 / 2);
        }
        *match priority {
            ReadPriority::Demand => &mut counts.demand_bytes,
            ReadPriority::Prefetch => &mut counts.prefetch_bytes,
            ReadPriority::Hint => &mut counts.hint_bytes,
        } += tally.bytes;
        counts.reads += tally.reads;
        counts.retries += tally.short + tally.interrupted;
        counts.unaligned += tally.unaligned;
        counts.refused += tally.refused;
        self.service.record_duration(service);
    }

    /// Bytes and busy nanoseconds of the last seconds; `None` if nothing was read.
    pub(super) fn recent(&self) -> Option<(u64, u64)> {
        Some(self.recent).filter(|&(bytes, busy_ns)| bytes > 0 && busy_ns > 0)
    }

    pub(super) const fn mirror_failed(&mut self) {
        self.counts.mirror_failures += 1;
    }

    pub(super) const fn stalled(&mut self) {
        self.counts.stalls += 1;
    }

    pub(super) fn telemetry(&self, now: Instant) -> DriveTelemetry {
        DriveTelemetry {
            busy_ns: self.counts.busy_ns + nanoseconds(now, self.busy_since),
            service_time: self.service.times(),
            queue_time: self.queued.times(),
            ..self.counts
        }
    }

    /// Begins anew.
    pub(super) fn reset(&mut self, now: Instant) {
        let DriveTelemetry { drive, readers, piece_bytes, mode, under_way, .. } = self.counts;
        self.counts = none(drive, readers, piece_bytes, mode, under_way);
        self.busy_since = self.busy_since.map(|_| now);
        self.service.reset();
        self.queued.reset();
    }
}

fn none(drive: u64, readers: u32, piece_bytes: u64, mode: ReadMode, under_way: u32) -> DriveTelemetry {
    DriveTelemetry {
        drive,
        readers,
        piece_bytes,
        mode,
        demand_bytes: 0,
        prefetch_bytes: 0,
        hint_bytes: 0,
        reads: 0,
        busy_ns: 0,
        under_way,
        most_under_way: under_way,
        service_time: Times::default(),
        queue_time: Times::default(),
        retries: 0,
        unaligned: 0,
        refused: 0,
        mirror_failures: 0,
        stalls: 0,
    }
}

fn nanoseconds(now: Instant, since: Option<Instant>) -> u64 {
    since.map_or(0, |since| u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX))
}
