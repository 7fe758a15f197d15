//! What config.json says, as far as the engine needs it.

use serde_json::Value;
use streamed_experts::{NoAuxTc, Router};

use super::{Failure, latent::LatentWidths, rope::Rope};

/// The architectures that the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Qwen3Moe,
    Olmoe,
    Glm4Moe,
    Mixtral,
    GptOss,
    DeepseekV3,
}

impl Architecture {
    pub const ALL: [Self; 6] =
        [Self::Qwen3Moe, Self::Olmoe, Self::Glm4Moe, Self::Mixtral, Self::GptOss, Self::DeepseekV3];

    /// Its `model_type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qwen3Moe => "qwen3_moe",
            Self::Olmoe => "olmoe",
            Self::Glm4Moe => "glm4_moe",
            Self::Mixtral => "mixtral",
            Self::GptOss => "gpt_oss",
            Self::DeepseekV3 => "deepseek_v3",
        }
    }

    fn of(model_type: &str) -> Result<Self, Failure> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|each| each.name() == model_type);
        found.ok_or_else(|| {
            format!("`{model_type}` is not an architecture that this example runs; it runs {}", known())
                .into()
        })
    }

    /// Where a layer keeps its experts and router, and the router's name there.
    pub const fn block(self) -> (&'static str, &'static str) {
        match self {
            Self::Mixtral => ("block_sparse_moe", "gate"),
            Self::GptOss => ("mlp", "router"),
            Self::Qwen3Moe | Self::Olmoe | Self::Glm4Moe | Self::DeepseekV3 => ("mlp", "gate"),
        }
    }
}

/// How a quantised tensor is packed.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    pub bits: i32,
    pub group: i32,
}

/// A model's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub architecture: Architecture,
    pub layers: u32,
    pub heads: i32,
    pub kv_heads: i32,
    pub head_width: i32,
    pub norm_epsilon: f32,
    /// The most positions the model was made for.
    pub context: usize,
    pub rope: Rope,
    /// Whether q and k are normalised before they are rotated.
    pub qk_norm: bool,
    /// The widths of latent attention, where the architecture has it.
    pub latent: Option<LatentWidths>,
    pub stop_ids: Vec<u32>,
    json: Value,
}

impl Config {
    /// Reads a parsed config.json.
    pub fn new(json: Value) -> Result<Self, Failure> {
        let model_type = json.get("model_type").and_then(Value::as_str);
        let architecture = Architecture::of(model_type.ok_or("config.json names no `model_type`")?)?;
        let heads = size(&json, "num_attention_heads")?;
        let kv_heads =
            if json["num_key_value_heads"].is_null() { heads } else { size(&json, "num_key_value_heads")? };
        let head_width = match architecture {
            Architecture::GptOss if json["head_dim"].is_null() => 64,
            Architecture::Mixtral => size(&json, "hidden_size")? / heads,
            _ if json["head_dim"].is_null() => size(&json, "hidden_size")? / heads,
            _ => size(&json, "head_dim")?,
        };
        let rotated = match architecture {
            Architecture::Glm4Moe => (f64::from(head_width) * number(&json, "partial_rotary_factor")?) as i32,
            Architecture::DeepseekV3 => size(&json, "qk_rope_head_dim")?,
            _ => head_width,
        };
        let latent = match architecture {
            Architecture::DeepseekV3 => Some(LatentWidths {
                plain: size(&json, "qk_nope_head_dim")?,
                rotated,
                value: size(&json, "v_head_dim")?,
                latent: size(&json, "kv_lora_rank")?,
            }),
            _ => None,
        };
        Ok(Self {
            architecture,
            layers: size(&json, "num_hidden_layers")? as u32,
            heads,
            kv_heads,
            head_width,
            norm_epsilon: number(&json, "rms_norm_eps")? as f32,
            context: size(&json, "max_position_embeddings").unwrap_or(4096) as usize,
            rope: Rope::new(&json, rotated, latent.is_some())?,
            qk_norm: match architecture {
                Architecture::Qwen3Moe | Architecture::Olmoe => true,
                Architecture::Glm4Moe => json["use_qk_norm"].as_bool().unwrap_or(false),
                Architecture::Mixtral | Architecture::GptOss | Architecture::DeepseekV3 => false,
            },
            latent,
            stop_ids: ids(&json["eos_token_id"]),
            json,
        })
    }

