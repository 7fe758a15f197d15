//! If these fail, experts are found at the wrong bytes, or in the wrong shape: the model speaks nonsense.

mod shards;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use streamed_experts::{
    Activation, Colibri, ColibriOptions, ExpertGeometry, ExpertId, ExpertKey, ExpertSource, FloatType,
    LayerId, MlxCheckpoint, Part, Projection, Quantisation, Segment, TensorIndex, Tier, open_source,
};

/// How a fixture's tensors are named and what is in them.
struct Fixture {
    name: &'static str,
    block: &'static str,
    layout: Layout,
    /// Hidden, intermediate, experts.
    shape: (u32, u32, u32),
    layers: &'static [u32],
    quantisation: [Quantisation; 3],
}

#[derive(Clone, Copy, PartialEq)]
enum Layout {
    Stacked,
    PerExpert,
    Mixtral,
    Colibri,
}

use FloatType::{Bf16, F16, F32};
use Layout::{Mixtral, PerExpert, Stacked};

const fn affine(bits: u32, group: u32, scales: FloatType) -> Quantisation {
    Quantisation::Affine { bits, group, scales }
}

const fn signed(bits: u32, group: Option<u32>) -> Quantisation {
    Quantisation::Signed { bits, group }
}

const fn checkpoint(
    name: &'static str,
    shape: (u32, u32, u32),
    layers: &'static [u32],
    quantisation: Quantisation,
) -> Fixture {
    Fixture { name, block: "mlp.switch_mlp", layout: Stacked, shape, layers, quantisation: [quantisation; 3] }
}

const fn at(block: &'static str, layout: Layout, fixture: Fixture) -> Fixture {
    Fixture { block, layout, ..fixture }
}

const fn colibri(
    name: &'static str,
    shape: (u32, u32, u32),
    layers: &'static [u32],
    quantisation: Quantisation,
) -> Fixture {
    at("mlp.experts", Layout::Colibri, checkpoint(name, shape, layers, quantisation))
}

fn fixtures() -> Vec<Fixture> {
    use Quantisation::{Mxfp4, Mxfp8, Nvfp4};
    let four = affine(4, 64, Bf16);
    let (small, four_experts) = ((128, 64, 8), (128, 64, 4));
    let mixtral = |fixture| at("block_sparse_moe.switch_mlp", Stacked, fixture);
    let gpt_oss = |fixture| at("mlp.experts", Stacked, fixture);
    let mut overrides = checkpoint("qwen3_moe-overrides", four_experts, &[0], four);
    overrides.quantisation[Projection::Down as usize] = affine(6, 32, Bf16);
    vec![
        checkpoint("qwen3_moe-affine4-g64-bf16", small, &[0, 1], four),
        checkpoint("olmoe-affine4-g64-f16", small, &[0], affine(4, 64, F16)),
        mixtral(checkpoint("mixtral-affine4-g64-bf16", (128, 64, 6), &[0], four)),
        checkpoint("glm4_moe-affine4-g64-bf16", small, &[1], four),
        checkpoint("deepseek_v3-affine4-g64-bf16", small, &[1], four),
        gpt_oss(checkpoint("gpt_oss-affine4-g64-bf16", four_experts, &[0, 1], four)),
        checkpoint("qwen3_moe-affine2-g64-f32", four_experts, &[0], affine(2, 64, F32)),
        checkpoint("qwen3_moe-affine3-g64-bf16", four_experts, &[0], affine(3, 64, Bf16)),
        checkpoint("qwen3_moe-affine4-g32-f32", four_experts, &[0], affine(4, 32, F32)),
        checkpoint("qwen3_moe-affine4-g128-bf16", (128, 128, 4), &[0], affine(4, 128, Bf16)),
        checkpoint("qwen3_moe-affine4-wide-bf16", (256, 128, 3), &[0], four),
        checkpoint("qwen3_moe-affine5-g32-bf16", four_experts, &[0], affine(5, 32, Bf16)),
        checkpoint("qwen3_moe-affine6-g64-f16", four_experts, &[0], affine(6, 64, F16)),
        checkpoint("qwen3_moe-affine8-g64-f16", four_experts, &[0], affine(8, 64, F16)),
        mixtral(checkpoint("mixtral-affine8-g32-bf16", four_experts, &[0], affine(8, 32, Bf16))),
        checkpoint("qwen3_moe-mxfp4", four_experts, &[0], Mxfp4),
        checkpoint("qwen3_moe-nvfp4", four_experts, &[0], Nvfp4),
        checkpoint("qwen3_moe-mxfp8", four_experts, &[0], Mxfp8),
        checkpoint("deepseek_v3-nvfp4", small, &[1], Nvfp4),
        gpt_oss(checkpoint("gpt_oss-mxfp4", four_experts, &[0, 1], Mxfp4)),
        overrides,
        gpt_oss(checkpoint("gpt_oss-mxfp4-clamped", four_experts, &[0, 1], Mxfp4)),
        checkpoint("qwen3_moe-whole", four_experts, &[0], four),
        checkpoint("qwen3_moe-sharded", four_experts, &[0], four),
        at("mlp.experts", PerExpert, checkpoint("qwen3_moe-per-expert", four_experts, &[0], four)),
        at("block_sparse_moe.experts", Mixtral, checkpoint("mixtral-per-expert", (128, 64, 6), &[0], four)),
        colibri("colibri-q4-row", (64, 32, 6), &[3, 4], signed(4, None)),
        colibri("colibri-q4-odd", (65, 33, 5), &[3], signed(4, None)),
        colibri("colibri-q4-g16", (64, 32, 5), &[3], signed(4, Some(16))),
        colibri("colibri-q4-g32", (128, 128, 3), &[3], signed(4, Some(32))),
        colibri("colibri-q4-g32-or-48", (64, 64, 3), &[3], signed(4, Some(32))),
        colibri("colibri-q4-g64", (192, 192, 2), &[3], signed(4, Some(64))),
        colibri("colibri-q8-row", (64, 32, 5), &[3], signed(8, None)),
        colibri("colibri-q4-mtp-q8", (64, 32, 5), &[3, 4, 5], signed(4, None)),
    ]
}

