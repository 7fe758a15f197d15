//! Writes a checkpoint with seeded random experts in the layout of an mlx-community repository.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
};

use indicatif::ProgressBar;
use serde_json::{Map, Value, json};

use crate::common::Failure;

pub const LAYERS: u32 = 16;
pub const EXPERTS: u32 = 64;
const HIDDEN: u32 = 1024;
const INTERMEDIATE: u32 = 384;
const GROUP: u32 = 64;
const LAYERS_PER_SHARD: u32 = 4;

/// Bytes that the experts take: what the progress bar counts.
pub fn expert_bytes() -> u64 {
    let weights = 3 * u64::from(HIDDEN) * u64::from(INTERMEDIATE);
    u64::from(LAYERS * EXPERTS) * (weights / 2 + weights / u64::from(GROUP) * 4)
}

/// Writes the checkpoint to `dir`, unless a complete one is there. A killed run leaves nothing that looks complete.
pub fn write(dir: &Path, bar: &ProgressBar) -> Result<(), Failure> {
    if dir.join("config.json").exists() {
        return Ok(());
    }
    let unfinished = dir.with_extension("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    fs::create_dir_all(&unfinished)?;
    let mut map = Map::new();
    let shards = LAYERS / LAYERS_PER_SHARD;
    for shard in 0..shards {
        let name = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
        let layers = shard * LAYERS_PER_SHARD..(shard + 1) * LAYERS_PER_SHARD;
        let tensors: Vec<Tensor> = layers.flat_map(Tensor::of_layer).collect();
        write_shard(&unfinished.join(&name), &tensors, bar)?;
        map.extend(tensors.into_iter().map(|tensor| (tensor.name, Value::from(name.as_str()))));
    }
    let index = json!({ "metadata": { "total_size": expert_bytes() }, "weight_map": map });
    fs::write(unfinished.join("model.safetensors.index.json"), index.to_string())?;
    fs::write(unfinished.join("config.json"), config().to_string())?;
    fs::rename(&unfinished, dir)?;
    Ok(())
}

fn config() -> Value {
    json!({
        "model_type": "qwen3_moe",
        "hidden_size": HIDDEN,
        "moe_intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 8,
        "norm_topk_prob": true,
        "quantization": { "bits": 4, "group_size": GROUP, "mode": "affine" },
    })
}

enum Fill {
    Weights,
    Scales { scale: f32 },
}

struct Tensor {
    name: String,
    dtype: &'static str,
    shape: [u32; 3],
    bytes: u64,
    fill: Fill,
    seed: u64,
}

impl Tensor {
    fn of_layer(layer: u32) -> Vec<Self> {
        let mut tensors = Vec::new();
        for (number, (projection, rows, columns)) in
            [("gate", INTERMEDIATE, HIDDEN), ("up", INTERMEDIATE, HIDDEN), ("down", HIDDEN, INTERMEDIATE)]
                .into_iter()
                .enumerate()
        {
            // 16 levels between −1 and 1, over the square root of the width: outputs stay near 1.
            let scale = 2.0 / (15.0 * (columns as f32).sqrt());
            for (part, dtype, width, item_bytes, fill) in [
                ("weight", "U32", columns / 8, 4, Fill::Weights),
                ("scales", "BF16", columns / GROUP, 2, Fill::Scales { scale }),
                ("biases", "BF16", columns / GROUP, 2, Fill::Scales { scale: -7.5 * scale }),
            ] {
                tensors.push(Self {
                    name: format!("model.layers.{layer}.mlp.switch_mlp.{projection}_proj.{part}"),
                    dtype,
                    shape: [EXPERTS, rows, width],
                    bytes: u64::from(EXPERTS) * u64::from(rows) * u64::from(width) * item_bytes,
                    fill,
                    seed: u64::from(layer) * 16 + number as u64,
                });
            }
        }
        tensors
    }

    fn write(&self, file: &mut impl Write, bar: &ProgressBar) -> Result<(), Failure> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut block = vec![0u8; 1 << 20];
        let mut left = self.bytes;
        while left > 0 {
            let len = left.min(block.len() as u64) as usize;
            match self.fill {
                Fill::Weights => random.fill(&mut block[..len]),
                Fill::Scales { scale } => {
                    for pair in block[..len].chunks_exact_mut(2) {
                        let value = scale * (0.75 + 0.5 * random.f32());
                        pair.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
                    }
                }
            }
            file.write_all(&block[..len])?;
            bar.inc(len as u64);
            left -= len as u64;
        }
        Ok(())
    }
}

fn write_shard(path: &Path, tensors: &[Tensor], bar: &ProgressBar) -> Result<(), Failure> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "mlx" }));
    let mut offset = 0;
    for tensor in tensors {
        let range = [offset, offset + tensor.bytes];
        header.insert(
            tensor.name.clone(),
            json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": range }),
        );
        offset += tensor.bytes;
    }
    let header = Value::from(header).to_string();
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for tensor in tensors {
        tensor.write(&mut file, bar)?;
    }
    file.into_inner()?.sync_all()?;
    Ok(())
}
