//! A source whose files are mapped: for experts that stay warm in the page cache.
//!
//! # Soundness
//! *Type*: a map is plain bytes. *Initialisation*: the system fills its pages from the file. *Lifetime*: the map is owned
//! by the source and lives as long as every borrow of it, which ends within one read. *Bounds*: reads are cut to the
//! map's own length; that the file stays at least as long is what [`Mapped::new`] asks of its caller, since touching a
//! page behind the end of a file ends the process. *Threads*: the bytes are only read here; that no other process or
//! thread writes to the file is the other half of the caller's promise.
#![allow(unsafe_code)]

use std::{fmt, fs::File, io, path::Path};

use memmap2::{Mmap, MmapOptions};

use super::{ExpertSource, FileChange, Segment, SparseLayer, Tier, error::SourceError, files_with_experts};
use crate::{
    ids::{ExpertKey, FileId},
    sync::Arc,
};

/// A source read from maps of its files instead of by system calls.
///
/// Worth it only where every expert is in the page cache and stays there: a read is then one copy. Where it is not, the
/// system fetches page by page, several times slower than a read, and a thread stuck in that cannot be told from one
/// that computes. Mapping costs no memory of the budget, but what it touches is page cache that others compete for.
pub struct Mapped {
    inner: Arc<dyn ExpertSource>,
    /// By file; `None` where a file holds no experts.
    maps: Vec<Option<Mmap>>,
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped").field("source", &self.inner).finish_non_exhaustive()
    }
}

impl Mapped {
    /// Maps every file of `source` that holds experts.
    ///
    /// # Errors
    /// A file that cannot be opened or mapped, or that is not the one that `source` opened any more.
    ///
    /// # Safety
    /// Until it is dropped, nobody may cut, overwrite or write to the files in place, in this process or any other.
    /// (Replacing a file by renaming another over it is safe: the map keeps the old one.) A file on a drive that can
    /// vanish or fail may end the process with a signal.
    pub unsafe fn new(source: Arc<dyn ExpertSource>) -> Result<Self, SourceError> {
        let mut maps = Vec::new();
        for file in files_with_experts(&*source) {
            let path = source.path(file);
            let map_error = |error| SourceError::Map { path: path.into(), source: error };
            let opened = File::open(path).map_err(map_error)?;
            // SAFETY: the caller promises that the file is neither cut nor written to while the map lives.
            let map = unsafe { MmapOptions::new().map(&opened) }.map_err(map_error)?;
            if let Some(change) = source.changed(file) {
                return Err(SourceError::Changed { path: path.into(), change });
            }
            maps.resize_with(maps.len().max(file.index() + 1), || None);
            maps[file.index()] = Some(map);
        }
        Ok(Self { inner: source, maps })
    }
}

impl ExpertSource for Mapped {
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
        let Some(map) = self.maps.get(file.index()).and_then(Option::as_ref) else {
            return self.inner.read_at(file, buffer, offset_bytes);
        };
        let rest =
            usize::try_from(offset_bytes).ok().and_then(|offset| map.get(offset..)).unwrap_or_default();
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn path(&self, file: FileId) -> &Path {
        self.inner.path(file)
    }

    fn drive(&self, file: FileId) -> u64 {
        self.inner.drive(file)
    }

    fn checksum(&self, key: ExpertKey) -> Option<u64> {
        self.inner.checksum(key)
    }

    fn changed(&self, file: FileId) -> Option<FileChange> {
        self.inner.changed(file)
    }
}
