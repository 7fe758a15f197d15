//! Checksums of experts in a file of their own, for sources that carry none.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    ExpertSource, FileChange, Segment, SparseLayer, Tier,
    files::replace_file,
    layers::{MAX_EXPERTS, MAX_LAYERS},
};
use crate::{
    formats::{MAX_RECORDS, Origin, bytes_checksum},
    ids::{ExpertKey, FileId, LayerId},
    sync::Arc,
};

/// No file of checksums may be longer than this.
const MAX_FILE_BYTES: u64 = 1 << 24;

/// What such a file calls itself.
const KIND: &str = "streamed-experts checksums";

/// The version that is written and read.
const VERSION: u32 = 1;

/// Hexadecimal digits of one checksum.
const DIGITS: usize = 16;

/// The [`record_checksum`](crate::record_checksum) of every expert of a source.
///
/// [`verify`](crate::verify) makes them; written once beside a checkpoint, they tell later whether it is still what it
/// was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertChecksums {
    origin: Origin,
    /// Ascending by layer.
    layers: Vec<LayerChecksums>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerChecksums {
    pub(crate) layer: LayerId,
    /// Bytes of one expert, so that another model is told from a damaged one.
    pub(crate) record_bytes: u64,
    pub(crate) checksums: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChecksumFile {
    kind: String,
    version: u32,
    origin: Origin,
    layers: Vec<LayerEntry>,
    /// xxh3 of all checksums, in hexadecimal.
    table: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerEntry {
    layer: u32,
    record_bytes: u64,
    /// 16 hexadecimal digits for each expert.
    checksums: String,
}

/// A file of checksums that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChecksumsError {
    /// The system did not read it.
    #[error("could not read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The system did not write it.
    #[error("could not write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// A file longer than any list of checksums.
    #[error("{} is longer than {limit_bytes} B, the limit of a file of checksums", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit_bytes: u64,
    },
    /// A file that is no list of checksums.
    #[error("{} is no file of checksums", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A file of checksums that contradicts itself.
    #[error("{} cannot be believed: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// In what.
        reason: String,
    },
    /// Checksums of other experts than the source has.
    #[error("the checksums are of another model: {reason}")]
    Foreign {
        /// What differs.
        reason: String,
    },
}

impl ExpertChecksums {
    /// Checksums of the experts of `layers`, ascending.
    pub(crate) const fn new(origin: Origin, layers: Vec<LayerChecksums>) -> Self {
        Self { origin, layers }
    }

    /// The checksum of an expert.
    #[must_use]
    pub fn get(&self, key: ExpertKey) -> Option<u64> {
        let layer = self.layers.binary_search_by_key(&key.layer, |layer| layer.layer).ok()?;
        self.layers[layer].checksums.get(key.expert.index()).copied()
    }

    /// What they were taken from.
    #[must_use]
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Reads a file that [`ExpertChecksums::write`] wrote.
    ///
    /// # Errors
    /// A file that cannot be read, is too long, is something else, or is damaged.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ChecksumsError> {
        let path = path.as_ref();
        let read_error = |source| ChecksumsError::Read { path: path.into(), source };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(read_error)?;
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(read_error)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(ChecksumsError::TooLong { path: path.into(), limit_bytes: MAX_FILE_BYTES });
        }
        let file: ChecksumFile = serde_json::from_slice(&bytes)
            .map_err(|source| ChecksumsError::Json { path: path.into(), source })?;
        file.checked().map_err(|reason| ChecksumsError::Damaged { path: path.into(), reason })
    }

    /// Writes them: the path names the old file or the new one, never a part of it.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), ChecksumsError> {
        let path = path.as_ref();
        let layers = self.layers.iter().map(|layer| LayerEntry {
            layer: layer.layer.0,
            record_bytes: layer.record_bytes,
            checksums: layer.checksums.iter().map(|checksum| format!("{checksum:016x}")).collect(),
        });
        let file = ChecksumFile {
            kind: KIND.into(),
            version: VERSION,
            origin: self.origin.clone(),
            layers: layers.collect(),
            table: self.table(),
        };
        let json = serde_json::to_vec(&file).expect("numbers and text have a JSON form");
        replace_file(path, &json).map_err(|source| ChecksumsError::Write { path: path.into(), source })
    }

    fn table(&self) -> String {
        let all = self.layers.iter().flat_map(|layer| &layer.checksums);
        let bytes: Vec<u8> = all.flat_map(|checksum| checksum.to_le_bytes()).collect();
        format!("{:016x}", bytes_checksum(&bytes))
    }

    /// Checks that they are of a source with the layers and expert sizes of `source`.
    fn check_source(&self, source: &dyn ExpertSource) -> Result<(), ChecksumsError> {
        let foreign = |reason| Err(ChecksumsError::Foreign { reason });
        if source.layers().len() != self.layers.len() {
            return foreign(format!("{} layers, not {}", self.layers.len(), source.layers().len()));
        }
        for (own, layer) in self.layers.iter().zip(source.layers()) {
            let record_bytes = source.tiers()[layer.tier.index()].layout.record_bytes();
            let (own, other) = (
                (own.layer, own.checksums.len(), own.record_bytes),
                (layer.layer, layer.experts as usize, record_bytes),
            );
            if own != other {
                return foreign(format!(
                    "{} with {} experts of {} B, not {} with {} of {} B",
                    own.0, own.1, own.2, other.0, other.1, other.2
                ));
            }
        }
        Ok(())
    }
}

