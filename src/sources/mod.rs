//! Where experts come from: which file ranges make an expert, in what geometry and quantisation.

mod checkpoint;
mod checksums;
mod colibri;
mod error;
mod files;
mod geometry;
mod layers;
mod mapped;
mod mirrored;
mod names;
mod shards;
mod slab;
mod table;
mod tensors;

use std::{collections::BTreeSet, fmt, io, path::Path};

pub use checkpoint::MlxCheckpoint;
pub(crate) use checksums::LayerChecksums;
pub use checksums::{Checksummed, ChecksumsError, ExpertChecksums};
pub use colibri::{Colibri, ColibriOptions};
pub use error::{SourceError, TensorError};
pub use files::FileChange;
pub(crate) use files::replace_file;
pub use mapped::Mapped;
pub use mirrored::Mirrored;
pub use slab::SlabSource;
pub use tensors::{Tensor, TensorIndex};

use crate::{
    formats::{ExpertGeometry, SlotLayout},
    ids::{ExpertId, ExpertKey, FileId, LayerId, TierId},
};

/// What addresses, lengths and offsets of direct reads are multiples of: a page of most systems, and no less than the
/// blocks of any drive.
pub const DIRECT_ALIGNMENT_BYTES: u64 = 4096;

/// A group of layers whose experts share one geometry.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// The experts' shape.
    pub geometry: ExpertGeometry,
    /// Where their components lie in a slot.
    pub layout: SlotLayout,
}

/// A layer that has routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseLayer {
    /// Its number in the model.
    pub layer: LayerId,
    /// The tier of its experts.
    pub tier: TierId,
    /// How many it has.
    pub experts: u32,
}

/// One read: consecutive bytes of a file that go to consecutive bytes of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The file to read.
    pub file: FileId,
    /// Where in the file.
    pub file_offset_bytes: u64,
    /// Where in the slot.
    pub slot_offset_bytes: u64,
    /// How much.
    pub len_bytes: u64,
}

/// Which file ranges make an expert. Opened from headers alone; shared by every reader thread.
///
/// A source must not change its answers while it is open: the bank and the plan are made from them. A source that wraps
/// another forwards the methods with a default body too, or what they do is lost.
pub trait ExpertSource: Send + Sync + fmt::Debug {
    /// The geometries that occur. At least one.
    fn tiers(&self) -> &[Tier];

    /// The layers with experts, ascending by layer.
    fn layers(&self) -> &[SparseLayer];

    /// The reads that fill a slot with expert `key`, neighbours merged; `None` if there is no such expert.
    ///
    /// Segments do not overlap in the slot and together cover every component of the tier's layout.
    fn segments(&self, key: ExpertKey) -> Option<&[Segment]>;

    /// Reads from `file` at `offset_bytes` into `buffer`, like `pread`: may read less, may be interrupted; 0 is the end.
    ///
    /// # Errors
    /// Whatever the system answers. The caller repeats interrupted and short reads.
    fn read_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize>;

    /// The path of a file, for messages.
    fn path(&self, file: FileId) -> &Path;

    /// Reads as [`ExpertSource::read_at`], but past the page cache. The buffer's address and length, and `offset_bytes`, are
    /// multiples of [`DIRECT_ALIGNMENT_BYTES`]. Default: unsupported.
    ///
    /// # Errors
    /// `Unsupported` or `InvalidInput` where the file cannot be read so: it is read by `read_at` then. Whatever else the
    /// system answers is an error as that of `read_at`.
    fn read_direct_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let _ = (file, buffer, offset_bytes);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Tells the system that these bytes need not stay in the page cache. Only advice. Default: nothing.
    fn forget(&self, file: FileId, offset_bytes: u64, len_bytes: u64) {
        let _ = (file, offset_bytes, len_bytes);
    }

    /// The drive that a file lies on, by a number that all its files share: each drive has readers of its own. Default: 0.
    fn drive(&self, file: FileId) -> u64 {
        let _ = file;
        0
    }

    /// Another file of the source with the same bytes at the same offsets, on another drive, from which they may be read as
    /// well. Default: there is none.
    fn mirror(&self, file: FileId) -> Option<FileId> {
        let _ = file;
        None
    }

    /// What [`record_checksum`](crate::record_checksum) of expert `key` should be, where the source knows it. Default:
    /// it does not.
    fn checksum(&self, key: ExpertKey) -> Option<u64> {
        let _ = key;
        None
    }

    /// How a file differs from what it was when the source was opened, as far as the system tells; asked for when a read
    /// has failed, and whenever a caller wants to know. Default: nothing is known.
    ///
    /// Unnoticed stays what keeps length and modification time (a write through a mapping that is not yet flushed, a
    /// damaged sector, a clock set back), and on file systems over a network what their caches hide. Checksums notice.
    fn changed(&self, file: FileId) -> Option<FileChange> {
        let _ = file;
        None
    }
}

/// Opens a file that is a slab as a [`SlabSource`], and a directory as what it holds: an [`MlxCheckpoint`] if it has
/// `model*.safetensors`, a [`Colibri`] container if it has `out-*.safetensors`. `Arc::from` shares it.
///
/// ```no_run
/// use std::sync::Arc;
/// use streamed_experts::{ExpertSource, open_source};
///
/// let source: Arc<dyn ExpertSource> = open_source("Qwen3-30B-A3B-4bit")?.into();
/// let read_bytes: u64 = source.tiers().iter().map(|tier| tier.layout.record_bytes()).sum();
/// println!("{} layers with experts, {read_bytes} B for one of each shape", source.layers().len());
/// # Ok::<(), streamed_experts::SourceError>(())
/// ```
///
/// # Errors
/// A file that is no slab, a directory that cannot be read, or that holds neither or both; then what the source's own
/// `open` refuses.
pub fn open_source(path: impl AsRef<Path>) -> Result<Box<dyn ExpertSource>, SourceError> {
    let directory = path.as_ref();
    if directory.is_file() {
        return Ok(Box::new(SlabSource::open(directory)?));
    }
    match shards::what_lies_in(directory)? {
        (true, false) => Ok(Box::new(MlxCheckpoint::open(directory)?)),
        (false, true) => Ok(Box::new(Colibri::open(directory)?)),
        (true, true) => Err(SourceError::Ambiguous { path: directory.into() }),
        (false, false) => Err(SourceError::Unrecognised { path: directory.into() }),
    }
}

/// Every file that holds experts.
pub(crate) fn files_with_experts(source: &dyn ExpertSource) -> BTreeSet<FileId> {
    let keys = source
        .layers()
        .iter()
        .flat_map(|layer| (0..layer.experts).map(|expert| ExpertKey::new(layer.layer, ExpertId(expert))));
    keys.filter_map(|key| source.segments(key)).flatten().map(|segment| segment.file).collect()
}
