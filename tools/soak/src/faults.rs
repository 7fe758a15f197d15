//! A source whose reads fail now and then.

use std::{
    collections::HashMap,
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use streamed_experts::{
    ExecuteError, ExpertId, ExpertKey, ExpertSource, FileChange, FileId, LeaseError, LoadError, Segment,
    SparseLayer, Tier,
};

/// Wraps a slab: one record is one read, so a read's offset tells whose it is.
#[derive(Debug)]
pub(crate) struct Faulty {
    inner: Arc<dyn ExpertSource>,
    every: u64,
    seed: u64,
    reads: AtomicU64,
    injected: AtomicU64,
    /// For each expert, the faults that must fail a load of it, and the errors that named it.
    loads: Mutex<HashMap<ExpertKey, Load>>,
    /// Errors of another kind than any fault causes.
    strange: AtomicU64,
    /// (file offset, key), ascending.
    offsets: Vec<(u64, ExpertKey)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    faults: u64,
    errors: u64,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn ExpertSource>, every: u64, seed: u64) -> Self {
        let mut offsets = Vec::new();
        for layer in inner.layers() {
            for expert in 0..layer.experts {
                let key = ExpertKey::new(layer.layer, ExpertId(expert));
                let segments = inner.segments(key).expect("an expert of the layer");
                offsets.push((segments[0].file_offset_bytes, key));
            }
        }
        offsets.sort_unstable_by_key(|&(offset, _)| offset);
        Self {
            inner,
            every,
            seed,
            reads: AtomicU64::new(0),
            injected: AtomicU64::new(0),
            loads: Mutex::default(),
            strange: AtomicU64::new(0),
            offsets,
        }
    }

    /// Faults injected, those that no error named, and errors that no fault explains: one fault is the error of every
    /// request that waits for the expert, so of `threads` at most.
    pub(crate) fn counts(&self, threads: u64) -> (u64, u64, u64) {
        let (mut unreported, mut unexplained) = (0, self.strange.load(Relaxed));
        for load in self.loads.lock().expect("no panics here").values() {
            unreported += load.faults.saturating_sub(load.errors);
            unexplained += load.errors.saturating_sub(load.faults * threads);
        }
        (self.injected.load(Relaxed), unreported, unexplained)
    }

    /// Notes what a failed request reported.
    pub(crate) fn reported(&self, error: &ExecuteError) {
        let errors = match error {
            ExecuteError::Load(errors) | ExecuteError::Lease(LeaseError::Load(errors)) => errors.errors(),
            other => {
                eprintln!("not about a read: {other}");
                self.strange.fetch_add(1, Relaxed);
                return;
            }
        };
        for error in errors {
            let key = match error {
                LoadError::Read { key, .. }
                | LoadError::UnexpectedEnd { key, .. }
                | LoadError::Checksum { key, .. }
                | LoadError::Panicked { key, .. } => *key,
                other => {
                    eprintln!("not a fault that was injected: {other}");
                    self.strange.fetch_add(1, Relaxed);
                    continue;
                }
            };
            self.loads.lock().expect("no panics here").entry(key).or_default().errors += 1;
        }
    }

    fn must_fail(&self, offset_bytes: u64) {
        let at = self.offsets.partition_point(|&(offset, _)| offset <= offset_bytes) - 1;
        self.loads.lock().expect("no panics here").entry(self.offsets[at].1).or_default().faults += 1;
    }
}

impl ExpertSource for Faulty {
    fn tiers(&self) -> &[Tier] {
        self.inner.tiers()
    }

    fn layers(&self) -> &[SparseLayer] {
        self.inner.layers()
    }

    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        self.inner.segments(key)
    }

    fn read_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let read = self.reads.fetch_add(1, Relaxed);
        let mut random = fastrand::Rng::with_seed(self.seed ^ read.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        if random.u64(0..self.every) != 0 {
            return self.inner.read_at(file, buffer, offset_bytes);
        }
        self.injected.fetch_add(1, Relaxed);
        match random.u8(0..6) {
            // These two are no failures: the reader goes on.
            0 => Err(io::ErrorKind::Interrupted.into()),
            1 => {
                let part = random.usize(1..=buffer.len());
                self.inner.read_at(file, &mut buffer[..part], offset_bytes)
            }
            2 => {
                self.must_fail(offset_bytes);
                Err(io::Error::other("the drive failed"))
            }
            3 => {
                self.must_fail(offset_bytes);
                Ok(0)
            }
            4 => {
                self.must_fail(offset_bytes);
                // Without the default hook's text: it is expected.
                std::panic::resume_unwind(Box::new("the source broke"))
            }
            _ => {
                self.must_fail(offset_bytes);
                let read = self.inner.read_at(file, buffer, offset_bytes)?;
                // The first component's first byte: a weight.
                buffer[0] ^= 1 << random.u8(0..8);
                Ok(read)
            }
        }
    }

    fn path(&self, file: FileId) -> &Path {
        self.inner.path(file)
    }

    fn checksum(&self, key: ExpertKey) -> Option<u64> {
        self.inner.checksum(key)
    }

    fn changed(&self, file: FileId) -> Option<FileChange> {
        self.inner.changed(file)
    }
}
