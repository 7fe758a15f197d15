//! How fast a source is read: bytes over the time in which at least one read was under way.

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use streamed_experts::{ExpertKey, ExpertSource, FileChange, FileId, Segment, SparseLayer, Tier};

/// A source whose reads are timed by the threads that make them. Two at once take their time once, so the rate is one that
/// a drive can be held to, whatever was hidden behind computing.
#[derive(Debug)]
pub struct Timed {
    source: Arc<dyn ExpertSource>,
    reads: Mutex<Reads>,
}

#[derive(Debug, Default)]
struct Reads {
    under_way: u32,
    /// When the first of them began.
    since: Option<Instant>,
    /// The time before that in which any was under way.
    busy: Duration,
    bytes: u64,
}

impl Timed {
    pub fn new(source: Arc<dyn ExpertSource>) -> Self {
        Self { source, reads: Mutex::default() }
    }

    /// GB/s while reading; 0 if nothing was read.
    pub fn gbps(&self) -> f64 {
        let reads = self.reads();
        reads.bytes as f64 / reads.busy.as_nanos().max(1) as f64
    }

    fn reads(&self) -> std::sync::MutexGuard<'_, Reads> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reads {
    fn begin(&mut self) {
        if self.under_way == 0 {
            self.since = Some(Instant::now());
        }
        self.under_way += 1;
    }

    fn end(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.under_way -= 1;
        if self.under_way == 0 {
            self.busy += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        }
    }
}

impl ExpertSource for Timed {
    fn tiers(&self) -> &[Tier] {
        self.source.tiers()
    }

    fn layers(&self) -> &[SparseLayer] {
        self.source.layers()
    }

    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        self.source.segments(key)
    }

    fn read_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.reads().begin();
        let read = self.source.read_at(file, buffer, offset_bytes);
        self.reads().end(*read.as_ref().unwrap_or(&0));
        read
    }

    fn read_direct_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.reads().begin();
        let read = self.source.read_direct_at(file, buffer, offset_bytes);
        self.reads().end(*read.as_ref().unwrap_or(&0));
        read
    }

    fn forget(&self, file: FileId, offset_bytes: u64, len_bytes: u64) {
        self.source.forget(file, offset_bytes, len_bytes);
    }

    fn drive(&self, file: FileId) -> u64 {
        self.source.drive(file)
    }

    fn mirror(&self, file: FileId) -> Option<FileId> {
        self.source.mirror(file)
    }

    fn path(&self, file: FileId) -> &Path {
        self.source.path(file)
    }

    fn checksum(&self, key: ExpertKey) -> Option<u64> {
        self.source.checksum(key)
    }

    fn changed(&self, file: FileId) -> Option<FileChange> {
        self.source.changed(file)
    }
}
