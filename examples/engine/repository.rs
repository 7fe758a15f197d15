//! A model's directory: its configuration, its tensors, and its experts where they lie.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;
use streamed_experts::{Dtype, ExpertSource, MlxCheckpoint, TensorIndex, mlx_rs::Array};

use super::{
    Failure,
    config::{self, Config},
};

/// An mlx-community style repository on disk. Only headers have been read.
#[derive(Debug)]
pub struct Repository {
    pub directory: PathBuf,
    pub config: Config,
    /// Every tensor, of which the engine reads all that are not experts.
    pub tensors: TensorIndex,
    /// The experts, for the library to stream.
    pub source: Arc<dyn ExpertSource>,
}

impl Repository {
    /// Opens `directory`.
    ///
    /// # Errors
    /// No config.json, an architecture that the engine does not run, missing or damaged shards.
    pub fn open(directory: &Path) -> Result<Self, Failure> {
        let mut config = Config::new(read_json(&directory.join("config.json"))?)?;
        let generation = directory.join("generation_config.json");
        if generation.exists() {
            config.stop_ids.extend(config::ids(&read_json(&generation)?["eos_token_id"]));
        }
        let tensors = TensorIndex::open(directory)?;
        let source: Arc<dyn ExpertSource> = Arc::new(MlxCheckpoint::open(directory)?);
        Ok(Self { directory: directory.into(), config, tensors, source })
    }

    /// Whether there is a tensor called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.get(name).is_some()
    }

    /// Reads a tensor in the type it is stored in.
    pub fn read(&self, name: &str) -> Result<Array, Failure> {
        let bytes = self.tensors.read(name)?;
        let tensor = self.tensors.get(name).ok_or("the tensor that was read is gone")?;
        let shape: Result<Vec<i32>, _> = tensor.shape.iter().map(|&size| i32::try_from(size)).collect();
        let shape = shape.map_err(|_| format!("{name} has more rows than MLX counts"))?;
        let array = match tensor.dtype {
            Dtype::F32 => Array::from_slice(&elements::<f32>(&bytes), &shape),
            Dtype::F16 => Array::from_slice(&elements::<half::f16>(&bytes), &shape),
            Dtype::BF16 => Array::from_slice(&elements::<half::bf16>(&bytes), &shape),
            Dtype::U32 => Array::from_slice(&elements::<u32>(&bytes), &shape),
            other => return Err(format!("{name} is {other:?}, which this example does not read").into()),
        };
        Ok(array)
    }
}

/// Little-endian elements, as the file and every machine that MLX runs on have them.
fn elements<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Reads a JSON file.
pub fn read_json(path: &Path) -> Result<Value, Failure> {
    let text = fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{} is not JSON: {e}", path.display()).into())
}