impl ChecksumFile {
    fn checked(self) -> Result<ExpertChecksums, String> {
        if self.kind != KIND || self.version != VERSION {
            return Err(format!("it calls itself {:?}, version {}", self.kind, self.version));
        }
        let (mut layers, mut before, mut in_all) = (Vec::new(), None, 0);
        for LayerEntry { layer, record_bytes, checksums } in self.layers {
            if layer >= MAX_LAYERS || before.is_some_and(|before| before >= layer) {
                return Err(format!("layer {layer} is out of order, or not below {MAX_LAYERS}"));
            }
            before = Some(layer);
            let experts = checksums.len() / DIGITS;
            in_all += experts as u64;
            if experts > MAX_EXPERTS as usize || in_all > MAX_RECORDS {
                return Err(format!(
                    "{experts} experts in layer {layer}, {in_all} up to there, are too many"
                ));
            }
            let checksums = checksums
                .as_bytes()
                .chunks(DIGITS)
                .map(|digits| {
                    let text = std::str::from_utf8(digits).ok().filter(|text| text.len() == DIGITS)?;
                    u64::from_str_radix(text, 16).ok()
                })
                .collect::<Option<Vec<u64>>>()
                .ok_or_else(|| format!("a checksum of layer {layer} is not {DIGITS} hexadecimal digits"))?;
            layers.push(LayerChecksums { layer: LayerId(layer), record_bytes, checksums });
        }
        let checked = ExpertChecksums::new(self.origin, layers);
        if checked.table() != self.table {
            return Err(format!("its checksums have checksum {}, not {}", checked.table(), self.table));
        }
        Ok(checked)
    }
}

/// A source together with checksums that it does not carry itself.
#[derive(Debug)]
pub struct Checksummed {
    inner: Arc<dyn ExpertSource>,
    checksums: ExpertChecksums,
}

impl Checksummed {
    /// `source`, whose experts should have these checksums.
    ///
    /// # Errors
    /// [`ChecksumsError::Foreign`] if they are of other layers, or of experts of another size.
    pub fn new(source: Arc<dyn ExpertSource>, checksums: ExpertChecksums) -> Result<Self, ChecksumsError> {
        checksums.check_source(&*source)?;
        Ok(Self { inner: source, checksums })
    }
}

impl ExpertSource for Checksummed {
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
        self.inner.read_at(file, buffer, offset_bytes)
    }

    fn path(&self, file: FileId) -> &Path {
        self.inner.path(file)
    }

    fn read_direct_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.inner.read_direct_at(file, buffer, offset_bytes)
    }

    fn forget(&self, file: FileId, offset_bytes: u64, len_bytes: u64) {
        self.inner.forget(file, offset_bytes, len_bytes);
    }

    fn drive(&self, file: FileId) -> u64 {
        self.inner.drive(file)
    }

    fn mirror(&self, file: FileId) -> Option<FileId> {
        self.inner.mirror(file)
    }

    fn checksum(&self, key: ExpertKey) -> Option<u64> {
        self.checksums.get(key)
    }

    fn changed(&self, file: FileId) -> Option<FileChange> {
        self.inner.changed(file)
    }
}
