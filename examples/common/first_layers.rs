//! A model cut short: the first layers of a source, as a source of its own.

use std::{io, path::Path, sync::Arc};

use streamed_experts::{ExpertKey, ExpertSource, FileChange, FileId, Segment, SparseLayer, Tier};

/// The first layers with experts of another source.
#[derive(Debug)]
pub struct FirstLayers {
    whole: Arc<dyn ExpertSource>,
    layers: usize,
    tiers: usize,
}

impl FirstLayers {
    /// The first `layers` of `whole`, or all if there are not so many. `layers` is at least 1.
    pub fn new(whole: Arc<dyn ExpertSource>, layers: usize) -> Self {
        let layers = layers.min(whole.layers().len());
        // Tiers are numbered by their first layer, so those that are left are the first ones.
        let tiers = whole.layers()[..layers].iter().map(|layer| layer.tier.index() + 1).max().unwrap_or(0);
        Self { whole, layers, tiers }
    }
}

impl ExpertSource for FirstLayers {
    fn tiers(&self) -> &[Tier] {
        &self.whole.tiers()[..self.tiers]
    }

    fn layers(&self) -> &[SparseLayer] {
        &self.whole.layers()[..self.layers]
    }

    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        let last = self.layers().last()?.layer;
        if key.layer > last { None } else { self.whole.segments(key) }
    }

    fn read_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.whole.read_at(file, buffer, offset_bytes)
    }

    fn read_direct_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.whole.read_direct_at(file, buffer, offset_bytes)
    }

    fn forget(&self, file: FileId, offset_bytes: u64, len_bytes: u64) {
        self.whole.forget(file, offset_bytes, len_bytes);
    }

    fn drive(&self, file: FileId) -> u64 {
        self.whole.drive(file)
    }

    fn mirror(&self, file: FileId) -> Option<FileId> {
        self.whole.mirror(file)
    }

    fn path(&self, file: FileId) -> &Path {
        self.whole.path(file)
    }

    fn checksum(&self, key: ExpertKey) -> Option<u64> {
        self.whole.checksum(key)
    }

    fn changed(&self, file: FileId) -> Option<FileChange> {
        self.whole.changed(file)
    }
}
