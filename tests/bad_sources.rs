//! If these fail, a damaged or half-fetched model is taken for a good one, or is refused in words that do not say what
//! to do about it.

mod shards;

use std::{
    error::Error,
    fs::{self, OpenOptions},
    path::Path,
};

use shards::{Declared, header, write_raw, write_sparse};
use streamed_experts::{
    Colibri, ColibriOptions, ExpertSource, MlxCheckpoint, SourceError, TensorIndex, open_source,
};
use tempfile::TempDir;

const AFFINE: &str = r#"{"quantization":{"group_size":64,"bits":4,"mode":"affine"},"hidden_size":128}"#;
const BLOCK: &str = "model.layers.0.mlp.switch_mlp";
const FILE: &str = "model.safetensors";

/// A small model to be spoilt: by default two stacked experts of 128 × 64 at 4 bits in groups of 64.
struct Model {
    directory: TempDir,
    config: String,
    tensors: Vec<Declared>,
}

impl Model {
    fn new() -> Self {
        let mut model =
            Self { directory: tempfile::tempdir().unwrap(), config: AFFINE.into(), tensors: Vec::new() };
        for (projection, rows, words, groups) in [("gate", 64, 16, 2), ("up", 64, 16, 2), ("down", 128, 8, 1)]
        {
            for (part, dtype, last) in
                [("weight", "U32", words), ("scales", "BF16", groups), ("biases", "BF16", groups)]
            {
                let name = format!("{BLOCK}.{projection}_proj.{part}");
                model.tensors.push((name, dtype, vec![2, rows, last]));
            }
        }
        model
    }

    /// The same experts, one tensor each.
    fn per_expert() -> Self {
        let mut model = Self::new();
        let stacked = std::mem::take(&mut model.tensors);
        for expert in 0..2 {
            for (name, dtype, shape) in &stacked {
                let name = name.replace("switch_mlp", &format!("experts.{expert}"));
                model.tensors.push((name, *dtype, shape[1..].to_vec()));
            }
        }
        model
    }

    /// Two experts of 64 × 32 at 4 bits with row scales, as Colibri has them.
    fn colibri() -> Self {
        let mut model = Self::new();
        model.config = r#"{"hidden_size":64,"moe_intermediate_size":32,"n_routed_experts":2}"#.into();
        model.tensors.clear();
        for expert in 0..2 {
            for (projection, rows) in [("down", 64), ("gate", 32), ("up", 32)] {
                let name = format!("model.layers.3.mlp.experts.{expert}.{projection}_proj.weight");
                model.tensors.push((name.clone(), "U8", vec![1024]));
                model.tensors.push((name + ".qs", "F32", vec![rows]));
            }
        }
        model
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn config(mut self, config: &str) -> Self {
        self.config = config.into();
        self
    }

    /// Gives every tensor whose name ends so another type and shape.
    fn set(mut self, end: &str, dtype: &'static str, shape: &[u64]) -> Self {
        let mut found = false;
        for tensor in self.tensors.iter_mut().filter(|(name, ..)| name.ends_with(end)) {
            (tensor.1, tensor.2, found) = (dtype, shape.to_vec(), true);
        }
        assert!(found, "no tensor ends with {end}");
        self
    }

    fn without(mut self, end: &str) -> Self {
        self.tensors.retain(|(name, ..)| !name.ends_with(end));
        self
    }

    fn with(mut self, name: &str, dtype: &'static str, shape: &[u64]) -> Self {
        self.tensors.push((name.into(), dtype, shape.to_vec()));
        self
    }

    fn write(&self, file: &str) {
        write_sparse(&self.path().join(file), &self.tensors);
        fs::write(self.path().join("config.json"), &self.config).unwrap();
    }

    /// What opening it as `FILE` says.
    fn refusal(&self) -> String {
        self.write(FILE);
        refusal(self.path())
    }

    /// What opening it as a container says.
    fn colibri_refusal(&self, options: ColibriOptions) -> String {
        self.write("out-00000.safetensors");
        text(&Colibri::open_with(self.path(), &options).unwrap_err())
    }
}

/// The whole chain of an error, as a program would print it.
fn text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text += &format!(": {error}");
        next = error.source();
    }
    text
}