    /// What the cache holds for a token of a layer: heads, and the widths of their keys and values. With latent attention
    /// these are the latent row and the rotated key that all heads share.
    pub const fn cached(&self) -> [i32; 3] {
        match &self.latent {
            Some(widths) => [1, widths.latent, widths.rotated],
            None => [self.kv_heads, self.head_width, self.head_width],
        }
    }

    /// How many of the newest positions `layer` attends to; `None`: all.
    pub fn window(&self, layer: u32) -> Result<Option<i32>, Failure> {
        if self.architecture != Architecture::GptOss {
            return Ok(None);
        }
        let sliding = match &self.json["layer_types"] {
            Value::Array(types) => types.get(layer as usize).is_some_and(|kind| kind == "sliding_attention"),
            _ => layer.is_multiple_of(2),
        };
        sliding.then(|| size(&self.json, "sliding_window")).transpose()
    }

    /// How a layer's router chooses; `correction` is its `e_score_correction_bias`, where it has one.
    pub fn router(&self, correction: Vec<f32>) -> Result<Router, Failure> {
        let top_k = size(&self.json, "num_experts_per_tok")? as u32;
        let flag = |key: &str, default| self.json[key].as_bool().unwrap_or(default);
        Ok(match self.architecture {
            Architecture::Qwen3Moe | Architecture::Olmoe => {
                Router::SoftmaxTopK { top_k, renormalise: flag("norm_topk_prob", false) }
            }
            Architecture::Mixtral | Architecture::GptOss => Router::TopKSoftmax { top_k },
            Architecture::Glm4Moe | Architecture::DeepseekV3 => Router::NoAuxTc(NoAuxTc {
                top_k,
                correction,
                groups: size(&self.json, "n_group")? as u32,
                groups_kept: size(&self.json, "topk_group")? as u32,
                renormalise: flag("norm_topk_prob", true),
                scale: number(&self.json, "routed_scaling_factor")? as f32,
            }),
        })
    }

    /// How the quantised tensor at `path` is packed: its own entry under `quantization`, else the common one.
    pub fn packing(&self, path: &str) -> Result<Packing, Failure> {
        let all = ["quantization", "quantization_config"].iter().find_map(|key| self.json.get(*key));
        let all = all.ok_or_else(|| format!("{path} is quantised, but config.json has no `quantization`"))?;
        let own = all.get(path).filter(|own| own.is_object()).unwrap_or(all);
        let mode = own.get("mode").and_then(Value::as_str).unwrap_or("affine");
        if mode != "affine" {
            return Err(format!(
                "{path} is stored as {mode}; this example reads dense tensors in affine only"
            )
            .into());
        }
        Ok(Packing { bits: size(own, "bits")?, group: size(own, "group_size")? })
    }
}

/// Token ids given as one or as a list.
pub fn ids(value: &Value) -> Vec<u32> {
    let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(all) => all.iter().filter_map(one).collect(),
        value => one(value).into_iter().collect(),
    }
}

/// A positive whole number.
pub fn size(json: &Value, key: &str) -> Result<i32, Failure> {
    let value = json.get(key).and_then(Value::as_u64).and_then(|value| i32::try_from(value).ok());
    value
        .filter(|&value| value > 0)
        .ok_or_else(|| format!("config.json has no usable `{key}`: {}", json[key]).into())
}

/// Any number.
pub fn number(json: &Value, key: &str) -> Result<f64, Failure> {
    json.get(key)
        .and_then(Value::as_f64)
        .ok_or_else(|| format!("config.json has no usable `{key}`: {}", json[key]).into())
}
