//! A small checkpoint to stream: the layout of an mlx-community repository, seeded random experts.

use std::{collections::BTreeMap, error::Error, fs, path::Path};

use half::bf16;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;

pub(crate) const LAYERS: u32 = 6;
pub(crate) const EXPERTS: u32 = 32;
pub(crate) const HIDDEN: usize = 128;
const INTERMEDIATE: usize = 64;
const GROUP: usize = 64;

/// Writes it to a folder that it makes.
pub(crate) fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir(folder)?;
    let mut random = fastrand::Rng::with_seed(5);
    let mut data: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for layer in 0..LAYERS {
        for (projection, rows, columns) in
            [("gate", INTERMEDIATE, HIDDEN), ("up", INTERMEDIATE, HIDDEN), ("down", HIDDEN, INTERMEDIATE)]
        {
            let name = |part| format!("model.layers.{layer}.mlp.switch_mlp.{projection}_proj.{part}");
            let experts = EXPERTS as usize;
            let mut weights = vec![0; experts * rows * columns / 2];
            random.fill(&mut weights);
            data.insert(name("weight"), (Dtype::U32, vec![experts, rows, columns / 8], weights));
            for (part, value) in [("scales", 0.02f32), ("biases", -0.15)] {
                let bytes = (0..experts * rows * columns / GROUP)
                    .flat_map(|_| bf16::from_f32(value * (0.75 + 0.5 * random.f32())).to_le_bytes())
                    .collect();
                data.insert(name(part), (Dtype::BF16, vec![experts, rows, columns / GROUP], bytes));
            }
        }
    }
    let views = data
        .iter()
        .map(|(name, (dtype, shape, bytes))| Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None)?)?;
    let config = json!({
        "model_type": "qwen3_moe", "hidden_size": HIDDEN, "moe_intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS, "num_experts": EXPERTS, "num_experts_per_tok": 4, "norm_topk_prob": true,
        "quantization": { "bits": 4, "group_size": GROUP, "mode": "affine" },
    });
    fs::write(folder.join("config.json"), config.to_string())?;
    Ok(())
}
