//! What the answers of a checkpoint leave to the checkpoint: routes' weights and the shared expert.

use std::{fs, path::Path};

use serde_json::Value;
use streamed_experts::{
    Activation, Dtype, FloatType, NoAuxTc, ProjectionGeometry, Quantisation, Router, TensorIndex,
    oracle::{Linear, Mlp},
};

use crate::{
    answers::{Answers, Layer, float_type, floats},
    common::Failure,
};

/// Layer `number` with weights from the checkpoint's router and, where it has one, its shared expert's rows.
pub fn layer(path: &Path, answers: &Answers, number: u32, experts: u32) -> Result<Layer, Failure> {
    let checkpoint = Checkpoint::open(path)?;
    let name = |part: &str| format!("layers.{number}.{part}");
    let input = answers.doubles(&name("input"))?;
    let indices = answers.indices(&name("indices"))?;
    let hidden = answers.shape(&name("input"))?.last().copied().unwrap_or(0);
    let ranks = answers.shape(&name("indices"))?.last().copied().unwrap_or(0);
    if hidden == 0 || ranks == 0 || input.len() / hidden != indices.len() / ranks {
        return Err(format!("`{}` and `{}` have different rows", name("input"), name("indices")).into());
    }
    let rows = input.len() / hidden;
    let block = checkpoint.block(number)?;
    let weights = checkpoint.weights(&block, &input, rows, &indices, experts)?;
    Ok(Layer {
        rows,
        ranks,
        shared: checkpoint.shared(&block, &input)?,
        input: input.iter().map(|&value| value as f32).collect(),
        indices,
        weights,
        expert_rows: answers.doubles(&name("switch"))?,
        output: answers.doubles(&name("output"))?,
    })
}

struct Checkpoint {
    tensors: TensorIndex,
    config: Value,
}

/// A linear layer's tensors, read.
struct Stored {
    rows: u32,
    columns: u32,
    /// `None`: plain numbers.
    quantisation: Option<Quantisation>,
    dtype: Dtype,
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    bias: Option<(FloatType, Vec<u8>)>,
}

impl Checkpoint {
    fn open(path: &Path) -> Result<Self, Failure> {
        let config = path.join("config.json");
        let text = fs::read(&config).map_err(|e| format!("cannot read {}: {e}", config.display()))?;
        Ok(Self { tensors: TensorIndex::open(path)?, config: serde_json::from_slice(&text)? })
    }

    fn number(&self, field: &str) -> Option<u64> {
        self.config.get(field).and_then(Value::as_u64)
    }

    /// The path of the layer's MoE block.
    fn block(&self, number: u32) -> Result<String, Failure> {
        let ends = [".mlp.gate.weight", ".mlp.router.weight", ".block_sparse_moe.gate.weight"];
        let layer = format!("layers.{number}.");
        let of_layer = |name: &&str| name.starts_with(&layer) || name.contains(&format!(".{layer}"));
        let router = self.tensors.iter().map(|(name, _)| name).filter(of_layer);
        let router = router.into_iter().find(|name| ends.iter().any(|end| name.ends_with(end)));
        let router = router.ok_or_else(|| format!("the checkpoint has no router for layer {number}"))?;
        Ok(router.rsplitn(3, '.').nth(2).unwrap_or_default().to_owned())
    }

    /// The weights of the experts in `indices`, in that order, by the checkpoint's own router.
    fn weights(
        &self,
        block: &str,
        input: &[f64],
        rows: usize,
        indices: &[u32],
        experts: u32,
    ) -> Result<Vec<f32>, Failure> {
        let gate = [format!("{block}.gate"), format!("{block}.router")]
            .into_iter()
            .find(|path| self.tensors.get(&format!("{path}.weight")).is_some())
            .ok_or_else(|| format!("`{block}` has no router"))?;
        let width = u32::try_from(input.len() / rows)?;
        let logits = self.stored(&gate, width)?.linear()?.forward(input)?;
        let logits: Vec<f32> = logits.into_iter().map(|value| value as f32).collect();
        let ranks = indices.len() / rows;
        let routes = self.router(&gate, u32::try_from(ranks)?)?.route(&logits, rows)?;
        let mut weights = Vec::with_capacity(indices.len());
        for (row, given) in indices.chunks(ranks).enumerate() {
            let chosen: Vec<_> = routes.row(row).collect();
            for &expert in given {
                let weight = chosen.iter().find(|(id, _)| id.0 == expert).map(|&(_, weight)| weight).ok_or_else(|| {
                    format!("row {row}: the answers chose expert {expert} of {experts}, the checkpoint's router did not")
                })?;
                weights.push(weight);
            }
        }
        Ok(weights)
    }