fn refusal(path: &Path) -> String {
    text(&open_source(path).unwrap_err())
}

#[track_caller]
fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
}

/// What opening one file with this header and so much data says.
fn header_refusal(json: &str, data_bytes: u64) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.safetensors");
    write_raw(&path, json, data_bytes);
    text(&TensorIndex::open_file(&path).unwrap_err())
}

/// What opening one file of these bytes says.
fn bytes_refusal(bytes: &[u8]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.safetensors");
    fs::write(&path, bytes).unwrap();
    text(&TensorIndex::open_file(&path).unwrap_err())
}

#[test]
fn the_models_that_are_spoilt_below_are_good() {
    for model in [Model::new(), Model::per_expert()] {
        model.write(FILE);
        let source = open_source(model.path()).unwrap();
        assert_eq!((source.layers().len(), source.layers()[0].experts), (1, 2));
    }
    let model = Model::colibri();
    model.write("out-00000.safetensors");
    assert_eq!(Colibri::open(model.path()).unwrap().layers()[0].experts, 2);
}

#[test]
fn a_file_that_is_not_safetensors_is_refused() {
    let page = b"<!DOCTYPE html><html><body>404: not found</body></html>";
    says(&bytes_refusal(page), &["a.safetensors is not a safetensors file", "100000000 B"]);
    says(&bytes_refusal(b"\x04\0\0\0\0\0\0\0[{}]"), &["a.safetensors is not a safetensors file", "object"]);
    says(&bytes_refusal(b"abc"), &["a.safetensors is not a safetensors file", "3 B"]);
    says(&bytes_refusal(b""), &["0 B"]);
}

#[test]
fn a_header_that_is_cut_off_is_refused() {
    says(
        &bytes_refusal(b"\x40\0\0\0\0\0\0\0{\"a\":"),
        &["a.safetensors ends inside its header", "64 B", "13 B"],
    );
}

#[test]
fn a_header_beyond_the_format_s_limit_is_refused() {
    let mut bytes = 100_000_001u64.to_le_bytes().to_vec();
    bytes.extend(b"{}");
    says(&bytes_refusal(&bytes), &["a.safetensors", "100000001 B", "100000000 B is the limit"]);
    says(&bytes_refusal(&[255; 8]), &["18446744073709551615 B"]);
}

#[test]
fn a_header_that_is_not_json_is_refused_at_the_tensor_where_it_breaks() {
    let good = r#""a.b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    says(&header_refusal(&format!("{{{good},\"c.d\":7}}"), 1), &["a.safetensors", "\"c.d\""]);
    says(&header_refusal(&format!("{{{good}"), 1), &["a.safetensors", "\"a.b\""]);
    let unknown_type = r#"{"a":{"dtype":"Q4_K","shape":[1],"data_offsets":[0,1]}}"#;
    says(&header_refusal(unknown_type, 1), &["\"a\"", "Q4_K"]);
    says(&header_refusal(r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#, 1), &["\"a\"", "-1"]);
}

#[test]
fn ranges_that_overlap_are_refused() {
    let json = r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"y":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}"#;
    let start = 8 + json.len() + 3;
    says(&header_refusal(json, 8), &["tensors x and y overlap", "a.safetensors", &start.to_string()]);
}

#[test]
fn a_range_that_runs_backwards_is_refused() {
    let json = r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[9,5]}}"#;
    says(&header_refusal(json, 16), &["tensor x", "a.safetensors", "backwards", "byte 9", "byte 5"]);
}

#[test]
fn a_range_that_is_not_its_shape_is_refused() {
    let json = r#"{"x":{"dtype":"F32","shape":[4,2],"data_offsets":[0,31]}}"#;
    says(&header_refusal(json, 31), &["tensor x", "a.safetensors", "31 B", "F32 [4, 2]"]);
    let json = r#"{"x":{"dtype":"U8","shape":[18446744073709551615,2],"data_offsets":[0,2]}}"#;
    says(&header_refusal(json, 2), &["tensor x", "18446744073709551615"]);
    let json = r#"{"x":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}"#;
    says(&header_refusal(json, 1), &["tensor x", "9 dimensions", "8 is the limit"]);
}

