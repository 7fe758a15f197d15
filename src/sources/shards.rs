//! Which files of a directory belong to a checkpoint or a container.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::error::TensorError;
use crate::formats::EntryList;

/// The index that a checkpoint in several files has.
const INDEX_NAME: &str = "model.safetensors.index.json";

/// No index may be longer than this.
const MAX_INDEX_BYTES: u64 = 100_000_000;

/// No checkpoint may have more files than this. Each stays open.
pub(super) const MAX_FILES: usize = 4096;

/// The files of a checkpoint, in the order that numbers them.
#[derive(Debug)]
pub(super) struct Shards {
    /// Their paths.
    pub(super) files: Vec<PathBuf>,
    /// What the index promises, where there is one.
    pub(super) index: Option<ShardIndex>,
}

/// An index: which tensor lies in which shard.
#[derive(Debug)]
pub(super) struct ShardIndex {
    /// Where it was read.
    pub(super) path: PathBuf,
    /// Tensor and file name, sorted by tensor.
    pub(super) tensors: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct IndexFile {
    weight_map: EntryList<String>,
}

impl Shards {
    /// A checkpoint's: what its index names, or every `model*.safetensors`.
    pub(super) fn of_checkpoint(directory: &Path) -> Result<Self, TensorError> {
        let index_path = directory.join(INDEX_NAME);
        if index_path.is_file() {
            return Self::of_index(directory, index_path);
        }
        let files = matching(directory, "a checkpoint (model*.safetensors)", is_checkpoint_file)?;
        Ok(Self { files, index: None })
    }

    /// A Colibri container's: every `out-*.safetensors` but the indexer's.
    pub(super) fn of_colibri(directory: &Path) -> Result<Self, TensorError> {
        let files = matching(directory, "a Colibri container (out-*.safetensors)", is_colibri_file)?;
        Ok(Self { files, index: None })
    }

    fn of_index(directory: &Path, path: PathBuf) -> Result<Self, TensorError> {
        let tensors = read_index(&path)?;
        let mut names: Vec<&str> = tensors.iter().map(|(_, shard)| shard.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        if names.len() > MAX_FILES {
            return Err(TensorError::TooManyFiles { path, files: names.len(), limit: MAX_FILES });
        }
        let mut files = Vec::with_capacity(names.len());
        for name in names {
            let plain = Path::new(name).file_name().is_some_and(|file| file == name);
            if !plain {
                return Err(TensorError::ShardName { index: path, shard: name.into() });
            }
            files.push(directory.join(name));
        }
        if let Some(shard) = files.iter().find(|file| !file.exists()) {
            return Err(TensorError::ShardAbsent { shard: shard.clone(), index: path });
        }
        if files.is_empty() {
            return Err(TensorError::NoFiles { path, what: "any tensor (its weight_map is empty)" });
        }
        Ok(Self { files, index: Some(ShardIndex { path, tensors }) })
    }
}

fn read_index(path: &Path) -> Result<Vec<(String, String)>, TensorError> {
    let read_error = |source| TensorError::Open { path: path.into(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(read_error)?;
    file.take(MAX_INDEX_BYTES + 1).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() as u64 > MAX_INDEX_BYTES {
        return Err(TensorError::IndexTooLong { path: path.into(), limit_bytes: MAX_INDEX_BYTES });
    }
    let IndexFile { weight_map: EntryList(mut tensors) } = serde_json::from_slice(&bytes)
        .map_err(|source| TensorError::IndexJson { path: path.into(), source })?;
    tensors.sort_unstable();
    match tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => {
            Err(TensorError::Twice { tensor: pair[0].0.clone(), first: path.into(), second: path.into() })
        }
        None => Ok(tensors),
    }
}

/// Whether a directory holds a checkpoint, and whether it holds a Colibri container.
pub(super) fn what_lies_in(directory: &Path) -> Result<(bool, bool), TensorError> {
    let names = names(directory)?;
    let checkpoint = names.iter().any(|name| name == INDEX_NAME || is_checkpoint_file(name));
    Ok((checkpoint, names.iter().any(|name| is_colibri_file(name))))
}

fn is_checkpoint_file(name: &str) -> bool {
    name.starts_with("model") && name.ends_with(".safetensors")
}

fn is_colibri_file(name: &str) -> bool {
    name.starts_with("out-") && !name.starts_with("out-idx-") && name.ends_with(".safetensors")
}

fn matching(
    directory: &Path,
    what: &'static str,
    belongs: fn(&str) -> bool,
) -> Result<Vec<PathBuf>, TensorError> {
    let mut names = names(directory)?;
    names.retain(|name| belongs(name));
    if names.is_empty() {
        return Err(TensorError::NoFiles { path: directory.into(), what });
    }
    if names.len() > MAX_FILES {
        return Err(TensorError::TooManyFiles {
            path: directory.into(),
            files: names.len(),
            limit: MAX_FILES,
        });
    }
    names.sort_unstable();
    Ok(names.iter().map(|name| directory.join(name)).collect())
}

/// The names in a directory, as far as they are text.
fn names(directory: &Path) -> Result<Vec<String>, TensorError> {
    let open_error = |source| TensorError::Open { path: directory.into(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(open_error)? {
        names.extend(entry.map_err(open_error)?.file_name().into_string());
    }
    Ok(names)
}