impl Fixture {
    fn path(&self) -> PathBuf {
        fixture_path(self.name)
    }

    fn open(&self) -> Box<dyn ExpertSource> {
        if self.name == "colibri-q4-g32-or-48" {
            let options = ColibriOptions { group: Some(32), ..ColibriOptions::default() };
            return Box::new(Colibri::open_with(self.path(), &options).unwrap());
        }
        open_source(self.path()).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    fn geometry(&self, layer: u32) -> ExpertGeometry {
        let (hidden, intermediate, _) = self.shape;
        let gpt_oss = self.name.starts_with("gpt_oss");
        let draft = self.name == "colibri-q4-mtp-q8" && layer == 5;
        ExpertGeometry {
            hidden,
            intermediate,
            quantisation: if draft { [signed(8, None); 3] } else { self.quantisation },
            bias: gpt_oss.then_some(Bf16),
            activation: if gpt_oss {
                Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 }
            } else {
                Activation::SwiGlu
            },
        }
    }

    /// The bytes of one component, from the tensor of that name.
    fn component(&self, index: &TensorIndex, key: ExpertKey, projection: Projection, part: Part) -> Vec<u8> {
        let projection = match (self.layout, projection) {
            (Mixtral, Projection::Gate) => "w1",
            (Mixtral, Projection::Down) => "w2",
            (Mixtral, Projection::Up) => "w3",
            (_, Projection::Gate) => "gate_proj",
            (_, Projection::Down) => "down_proj",
            (_, Projection::Up) => "up_proj",
        };
        let part = match (self.layout, part) {
            (_, Part::Weight) => "weight",
            (Layout::Colibri, _) => "weight.qs",
            (_, Part::Scales) => "scales",
            (_, Part::Biases) => "biases",
            (_, Part::Bias) => "bias",
        };
        let block = format!("model.layers.{}.{}", key.layer.0, self.block);
        if self.layout != Stacked {
            return index.read(&format!("{block}.{}.{projection}.{part}", key.expert.0)).unwrap();
        }
        let whole = index.read(&format!("{block}.{projection}.{part}")).unwrap();
        let len = whole.len() / self.shape.2 as usize;
        whole[key.expert.index() * len..][..len].to_vec()
    }

