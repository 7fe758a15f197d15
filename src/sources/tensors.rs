//! Every tensor of a checkpoint or container by name, found from headers alone.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use safetensors::Dtype;

use super::{
    error::TensorError,
    files::{FileChange, SourceFile, SourceFiles},
    shards::{ShardIndex, Shards, what_lies_in},
};
use crate::{
    formats::{HeaderTensor, PREFIX_BYTES, header_bytes, parse_header},
    ids::FileId,
};

/// No tensor larger than this is read into memory by [`TensorIndex::read`].
const MAX_READ_BYTES: u64 = 1 << 34;

/// Where a tensor lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape, outermost first.
    pub shape: Vec<usize>,
    /// The file it lies in.
    pub file: FileId,
    /// Where in the file, counted from the file's first byte. Not aligned to anything.
    pub offset_bytes: u64,
    /// How many bytes: shape × element type.
    pub len_bytes: u64,
}

/// The tensors of a directory of safetensors files, or of one file, by name.
///
/// Opening reads headers and nothing else, and checks them: no name twice, no ranges that overlap, run backwards, leave
/// the file or disagree with their shape. The files stay open.
pub struct TensorIndex {
    root: PathBuf,
    files: SourceFiles,
    /// Sorted by name.
    tensors: Vec<(Box<str>, Tensor)>,
    header_bytes: u64,
}

/// Counts instead of contents: a container has a hundred thousand tensors.
impl fmt::Debug for TensorIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorIndex")
            .field("root", &self.root)
            .field("files", &self.files.len())
            .field("tensors", &self.tensors.len())
            .field("header_bytes", &self.header_bytes)
            .finish()
    }
}