#[test]
fn a_file_shorter_than_its_header_says_is_refused() {
    let model = Model::new();
    model.write(FILE);
    let path = model.path().join(FILE);
    let len = fs::metadata(&path).unwrap().len();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 1).unwrap();
    says(&refusal(model.path()), &["down_proj.biases", FILE, &len.to_string(), &(len - 1).to_string()]);
    let json =
        r#"{"x":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}}"#;
    says(&header_refusal(json, 2), &["tensor x", "18446744073709551615", "fetch"]);
}

#[test]
fn a_file_longer_than_its_header_says_is_refused() {
    for model in [Model::new(), Model::per_expert()] {
        model.write(FILE);
        let path = model.path().join(FILE);
        let len = fs::metadata(&path).unwrap().len();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(len + 5).unwrap();
        says(&refusal(model.path()), &[FILE, &(len + 5).to_string(), &format!("byte {len}"), "5 B follow"]);
    }
    says(&header_refusal("{}", 3), &["a.safetensors", "3 B follow"]);
}

#[test]
fn a_tensor_twice_in_one_file_is_refused() {
    let json = r#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    says(&header_refusal(json, 2), &["tensor x", "twice", "a.safetensors"]);
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let model = Model::new();
    model.write("model-00001-of-00002.safetensors");
    let gate = format!("{BLOCK}.gate_proj.scales");
    write_sparse(&model.path().join("model-00002-of-00002.safetensors"), &[(gate.clone(), "U8", vec![1])]);
    says(
        &refusal(model.path()),
        &[&gate, "twice", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
    );
}

#[test]
fn a_missing_tensor_is_named() {
    says(&Model::new().without("up_proj.scales").refusal(), &["L0", "mlp.switch_mlp.up_proj.scales"]);
    says(&Model::new().without("gate_proj.weight").refusal(), &["L0", "mlp.switch_mlp.gate_proj.weight"]);
    says(&Model::new().without("down_proj.biases").refusal(), &["L0", "mlp.switch_mlp.down_proj.biases"]);
    says(&Model::per_expert().without("1.up_proj.weight").refusal(), &["mlp.experts.1.up_proj.weight"]);
    let colibri = Model::colibri().without("1.up_proj.weight.qs");
    says(&colibri.colibri_refusal(ColibriOptions::default()), &["L3", "experts.1.up_proj.weight.qs"]);
}

#[test]
fn a_missing_expert_is_named() {
    let mut model = Model::per_expert();
    for (name, ..) in &mut model.tensors {
        *name = name.replace("experts.1.", "experts.2.");
    }
    says(&model.refusal(), &["L0", "mlp.experts.1.down_proj.weight"]);
    let counted = Model::per_expert().config(&AFFINE.replace("128}", "128,\"num_experts\":3}"));
    says(&counted.refusal(), &["L0 has 2 experts", "says 3"]);
}

#[test]
fn a_bias_of_one_projection_alone_is_refused() {
    let model = Model::new().with(&format!("{BLOCK}.gate_proj.bias"), "BF16", &[2, 64]);
    says(&model.refusal(), &["L0", "down_proj.bias"]);
}

#[test]
fn a_tensor_of_the_wrong_type_is_refused() {
    let scales = Model::new().set("up_proj.scales", "I32", &[2, 64, 2]).refusal();
    says(&scales, &["up_proj.scales", FILE, "I32", "BF16"]);
    let biases = Model::new().set("up_proj.biases", "F32", &[2, 64, 2]).refusal();
    says(&biases, &["up_proj.biases", FILE, "F32", "scales"]);
    let weight = Model::new().set("up_proj.weight", "U8", &[2, 64, 64]).refusal();
    says(&weight, &["up_proj.weight", FILE, "U8", "U32"]);
    let mxfp4 = r#"{"quantization":{"group_size":32,"bits":4,"mode":"mxfp4"}}"#;
    says(&Model::new().config(mxfp4).refusal(), &["down_proj.scales", FILE, "BF16", "U8"]);
    let colibri = Model::colibri().set("1.gate_proj.weight.qs", "F16", &[32]);
    says(
        &colibri.colibri_refusal(ColibriOptions::default()),
        &["experts.1.gate_proj.weight.qs", "out-00000.safetensors", "F16", "F32"],
    );
}

#[test]
fn a_tensor_of_the_wrong_shape_is_refused() {
    let scales = Model::new().set("up_proj.scales", "BF16", &[2, 64, 3]).refusal();
    says(&scales, &["up_proj.scales", FILE, "[2, 64, 3]", "[2, 64, 2]"]);
    let flat = Model::new().set("up_proj.weight", "U32", &[2, 1024]).refusal();
    says(&flat, &["up_proj.weight", FILE, "[2, 1024]", "[experts, rows, words]"]);
    let none = Model::new().set("up_proj.weight", "U32", &[2, 0, 16]).refusal();
    says(&none, &["up_proj.weight", FILE, "[2, 0, 16]"]);
}

#[test]
fn projections_that_do_not_fit_each_other_are_refused() {
    let rows = Model::new()
        .set("up_proj.weight", "U32", &[2, 32, 16])
        .set("up_proj.scales", "BF16", &[2, 32, 2])
        .set("up_proj.biases", "BF16", &[2, 32, 2]);
    says(&rows.refusal(), &["up_proj.weight", FILE, "[2, 32, 16]", "64 rows of 128", "32 of 128"]);
    let experts = Model::new()
        .set("gate_proj.weight", "U32", &[3, 64, 16])
        .set("gate_proj.scales", "BF16", &[3, 64, 2])
        .set("gate_proj.biases", "BF16", &[3, 64, 2]);
    says(&experts.refusal(), &["gate_proj.weight", FILE, "[3, 64, 16]", "2 experts"]);
}

#[test]
fn bits_that_the_shapes_contradict_are_refused() {
    let eight = AFFINE.replace("\"bits\":4", "\"bits\":8").replace(":64", ":32");
    says(&Model::new().config(&eight).refusal(), &[".weight", "[2, ", " at 8 bits"]);
}

#[test]
fn an_expert_unlike_the_others_of_its_layer_is_named() {
    let model =
        Model::per_expert().set("1.up_proj.scales", "F16", &[64, 2]).set("1.up_proj.biases", "F16", &[64, 2]);
    says(&model.refusal(), &["L0E1 differs from E0", "storage", "F16", "Bf16"]);
    let mut colibri = Model::colibri();
    for (name, _, shape) in &mut colibri.tensors {
        if name.contains("experts.1.") && name.ends_with("weight") {
            *shape = vec![2048];
        }
    }
    says(
        &colibri.colibri_refusal(ColibriOptions::default()),
        &["L3E1 differs from E0", "bits: 8", "bits: 4"],
    );
}

#[test]
fn two_sets_of_experts_in_one_layer_are_refused() {
    let draft = "mtp.layers.0.mlp.switch_mlp.gate_proj.weight";
    let refusal = Model::new().with(draft, "U32", &[2, 64, 16]).refusal();
    says(&refusal, &["L0 has two sets", BLOCK, draft]);
}

#[test]
fn numbers_of_experts_and_layers_have_limits() {
    let expert = "model.layers.1.mlp.experts.4000000000.gate_proj.weight";
    says(&Model::new().with(expert, "U32", &[64, 16]).refusal(), &[expert, "4000000000", "below 16384"]);
    let layer = "model.layers.99999.mlp.switch_mlp.gate_proj.weight";
    says(&Model::new().with(layer, "U32", &[64, 16]).refusal(), &[layer, "99999", "below 4096"]);
}

#[test]
fn experts_in_all_have_a_limit() {
    let mut model = Model::new();
    let layer = std::mem::take(&mut model.tensors);
    for number in 0..17 {
        for (name, dtype, shape) in &layer {
            let name = name.replace("layers.0", &format!("layers.{number}"));
            model.tensors.push((name, *dtype, vec![16_384, shape[1], shape[2]]));
        }
    }
    says(&model.refusal(), &["with L16", "278528 experts", "262144 is the limit"]);
}

#[test]
fn a_model_without_routed_experts_is_refused() {
    let mut model = Model::new();
    for (name, ..) in &mut model.tensors {
        *name = name.replace(".switch_mlp", "");
    }
    says(&model.refusal(), &["no tensor of a routed expert", &model.path().display().to_string()]);
}

fn write_index(model: &Model, shard: &str) {
    let (_, data) = header(&model.tensors);
    let map: Vec<String> = model.tensors.iter().map(|(name, ..)| format!("{name:?}: \"{shard}\"")).collect();
    let index = format!(r#"{{"metadata": {{"total_size": {data}}}, "weight_map": {{{}}}}}"#, map.join(","));
    fs::write(model.path().join("model.safetensors.index.json"), index).unwrap();
}

#[test]
fn a_shard_that_is_listed_and_absent_is_named_with_its_index() {
    let model = Model::new();
    write_index(&model, "model-00007-of-00009.safetensors");
    let refusal = model.refusal();
    says(&refusal, &["model-00007-of-00009.safetensors", "model.safetensors.index.json", "absent"]);
}

#[test]
fn a_tensor_that_the_index_promises_and_the_shard_lacks_is_named() {
    let model = Model::new();
    write_index(&model, FILE);
    let model = model.without("up_proj.biases");
    says(&model.refusal(), &["up_proj.biases", FILE, "model.safetensors.index.json"]);
}

#[test]
fn an_index_that_leads_out_of_its_directory_is_refused() {
    for shard in ["../model.safetensors", "/etc/passwd", "a/model.safetensors", "..", ""] {
        let model = Model::new();
        write_index(&model, shard);
        says(&model.refusal(), &["model.safetensors.index.json", &format!("{shard:?}")]);
    }
}

#[test]
fn an_index_that_is_none_is_refused() {
    for json in ["", "[]", "{}", r#"{"weight_map":{"a":7}}"#, r#"{"weight_map":{}}"#] {
        let model = Model::new();
        fs::write(model.path().join("model.safetensors.index.json"), json).unwrap();
        says(&model.refusal(), &["model.safetensors.index.json"]);
    }
    let model = Model::new();
    let twice = r#"{"weight_map":{"a":"model.safetensors","a":"model.safetensors"}}"#;
    fs::write(model.path().join("model.safetensors.index.json"), twice).unwrap();
    says(&model.refusal(), &["tensor a", "twice", "model.safetensors.index.json"]);
}

#[test]
fn a_quantisation_that_no_family_supports_is_refused() {
    for (bits, group, mode) in
        [(7, 64, "affine"), (4, 16, "affine"), (4, 64, "mxfp4"), (8, 16, "nvfp4"), (4, 32, "q4_k")]
    {
        let config = format!(r#"{{"quantization":{{"group_size":{group},"bits":{bits},"mode":"{mode}"}}}}"#);
        let refusal = Model::new().config(&config).refusal();
        let numbers = format!("{mode}, {bits} bits, groups of {group}");
        says(&refusal, &["switch_mlp.down_proj", "config.json", &numbers, "no compute family"]);
    }
}

#[test]
fn unquantised_experts_are_refused() {
    let model = Model::new().set("gate_proj.weight", "BF16", &[2, 64, 128]);
    says(&model.refusal(), &["gate_proj.weight", FILE, "BF16", "no compute family", "quantise"]);
    says(&Model::new().config("{}").refusal(), &["config.json", "no quantization"]);
    let off = format!(r#"{{"quantization":{{"{BLOCK}.down_proj":false}}}}"#);
    says(&Model::new().config(&off).refusal(), &["config.json", "down_proj", "false"]);
}

#[test]
fn biases_of_a_mode_without_them_are_refused() {
    let config = r#"{"quantization":{"group_size":32,"bits":4,"mode":"mxfp4"}}"#;
    let model = Model::new()
        .config(config)
        .set("gate_proj.scales", "U8", &[2, 64, 4])
        .set("up_proj.scales", "U8", &[2, 64, 4])
        .set("down_proj.scales", "U8", &[2, 128, 2]);
    says(&model.refusal(), &["down_proj.biases", FILE, "mxfp4"]);
}

#[test]
fn a_group_that_does_not_divide_the_row_is_refused() {
    let model = Model::new()
        .set("gate_proj.weight", "U32", &[2, 64, 12])
        .set("up_proj.weight", "U32", &[2, 64, 12])
        .set("down_proj.weight", "U32", &[2, 96, 8])
        .set("down_proj.scales", "BF16", &[2, 96, 1])
        .set("down_proj.biases", "BF16", &[2, 96, 1]);
    says(&model.refusal(), &["gate_proj.scales", FILE, "groups of 64", "96 weights"]);
}

#[test]
fn a_row_that_does_not_fill_its_words_is_refused() {
    let model = Model::new().config(&AFFINE.replace("\"bits\":4", "\"bits\":3")).set(
        "down_proj.weight",
        "U32",
        &[2, 128, 4],
    );
    says(&model.refusal(), &["down_proj.weight", FILE, "42 weights at 3 bits", "u32 words"]);
}

#[test]
fn two_group_sizes_that_fit_are_refused_until_one_is_named() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/colibri-q4-g32-or-48");
    says(&refusal(&path), &["L3E0", "[32, 48]", "ColibriOptions::group"]);
    let with =
        |group| Colibri::open_with(&path, &ColibriOptions { group: Some(group), ..Default::default() });
    assert!(with(32).is_ok() && with(48).is_ok());
    says(&text(&with(64).unwrap_err()), &["experts.0.down_proj.weight.qs", "128 scales", "groups of 64"]);
    says(&text(&with(40).unwrap_err()), &["groups of 40", "[16, 32, 48, "]);
}

#[test]
fn a_group_named_for_row_scales_has_no_effect_and_is_refused() {
    let options = ColibriOptions { group: Some(64), ..ColibriOptions::default() };
    says(&Model::colibri().colibri_refusal(options), &["groups of 64", "one scale per row"]);
}

#[test]
fn colibri_bytes_that_no_width_explains_are_refused() {
    let model = Model::colibri().set("0.up_proj.weight", "U8", &[1023]);
    says(
        &model.colibri_refusal(ColibriOptions::default()),
        &["experts.0.up_proj.weight", "out-00000.safetensors", "1023 B", "32 rows of 64", "2048 B", "1024 B"],
    );
    let options = ColibriOptions { hidden: Some(66), ..ColibriOptions::default() };
    says(&Model::colibri().colibri_refusal(options), &["1024 B", "66 rows of 32"]);
}

#[test]
fn colibri_scales_that_no_group_explains_are_refused() {
    let model = Model::colibri().set("0.up_proj.weight.qs", "F32", &[32 * 7]);
    says(
        &model.colibri_refusal(ColibriOptions::default()),
        &["experts.0.up_proj.weight.qs", "out-00000.safetensors", "224 scales", "32 rows of 64"],
    );
}

#[test]
fn grouped_scales_at_eight_bits_are_refused() {
    let model =
        Model::colibri().set("0.up_proj.weight", "U8", &[2048]).set("0.up_proj.weight.qs", "F32", &[64]);
    says(
        &model.colibri_refusal(ColibriOptions::default()),
        &["experts.0.up_proj.weight.qs", "64 scales", "32 rows of 8 bits"],
    );
}

#[test]
fn a_container_without_config_opens_if_both_widths_are_given() {
    let model = Model::colibri();
    model.write("out-00000.safetensors");
    fs::remove_file(model.path().join("config.json")).unwrap();
    let mut options = ColibriOptions { hidden: Some(64), intermediate: Some(32), group: None };
    assert!(Colibri::open_with(model.path(), &options).is_ok());
    options.hidden = None;
    says(&text(&Colibri::open_with(model.path(), &options).unwrap_err()), &["could not read", "config.json"]);
    options.hidden = Some(0);
    says(&text(&Colibri::open_with(model.path(), &options).unwrap_err()), &["hidden_size", "as 0"]);
}

#[test]
fn a_configuration_that_cannot_be_is_refused() {
    let model = Model::new();
    model.write(FILE);
    fs::remove_file(model.path().join("config.json")).unwrap();
    says(&refusal(model.path()), &["could not read", "config.json", "os error 2"]);
    for json in ["", "[1]", "{\"a\":", "not json"] {
        says(&Model::new().config(json).refusal(), &["config.json", "not a JSON object"]);
    }
    for number in ["0", "-4", "4.5", "1e30", "99999999999999999999", "\"4\""] {
        let config = AFFINE.replace("\"bits\":4", &format!("\"bits\":{number}"));
        says(&Model::new().config(&config).refusal(), &["config.json", "quantization.bits = "]);
        let config = format!(r#"{{"hidden_size":{number},"moe_intermediate_size":32}}"#);
        let refusal = Model::colibri().config(&config).colibri_refusal(ColibriOptions::default());
        says(&refusal, &["config.json", "hidden_size = "]);
    }
    let refusal = Model::colibri().config(r#"{"hidden_size":64}"#).colibri_refusal(ColibriOptions::default());
    says(&refusal, &["config.json", "moe_intermediate_size"]);
    let many =
        Model::colibri().config(r#"{"hidden_size":64,"moe_intermediate_size":32,"n_routed_experts":256}"#);
    says(&many.colibri_refusal(ColibriOptions::default()), &["L3 has 2 experts", "says 256"]);
}

#[test]
fn a_configuration_of_another_model_than_the_files_is_refused() {
    let with = |field: &str| AFFINE.replace("128}", &format!("128,{field}}}"));
    let model = |field: &str| Model::new().config(&with(field));
    says(&model(r#""model_type":"llama""#).refusal(), &["config.json", r#""llama""#, "how many experts"]);
    says(
        &model(r#""model_type":"llama","num_experts":2"#).refusal(),
        &["config.json", r#""llama""#, "hidden_act"],
    );
    // The layer at the end of what is counted, and one far behind it.
    for (layer, counted) in [(2, 2), (7, 1)] {
        let mut model = model(&format!(r#""num_hidden_layers":{counted}"#));
        for (name, ..) in &mut model.tensors {
            *name = name.replace("layers.0", &format!("layers.{layer}"));
        }
        says(
            &model.refusal(),
            &[&format!("experts of L{layer}"), "config.json", &format!("{counted} layers")],
        );
        model.config = with(&format!(r#""num_hidden_layers":{layer},"num_nextn_predict_layers":1"#));
        model.write(FILE);
        open_source(model.path()).unwrap();
    }
    let described =
        model(r#""model_type":"new_moe","num_experts":2,"hidden_act":"silu","num_hidden_layers":1"#);
    described.write(FILE);
    open_source(described.path()).unwrap();
}

#[test]
fn an_activation_that_no_kernel_has_is_refused() {
    let gelu = AFFINE.replace("128}", "128,\"hidden_act\":\"gelu\"}");
    says(&Model::new().config(&gelu).refusal(), &["config.json", "hidden_act = \"gelu\"", "silu"]);
}

#[test]
fn a_path_to_nothing_to_an_empty_directory_or_to_some_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    says(&refusal(directory.path()), &["holds neither", "model*.safetensors", "out-*.safetensors"]);
    let missing = directory.path().join("missing");
    says(&refusal(&missing), &["could not open", "missing", "os error 2"]);
    says(&text(&TensorIndex::open(&missing).unwrap_err()), &["could not open", "missing"]);
    let file = directory.path().join("a-file");
    fs::write(&file, "hello, I am no directory").unwrap();
    says(&refusal(&file), &["a-file", "is not a slab"]);
    says(&text(&MlxCheckpoint::open(directory.path()).unwrap_err()), &["no file", "model*.safetensors"]);
    says(&text(&Colibri::open(directory.path()).unwrap_err()), &["no file", "out-*.safetensors"]);
    says(&text(&TensorIndex::open_file(directory.path()).unwrap_err()), &["could not open", "regular file"]);
}

#[test]
fn a_directory_with_both_kinds_of_files_is_refused() {
    let model = Model::new();
    model.write("out-00000.safetensors");
    says(&model.refusal(), &["model*.safetensors", "out-*.safetensors"]);
    assert!(matches!(open_source(model.path()), Err(SourceError::Ambiguous { .. })));
}

#[test]
fn a_file_cut_after_it_was_opened_ends_early_and_is_named() {
    let model = Model::new();
    model.write(FILE);
    let path = model.path().join(FILE);
    let index = TensorIndex::open(model.path()).unwrap();
    let source = open_source(model.path()).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    let name = format!("{BLOCK}.down_proj.weight");
    says(&text(&index.read(&name).unwrap_err()), &[&name, FILE, "8192 B"]);
    let file = index.get(&name).unwrap().file;
    assert_eq!(source.read_at(file, &mut [0; 16], index.get(&name).unwrap().offset_bytes).unwrap(), 0);
    says(&text(&index.read("nothing").unwrap_err()), &["no tensor nothing"]);
}