    /// The slot as it should be: each tensor's bytes where the layout puts them, zeros between.
    fn expected_slot(&self, index: &TensorIndex, tier: &Tier, key: ExpertKey) -> Vec<u8> {
        let mut slot = vec![0; usize::try_from(tier.layout.slot_bytes()).unwrap()];
        for projection in Projection::ALL {
            for part in Part::ALL {
                let Some(range) = tier.layout.range(projection, part) else { continue };
                let bytes = self.component(index, key, projection, part);
                assert_eq!(bytes.len() as u64, range.end - range.start, "{} {key}", self.name);
                slot[usize::try_from(range.start).unwrap()..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        slot
    }
}

fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn tier(source: &dyn ExpertSource, layer: u32) -> &Tier {
    let layer = source.layers().iter().find(|l| l.layer == LayerId(layer)).unwrap();
    &source.tiers()[layer.tier.index()]
}

fn key(layer: u32, expert: u32) -> ExpertKey {
    ExpertKey::new(LayerId(layer), ExpertId(expert))
}

/// Reads an expert as a reader thread would: segment by segment, repeating short reads.
fn read_slot(source: &dyn ExpertSource, tier: &Tier, key: ExpertKey) -> Vec<u8> {
    let mut slot = vec![0; usize::try_from(tier.layout.slot_bytes()).unwrap()];
    for segment in source.segments(key).unwrap() {
        let start = usize::try_from(segment.slot_offset_bytes).unwrap();
        let mut rest = &mut slot[start..][..usize::try_from(segment.len_bytes).unwrap()];
        let mut offset = segment.file_offset_bytes;
        while !rest.is_empty() {
            let read = source.read_at(segment.file, rest, offset).unwrap();
            assert!(read > 0, "{} ended early", source.path(segment.file).display());
            rest = &mut rest[read..];
            offset += read as u64;
        }
    }
    slot
}

#[test]
fn every_fixture_is_in_the_table() {
    let listed: BTreeSet<String> = fixtures().iter().map(|f| f.name.to_owned()).collect();
    let found: BTreeSet<String> = std::fs::read_dir(fixture_path(""))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("config.json").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        // Whole models have their own test.
        .filter(|name| !name.starts_with("whole-"))
        .collect();
    assert_eq!(listed, found);
}

#[test]
fn every_fixture_opens_with_the_layers_experts_and_geometry_it_was_made_with() {
    for fixture in fixtures() {
        let source = fixture.open();
        let layers: Vec<u32> = source.layers().iter().map(|l| l.layer.0).collect();
        assert_eq!(layers, fixture.layers, "{}", fixture.name);
        assert!(source.layers().iter().all(|l| l.experts == fixture.shape.2), "{}", fixture.name);
        for &layer in fixture.layers {
            assert_eq!(tier(&*source, layer).geometry, fixture.geometry(layer), "{} L{layer}", fixture.name);
        }
        let tiers = if fixture.name == "colibri-q4-mtp-q8" { 2 } else { 1 };
        assert_eq!(source.tiers().len(), tiers, "{}", fixture.name);
    }
}

#[test]
fn the_segments_of_every_expert_bring_exactly_its_tensors_to_their_places() {
    for fixture in fixtures() {
        let source = fixture.open();
        let index = TensorIndex::open(fixture.path()).unwrap();
        for &layer in fixture.layers {
            let tier = tier(&*source, layer);
            for expert in 0..fixture.shape.2 {
                let key = key(layer, expert);
                assert!(
                    read_slot(&*source, tier, key) == fixture.expected_slot(&index, tier, key),
                    "{} {key}",
                    fixture.name
                );
            }
        }
    }
}

#[test]
fn segments_go_forwards_in_the_file_and_do_not_overlap_in_the_slot() {
    for fixture in fixtures() {
        let source = fixture.open();
        for layer in source.layers() {
            let record_bytes = source.tiers()[layer.tier.index()].layout.record_bytes();
            for expert in 0..layer.experts {
                let segments = source.segments(ExpertKey::new(layer.layer, ExpertId(expert))).unwrap();
                let at = |s: &Segment| (s.file, s.file_offset_bytes);
                assert!(segments.windows(2).all(|pair| at(&pair[0]) < at(&pair[1])));
                let mut in_slot = segments.to_vec();
                in_slot.sort_by_key(|s| s.slot_offset_bytes);
                let apart = |pair: &[Segment]| {
                    pair[0].slot_offset_bytes + pair[0].len_bytes <= pair[1].slot_offset_bytes
                };
                assert!(in_slot.windows(2).all(apart), "{} E{expert}", fixture.name);
                assert_eq!(segments.iter().map(|s| s.len_bytes).sum::<u64>(), record_bytes);
            }
        }
    }
}

#[test]
fn there_is_nothing_beyond_the_last_expert_or_in_a_dense_layer() {
    let source = open_source(fixture_path("glm4_moe-affine4-g64-bf16")).unwrap();
    assert!(source.segments(key(1, 7)).is_some());
    assert!(source.segments(key(1, 8)).is_none());
    assert!(source.segments(key(0, 0)).is_none());
    assert!(source.segments(key(u32::MAX, u32::MAX)).is_none());
}

#[test]
fn a_read_at_the_end_of_a_file_is_empty() {
    let source = open_source(fixture_path("qwen3_moe-sharded")).unwrap();
    let file = source.segments(key(0, 0)).unwrap()[0].file;
    let len = std::fs::metadata(source.path(file)).unwrap().len();
    assert_eq!(source.read_at(file, &mut [0; 4], len).unwrap(), 0);
    assert_eq!(source.read_at(file, &mut [0; 4], len - 3).unwrap(), 3);
}

#[test]
fn a_source_keeps_the_tensors_that_are_no_experts() {
    let checkpoint = MlxCheckpoint::open(fixture_path("glm4_moe-affine4-g64-bf16")).unwrap();
    let names: Vec<&str> = checkpoint.tensors().iter().map(|(name, _)| name).collect();
    assert!(names.contains(&"model.layers.0.mlp.gate_proj.weight"));
    assert!(names.contains(&"model.layers.1.mlp.shared_experts.down_proj.scales"));
    assert!(!names.iter().any(|name| name.contains("switch_mlp")));
    let router = checkpoint.tensors().read("model.layers.1.mlp.gate.weight").unwrap();
    assert_eq!(router.len(), 8 * 128 * 2);
}

#[test]
fn a_single_file_can_be_opened_for_its_tensors() {
    let answers = TensorIndex::open(fixture_path("colibri-q4-row/answers.safetensors")).unwrap();
    let tensor = answers.get("3.out").unwrap();
    assert_eq!(tensor.shape, [5, 64]);
    assert_eq!(answers.read("3.out").unwrap().len(), 5 * 64 * 8);
    assert_eq!(answers.files(), 1);
}

/// Writes a checkpoint of one layer, with its headers and without its data.
fn write_layer(directory: &Path, block: &str, config: &str, parts: &[(&str, &'static str, Vec<u64>)]) {
    let tensors: Vec<_> = parts
        .iter()
        .map(|(name, dtype, shape)| (format!("model.layers.9.{block}.{name}"), *dtype, shape.clone()))
        .collect();
    shards::write_sparse(&directory.join("model-00001-of-00001.safetensors"), &tensors);
    std::fs::write(directory.join("config.json"), config).unwrap();
}

#[test]
fn qwen3_30b_opens_at_its_real_size() {
    let directory = tempfile::tempdir().unwrap();
    let mut parts = Vec::new();
    for (names, rows, columns) in [
        (["gate_proj.weight", "gate_proj.scales", "gate_proj.biases"], 768, 2048),
        (["up_proj.weight", "up_proj.scales", "up_proj.biases"], 768, 2048),
        (["down_proj.weight", "down_proj.scales", "down_proj.biases"], 2048, 768),
    ] {
        parts.push((names[0], "U32", vec![128, rows, columns / 8]));
        parts.push((names[1], "BF16", vec![128, rows, columns / 64]));
        parts.push((names[2], "BF16", vec![128, rows, columns / 64]));
    }
    let config = r#"{"quantization":{"group_size":64,"bits":4},"num_experts":128}"#;
    write_layer(directory.path(), "mlp.switch_mlp", config, &parts);
    let source = open_source(directory.path()).unwrap();
    assert_eq!(source.tiers()[0].layout.record_bytes(), 2_654_208);
    assert_eq!(source.segments(key(9, 127)).unwrap().len(), 9);
}

#[test]
fn gpt_oss_120b_opens_at_its_real_size() {
    let directory = tempfile::tempdir().unwrap();
    let mut parts = Vec::new();
    for names in [
        ["gate_proj.weight", "gate_proj.scales", "gate_proj.bias"],
        ["up_proj.weight", "up_proj.scales", "up_proj.bias"],
        ["down_proj.weight", "down_proj.scales", "down_proj.bias"],
    ] {
        parts.push((names[0], "U32", vec![128, 2880, 360]));
        parts.push((names[1], "U8", vec![128, 2880, 90]));
        parts.push((names[2], "BF16", vec![128, 2880]));
    }
    let config = r#"{"model_type":"gpt_oss","swiglu_limit":7.0,"hidden_act":"silu","num_local_experts":128,
        "quantization":{"group_size":32,"bits":4,"mode":"mxfp4"}}"#;
    write_layer(directory.path(), "mlp.experts", config, &parts);
    let source = open_source(directory.path()).unwrap();
    assert_eq!(source.tiers()[0].geometry.quantisation, [Quantisation::Mxfp4; 3]);
    let expert_bytes = 3 * (2880 * 360 * 4 + 2880 * 90 + 2880 * 2);
    assert_eq!(source.tiers()[0].layout.record_bytes(), expert_bytes);
    assert_eq!(source.segments(key(9, 127)).unwrap().len(), 9);
}
