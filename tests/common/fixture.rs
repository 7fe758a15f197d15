//! Reads a fixture with the safetensors crate alone, and assembles experts in slot layout.

#![allow(dead_code, reason = "each test uses a part")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use streamed_experts::{
    Activation, ExpertGeometry, FloatType, NoAuxTc, Part, Projection, ProjectionGeometry, Quantisation,
    Router, SlotLayout,
    oracle::{Linear, Mlp},
};

pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    pub(crate) fn float_type(&self) -> FloatType {
        match self.dtype {
            Dtype::F32 => FloatType::F32,
            Dtype::F16 => FloatType::F16,
            Dtype::BF16 => FloatType::Bf16,
            other => panic!("{other:?} is no type of scales"),
        }
    }

    pub(crate) fn f64s(&self) -> Vec<f64> {
        if self.dtype == Dtype::F64 {
            return self.bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect();
        }
        let mut values = vec![0.0; self.shape.iter().product()];
        streamed_experts::decode_floats(self.float_type(), &self.bytes, &mut values).unwrap();
        values
    }

    pub(crate) fn f32s(&self) -> Vec<f32> {
        assert_eq!(self.dtype, Dtype::F32);
        self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub(crate) fn ids(&self) -> Vec<u32> {
        assert_eq!(self.dtype, Dtype::I32);
        self.bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// The bytes of element `index` of the first axis.
    fn nth(&self, index: u32) -> &[u8] {
        let bytes = self.bytes.len() / self.shape[0];
        &self.bytes[index as usize * bytes..][..bytes]
    }
}

pub(crate) fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The fixtures that have the file `answers`.
pub(crate) fn names(answers: &str) -> Vec<String> {
    let entries = fs::read_dir(directory("")).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join(answers).exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn tensors(path: &Path, into: &mut BTreeMap<String, Tensor>) {
    let file = fs::read(path).unwrap();
    for (name, view) in SafeTensors::deserialize(&file).unwrap().tensors() {
        let tensor =
            Tensor { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
        assert!(into.insert(name.clone(), tensor).is_none(), "{name} twice in {}", path.display());
    }
}

/// One projection of one expert.
struct Stored<'a> {
    quantisation: Quantisation,
    /// In the order of `Part::ALL`.
    parts: [Option<&'a [u8]>; 4],
    bias: Option<FloatType>,
}

pub(crate) struct Fixture {
    pub(crate) name: String,
    pub(crate) config: Value,
    pub(crate) weights: BTreeMap<String, Tensor>,
    pub(crate) answers: BTreeMap<String, Tensor>,
}

impl Fixture {
    pub(crate) fn open(name: &str) -> Self {
        let directory = directory(name);
        let config = serde_json::from_slice(&fs::read(directory.join("config.json")).unwrap()).unwrap();
        let (mut weights, mut answers) = (BTreeMap::new(), BTreeMap::new());
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap().to_str().unwrap();
            if matches!(file, "oracle.safetensors" | "answers.safetensors") {
                tensors(&path, &mut answers);
            } else if file.ends_with(".safetensors") {
                tensors(&path, &mut weights);
            }
        }
        Self { name: name.to_owned(), config, weights, answers }
    }

    pub(crate) fn model_type(&self) -> &str {
        self.config["model_type"].as_str().unwrap()
    }

    pub(crate) fn integer(&self, key: &str) -> u32 {
        let value = self.config[key].as_u64().unwrap_or_else(|| panic!("{}: {key}", self.name));
        u32::try_from(value).unwrap()
    }

    fn is_colibri(&self) -> bool {
        self.name.starts_with("colibri")
    }

    /// The layers that have answers.
    pub(crate) fn layers(&self) -> Vec<u32> {
        let number = |name: &String| {
            let name = name.strip_prefix("layers.").unwrap_or(name);
            name.split_once('.')?.0.parse().ok()
        };
        let mut layers: Vec<u32> = self.answers.keys().filter_map(number).collect();
        layers.sort_unstable();
        layers.dedup();
        layers
    }

    pub(crate) fn answer(&self, layer: u32, what: &str) -> &Tensor {
        let name =
            if self.is_colibri() { format!("{layer}.{what}") } else { format!("layers.{layer}.{what}") };
        &self.answers[&name]
    }

    fn block(&self, layer: u32) -> String {
        let block = if self.model_type() == "mixtral" { "block_sparse_moe" } else { "mlp" };
        format!("model.layers.{layer}.{block}")
    }

    fn router_path(&self, layer: u32) -> String {
        self.block(layer) + if self.model_type() == "gpt_oss" { ".router" } else { ".gate" }
    }

    pub(crate) fn experts(&self) -> u32 {
        let keys = ["num_experts", "num_local_experts", "n_routed_experts"];
        keys.iter().find(|key| self.config.get(**key).is_some()).map(|key| self.integer(key)).unwrap()
    }

    fn hidden_and_intermediate(&self) -> (u32, u32) {
        let key = if self.config.get("moe_intermediate_size").is_some() {
            "moe_intermediate_size"
        } else {
            "intermediate_size"
        };
        (self.integer("hidden_size"), self.integer(key))
    }

    /// The format of the quantised tensor at `path`, by config.json.
    fn quantisation(&self, path: &str) -> Quantisation {
        let all = &self.config["quantization"];
        let own = all.get(path);
        let settings = own.unwrap_or(all);
        let integer = |key: &str| u32::try_from(settings[key].as_u64().unwrap()).unwrap();
        match settings.get("mode").map_or("affine", |mode| mode.as_str().unwrap()) {
            "affine" => {
                let scales = self.weights[&format!("{path}.scales")].float_type();
                Quantisation::Affine { bits: integer("bits"), group: integer("group_size"), scales }
            }
            "mxfp4" => Quantisation::Mxfp4,
            "nvfp4" => Quantisation::Nvfp4,
            "mxfp8" => Quantisation::Mxfp8,
            other => panic!("mode {other}"),
        }
    }

    /// The linear layer at `path`, quantised or plain.
    pub(crate) fn linear(&self, path: &str) -> Linear<'_> {
        let get = |part: &str| self.weights.get(&format!("{path}.{part}"));
        let bytes = |part| get(part).map_or(&[][..], |tensor| &tensor.bytes);
        let weight = get("weight").unwrap_or_else(|| panic!("{}: {path}", self.name));
        let rows = u32::try_from(weight.shape[0]).unwrap();
        let linear = if get("scales").is_some() {
            let quantisation = self.quantisation(path);
            let columns = u32::try_from(weight.shape[1] * 32).unwrap() / quantisation.bits();
            let geometry = ProjectionGeometry { rows, columns, quantisation };
            Linear::quantised(geometry, &weight.bytes, bytes("scales"), bytes("biases")).unwrap()
        } else {
            let columns = u32::try_from(weight.shape[1]).unwrap();
            Linear::plain(rows, columns, weight.float_type(), &weight.bytes).unwrap()
        };
        match get("bias") {
            Some(bias) => linear.with_bias(bias.float_type(), &bias.bytes).unwrap(),
            None => linear,
        }
    }

    pub(crate) fn logits(&self, layer: u32) -> Vec<f32> {
        let input = self.answer(layer, "input").f64s();
        let logits = self.linear(&self.router_path(layer)).forward(&input).unwrap();
        #[expect(clippy::cast_possible_truncation, reason = "routers take f32")]
        logits.into_iter().map(|logit| logit as f32).collect()
    }

    pub(crate) fn router(&self, layer: u32) -> Router {
        let top_k = self.integer("num_experts_per_tok");
        let flag = |key: &str| self.config[key].as_bool().unwrap();
        match self.model_type() {
            "qwen3_moe" | "olmoe" => Router::SoftmaxTopK { top_k, renormalise: flag("norm_topk_prob") },
            "mixtral" | "gpt_oss" => Router::TopKSoftmax { top_k },
            #[expect(clippy::cast_possible_truncation, reason = "routers take f32")]
            _ => Router::NoAuxTc(NoAuxTc {
                top_k,
                correction: self.weights[&(self.router_path(layer) + ".e_score_correction_bias")].f32s(),
                groups: self.integer("n_group"),
                groups_kept: self.integer("topk_group"),
                renormalise: flag("norm_topk_prob"),
                scale: self.config["routed_scaling_factor"].as_f64().unwrap() as f32,
            }),
        }
    }

    /// What the layer's shared expert computes on its input; `None` if it has none.
    pub(crate) fn shared(&self, layer: u32) -> Option<Vec<f64>> {
        if self.is_colibri() {
            return Some(self.answer(layer, "shared").f64s());
        }
        let path = self.block(layer) + ".shared_experts";
        self.weights.get(&format!("{path}.gate_proj.weight"))?;
        let [gate, up, down] = ["gate", "up", "down"].map(|name| self.linear(&format!("{path}.{name}_proj")));
        let mlp = Mlp::new(gate, up, down, Activation::SwiGlu).unwrap();
        Some(mlp.forward(&self.answer(layer, "input").f64s()).unwrap())
    }

    pub(crate) fn geometry(&self, layer: u32) -> ExpertGeometry {
        let (hidden, intermediate) = self.hidden_and_intermediate();
        let stored = Projection::ALL.map(|projection| self.stored(layer, 0, projection));
        let activation = if self.model_type() == "gpt_oss" {
            Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 }
        } else {
            Activation::SwiGlu
        };
        let bias = stored[0].bias;
        ExpertGeometry {
            hidden,
            intermediate,
            quantisation: stored.map(|s| s.quantisation),
            bias,
            activation,
        }
    }

    /// The expert's bytes in slot layout. What lies between the components is not zero.
    pub(crate) fn slot(&self, layer: u32, expert: u32) -> Vec<u8> {
        let layout = SlotLayout::new(&self.geometry(layer)).unwrap();
        let mut slot = vec![0xA5; usize::try_from(layout.slot_bytes()).unwrap()];
        for projection in Projection::ALL {
            let stored = self.stored(layer, expert, projection);
            for (part, bytes) in Part::ALL.into_iter().zip(stored.parts) {
                let range = layout.range(projection, part);
                assert_eq!(range.is_some(), bytes.is_some(), "{}: {projection:?} {part:?}", self.name);
                if let (Some(range), Some(bytes)) = (range, bytes) {
                    let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
                    slot[range].copy_from_slice(bytes);
                }
            }
        }
        slot
    }

    fn stored(&self, layer: u32, expert: u32, projection: Projection) -> Stored<'_> {
        if self.is_colibri() {
            return self.stored_by_colibri(layer, expert, projection);
        }
        let (name, mixtral) = match projection {
            Projection::Down => ("down_proj", "w2"),
            Projection::Gate => ("gate_proj", "w1"),
            Projection::Up => ("up_proj", "w3"),
        };
        let block = self.block(layer);
        let stacked = [format!("{block}.switch_mlp.{name}"), format!("{block}.experts.{name}")];
        let single =
            [format!("{block}.experts.{expert}.{name}"), format!("{block}.experts.{expert}.{mixtral}")];
        let exists = |path: &&String| self.weights.contains_key(&format!("{path}.weight"));
        let stack = stacked.iter().find(exists);
        let path = stack.or_else(|| single.iter().find(exists)).expect("experts under a known name");
        let part = |part| {
            let tensor = self.weights.get(&format!("{path}.{part}"))?;
            Some(if stack.is_some() { tensor.nth(expert) } else { &tensor.bytes })
        };
        Stored {
            quantisation: self.quantisation(path),
            parts: ["weight", "scales", "biases", "bias"].map(part),
            bias: self.weights.get(&format!("{path}.bias")).map(Tensor::float_type),
        }
    }

    fn stored_by_colibri(&self, layer: u32, expert: u32, projection: Projection) -> Stored<'_> {
        let (hidden, intermediate) = self.hidden_and_intermediate();
        let (name, rows, columns) = match projection {
            Projection::Down => ("down", hidden, intermediate),
            Projection::Gate => ("gate", intermediate, hidden),
            Projection::Up => ("up", intermediate, hidden),
        };
        let path = format!("model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight");
        let (weight, scales) = (&self.weights[&path].bytes, &self.weights[&format!("{path}.qs")].bytes);
        let bits = if weight.len() == (rows * columns) as usize { 8 } else { 4 };
        let per_row = u32::try_from(scales.len() / 4).unwrap() / rows;
        // In the fixtures groups divide the row, also where another group would fit.
        let group = (per_row > 1).then(|| columns / per_row);
        Stored {
            quantisation: Quantisation::Signed { bits, group },
            parts: [Some(weight), Some(scales), None, None],
            bias: None,
        }
    }
}