impl TensorIndex {
    /// Opens a file, or a directory: the shards its `model.safetensors.index.json` names, else its
    /// `model*.safetensors`, else its `out-*.safetensors` (a Colibri container, without `out-idx-*`).
    ///
    /// # Errors
    /// A path that cannot be opened, a directory without such files, a shard that is listed and absent, a tensor that
    /// the index promises and the shard lacks, a name that appears twice, or a header that cannot be believed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TensorError> {
        let path = path.as_ref();
        if path.is_file() {
            return Self::open_file(path);
        }
        match what_lies_in(path)? {
            (false, true) => Self::open_shards(path, Shards::of_colibri(path)?),
            _ => Self::open_shards(path, Shards::of_checkpoint(path)?),
        }
    }

    /// Opens one safetensors file, whatever its name.
    ///
    /// # Errors
    /// A file that cannot be opened, or a header that cannot be believed.
    pub fn open_file(path: impl AsRef<Path>) -> Result<Self, TensorError> {
        let path = path.as_ref();
        Self::open_shards(path, Shards { files: vec![path.into()], index: None })
    }

    pub(super) fn open_shards(root: &Path, shards: Shards) -> Result<Self, TensorError> {
        let mut index =
            Self { root: root.into(), files: SourceFiles::default(), tensors: Vec::new(), header_bytes: 0 };
        for path in shards.files {
            index.add_file(path)?;
        }
        index.tensors.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        if let Some(pair) = index.tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(TensorError::Twice {
                tensor: pair[0].0.to_string(),
                first: index.path(pair[0].1.file.min(pair[1].1.file)).into(),
                second: index.path(pair[0].1.file.max(pair[1].1.file)).into(),
            });
        }
        if let Some(promised) = shards.index {
            index.check_promises(&promised)?;
        }
        Ok(index)
    }

    /// Reads one header: the only place that reads anything while opening.
    fn add_file(&mut self, path: PathBuf) -> Result<(), TensorError> {
        let file = match SourceFile::open(path.clone()) {
            Ok(file) => file,
            Err(source) => return Err(TensorError::Open { path, source }),
        };
        let read = |bytes: &mut [u8], offset_bytes| {
            let read_error = |source| TensorError::ReadHeader { path: path.clone(), source };
            file.read_exact_at(bytes, offset_bytes).map_err(read_error)
        };
        if file.len_bytes() < PREFIX_BYTES {
            return Err(TensorError::TooShort { path, file_bytes: file.len_bytes() });
        }
        let mut prefix = [0; size_of::<u64>()];
        read(&mut prefix, 0)?;
        let len = header_bytes(&path, prefix, file.len_bytes())?;
        let mut header = vec![0; usize::try_from(len).expect("a header of at most 100 MB")];
        read(&mut header, PREFIX_BYTES)?;
        let tensors = parse_header(&path, &header, file.len_bytes())?;
        let file = self.files.push(file);
        self.header_bytes += PREFIX_BYTES + len;
        self.tensors.extend(tensors.into_iter().map(|tensor| {
            let HeaderTensor { name, dtype, shape, offset_bytes, len_bytes } = tensor;
            (name.into_boxed_str(), Tensor { dtype, shape, file, offset_bytes, len_bytes })
        }));
        Ok(())
    }

    /// Every tensor of the index must lie in the shard that the index names.
    fn check_promises(&self, index: &ShardIndex) -> Result<(), TensorError> {
        for (name, shard) in &index.tensors {
            let found = self.get(name).map(|tensor| self.path(tensor.file));
            if found.and_then(Path::file_name).is_none_or(|file| file != shard.as_str()) {
                return Err(TensorError::NotInShard {
                    tensor: name.clone(),
                    shard: shard.clone(),
                    index: index.path.clone(),
                });
            }
        }
        Ok(())
    }

    /// Where the tensor called `name` lies.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let position = self.tensors.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
        Some(&self.tensors[position].1)
    }

    /// Every tensor with its name, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (&**name, tensor))
    }

    /// How many tensors there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is no tensor.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Reads a whole tensor: little-endian elements in C order. Blocks.
    ///
    /// # Errors
    /// No such tensor, one of more than 16 GiB (or than memory holds), or a read that fails or ends early.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, TensorError> {
        let Some(tensor) = self.get(name) else {
            return Err(TensorError::Unknown { tensor: name.into(), path: self.root.clone() });
        };
        let too_large = || TensorError::TooLarge {
            tensor: name.into(),
            len_bytes: tensor.len_bytes,
            limit_bytes: MAX_READ_BYTES,
        };
        let len = usize::try_from(tensor.len_bytes.min(MAX_READ_BYTES + 1)).map_err(|_| too_large())?;
        let mut bytes = Vec::new();
        if len as u64 > MAX_READ_BYTES || bytes.try_reserve_exact(len).is_err() {
            return Err(too_large());
        }
        bytes.resize(len, 0);
        let file = self.files.get(tensor.file);
        file.read_exact_at(&mut bytes, tensor.offset_bytes).map_err(|source| TensorError::ReadTensor {
            path: file.path().into(),
            tensor: name.into(),
            offset_bytes: tensor.offset_bytes,
            len_bytes: tensor.len_bytes,
            source,
        })?;
        Ok(bytes)
    }

    /// The file or directory that was opened.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How many files are open.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// The path of a file.
    ///
    /// # Panics
    /// If there is no such file.
    #[must_use]
    pub fn path(&self, file: FileId) -> &Path {
        self.files.get(file).path()
    }

    /// Bytes that were read to open it: lengths and headers.
    #[must_use]
    pub const fn header_bytes(&self) -> u64 {
        self.header_bytes
    }

    /// One positional read, as [`ExpertSource::read_at`](super::ExpertSource::read_at) has it.
    pub(super) fn read_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.files.get(file).read_at(buffer, offset_bytes)
    }

    /// An open file.
    pub(super) fn file(&self, file: FileId) -> &SourceFile {
        self.files.get(file)
    }

    /// As [`ExpertSource::changed`](super::ExpertSource::changed) has it.
    pub(super) fn changed(&self, file: FileId) -> Option<FileChange> {
        self.files.get(file).changed()
    }

    /// Forgets the tensors for which `keep` says no; their files stay open.
    pub(super) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.tensors.retain(|(name, _)| keep(name));
        self.tensors.shrink_to_fit();
    }
}