    fn router(&self, gate: &str, top_k: u32) -> Result<Router, Failure> {
        let model = self.config.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let renormalise = self.config.get("norm_topk_prob").and_then(Value::as_bool).unwrap_or(true);
        let small = |field| self.number(field).map_or(Ok(1), u32::try_from);
        Ok(match model {
            "qwen3_moe" | "olmoe" => Router::SoftmaxTopK { top_k, renormalise },
            "mixtral" | "gpt_oss" => Router::TopKSoftmax { top_k },
            "glm4_moe" | "deepseek_v3" => Router::NoAuxTc(NoAuxTc {
                top_k,
                correction: self.correction(gate)?,
                groups: small("n_group")?,
                groups_kept: small("topk_group")?,
                renormalise,
                scale: self.config.get("routed_scaling_factor").and_then(Value::as_f64).unwrap_or(1.0) as f32,
            }),
            other => {
                return Err(format!(
                    "no router is known for model_type `{other}`; known: qwen3_moe, olmoe, mixtral, gpt_oss, glm4_moe, \
                     deepseek_v3"
                )
                .into());
            }
        })
    }

    fn correction(&self, gate: &str) -> Result<Vec<f32>, Failure> {
        let name = format!("{gate}.e_score_correction_bias");
        let Some(tensor) = self.tensors.get(&name) else { return Ok(Vec::new()) };
        let values = floats(tensor.dtype, &self.tensors.read(&name)?)
            .ok_or("the correction bias is not floating point")?;
        Ok(values.into_iter().map(|value| value as f32).collect())
    }

    fn shared(&self, block: &str, input: &[f64]) -> Result<Option<Vec<f32>>, Failure> {
        let path = format!("{block}.shared_experts");
        let hidden = self.number("hidden_size").ok_or("config.json has no hidden_size")?;
        if self.tensors.get(&format!("{path}.gate_proj.weight")).is_none() {
            return Ok(None);
        }
        let gate = self.stored(&format!("{path}.gate_proj"), u32::try_from(hidden)?)?;
        let up = self.stored(&format!("{path}.up_proj"), u32::try_from(hidden)?)?;
        let down = self.stored(&format!("{path}.down_proj"), gate.rows)?;
        let mlp = Mlp::new(gate.linear()?, up.linear()?, down.linear()?, Activation::SwiGlu)?;
        Ok(Some(mlp.forward(input)?.into_iter().map(|value| value as f32).collect()))
    }

    /// The linear layer at `path`, which takes rows of `columns`.
    fn stored(&self, path: &str, columns: u32) -> Result<Stored, Failure> {
        let name = |part: &str| format!("{path}.{part}");
        let read = |part: &str| match self.tensors.get(&name(part)) {
            Some(_) => self.tensors.read(&name(part)).map_err(Failure::from),
            None => Ok(Vec::new()),
        };
        let weight =
            self.tensors.get(&name("weight")).ok_or_else(|| format!("`{path}.weight` is missing"))?;
        let scales = self.tensors.get(&name("scales"));
        let bias = match self.tensors.get(&name("bias")) {
            Some(bias) => {
                let kind = float_type(bias.dtype).ok_or("a linear bias is not floating point")?;
                Some((kind, read("bias")?))
            }
            None => None,
        };
        Ok(Stored {
            rows: u32::try_from(weight.shape.first().copied().unwrap_or(0))?,
            columns,
            quantisation: scales.map(|scales| self.quantisation(path, scales.dtype)).transpose()?,
            dtype: weight.dtype,
            weight: read("weight")?,
            scales: read("scales")?,
            biases: read("biases")?,
            bias,
        })
    }

    /// How config.json says that the layer at `path` is stored.
    fn quantisation(&self, path: &str, scales: Dtype) -> Result<Quantisation, Failure> {
        let general = self.config.get("quantization").ok_or("config.json has no `quantization`")?;
        let own = general.get(path);
        let field = |name| own.and_then(|own| own.get(name)).or_else(|| general.get(name));
        let number = |name| field(name).and_then(Value::as_u64).and_then(|value| u32::try_from(value).ok());
        // An override without a mode is affine, whatever the file's mode is.
        let mode = if own.is_some() { own.and_then(|own| own.get("mode")) } else { general.get("mode") };
        match mode.and_then(Value::as_str).unwrap_or("affine") {
            "mxfp4" => Ok(Quantisation::Mxfp4),
            "nvfp4" => Ok(Quantisation::Nvfp4),
            "mxfp8" => Ok(Quantisation::Mxfp8),
            "affine" => Ok(Quantisation::Affine {
                bits: number("bits").ok_or("`quantization` has no bits")?,
                group: number("group_size").ok_or("`quantization` has no group_size")?,
                scales: float_type(scales).ok_or("affine scales are not floating point")?,
            }),
            other => Err(format!("unknown quantisation mode `{other}`").into()),
        }
    }
}

impl Stored {
    fn linear(&self) -> Result<Linear<'_>, Failure> {
        let linear = match self.quantisation {
            Some(quantisation) => Linear::quantised(
                ProjectionGeometry { rows: self.rows, columns: self.columns, quantisation },
                &self.weight,
                &self.scales,
                &self.biases,
            )?,
            None => {
                let kind = float_type(self.dtype).ok_or("a plain weight is not floating point")?;
                Linear::plain(self.rows, self.columns, kind, &self.weight)?
            }
        };
        Ok(match &self.bias {
            Some((kind, bias)) => linear.with_bias(*kind, bias)?,
            None => linear,
        })
    }
}
