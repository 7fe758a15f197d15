//! GLM-5.2 at its real size, without its data. If this fails, a token costs more reads than it should, or opening the
//! model reads more than its headers.

mod shards;

use std::path::Path;

use shards::{Declared, write_sparse};
use streamed_experts::{
    Colibri, ExpertId, ExpertKey, ExpertSource, LayerId, Part, Projection, Quantisation, Segment, SparseLayer,
};

const HIDDEN: u64 = 6144;
const INTERMEDIATE: u64 = 2048;
const EXPERTS: u32 = 256;
const FIRST_LAYER: u32 = 3;
const LAST_LAYER: u32 = 77;
const DRAFT_LAYER: u32 = 78;
/// Main shards: one expert straddles each border.
const SHARDS: usize = 87;

fn weight(key: ExpertKey, projection: &str, bits: u64) -> Declared {
    let ExpertKey { layer, expert } = key;
    let name = format!("model.layers.{}.mlp.experts.{}.{projection}_proj.weight", layer.0, expert.0);
    (name, "U8", vec![HIDDEN * INTERMEDIATE * bits / 8])
}

fn scales(key: ExpertKey, projection: &str) -> Declared {
    let (name, ..) = weight(key, projection, 8);
    (name + ".qs", "F32", vec![if projection == "down" { HIDDEN } else { INTERMEDIATE }])
}

fn main_keys() -> impl Iterator<Item = ExpertKey> {
    (FIRST_LAYER..=LAST_LAYER)
        .flat_map(|layer| (0..EXPERTS).map(move |expert| ExpertKey::new(LayerId(layer), ExpertId(expert))))
}

/// Writes one shard: scales first, as the safetensors package sorts them, then weights in the order given.
fn write_shard(path: &Path, mut scales: Vec<Declared>, weights: Vec<Declared>) -> u64 {
    scales.extend(weights);
    write_sparse(path, &scales)
}

/// Main shards in which the weights of each expert follow each other in slot order, but for one expert at each border,
/// whose gate lies in the earlier shard. Returns the bytes of all headers and the straddling experts.
fn write_main(directory: &Path) -> (u64, Vec<ExpertKey>) {
    let keys: Vec<_> = main_keys().collect();
    let (mut header_bytes, mut straddling) = (0, Vec::new());
    let (mut early, mut late) = (Vec::new(), Vec::new());
    for shard in 0..SHARDS {
        let range = keys.len() * shard / SHARDS..keys.len() * (shard + 1) / SHARDS;
        let mut weights = std::mem::take(&mut late);
        let mut qs = std::mem::take(&mut early);
        for &key in &keys[range.clone()] {
            qs.extend(["down", "gate", "up"].map(|projection| scales(key, projection)));
            if key == keys[range.end - 1] && shard + 1 < SHARDS {
                weights.push(weight(key, "gate", 4));
                late.extend(["down", "up"].map(|projection| weight(key, projection, 4)));
                early.extend(qs.pop());
                straddling.push(key);
            } else {
                weights.extend(["down", "gate", "up"].map(|projection| weight(key, projection, 4)));
            }
        }
        header_bytes += write_shard(&directory.join(format!("out-{shard:05}.safetensors")), qs, weights);
    }
    (header_bytes, straddling)
}

fn write_draft(directory: &Path) -> u64 {
    let keys = (0..EXPERTS).map(|expert| ExpertKey::new(LayerId(DRAFT_LAYER), ExpertId(expert)));
    let (mut qs, mut weights) = (Vec::new(), Vec::new());
    for key in keys {
        for projection in ["down", "gate", "up"] {
            qs.push(scales(key, projection));
            weights.push(weight(key, projection, 8));
        }
    }
    write_shard(&directory.join("out-mtp-00000.safetensors"), qs, weights)
}

fn starts(source: &Colibri, layer: u32, part: Part) -> [u64; 3] {
    let layer = source.layers().iter().find(|l| l.layer == LayerId(layer)).unwrap();
    let layout = &source.tiers()[layer.tier.index()].layout;
    Projection::ALL.map(|projection| layout.range(projection, part).unwrap().start)
}

#[test]
fn the_model_opens_from_its_headers_with_four_reads_for_an_expert_and_six_where_it_straddles_shards() {
    let directory = tempfile::tempdir().unwrap();
    let (main_bytes, straddling) = write_main(directory.path());
    let header_bytes = main_bytes + write_draft(directory.path());
    std::fs::write(directory.path().join("out-idx-00000.safetensors"), "never opened").unwrap();
    let config = r#"{"hidden_size":6144,"moe_intermediate_size":2048,"n_routed_experts":256,"hidden_act":"silu",
        "quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}"#;
    std::fs::write(directory.path().join("config.json"), config).unwrap();

    let source = Colibri::open(directory.path()).unwrap();
    assert_eq!(source.tensors().header_bytes(), header_bytes);
    assert!(source.tensors().is_empty(), "every tensor is an expert's");
    check_tiers(&source);
    check_reads(&source, &straddling);
}

fn check_tiers(source: &Colibri) {
    let layers: Vec<u32> = source.layers().iter().map(|l| l.layer.0).collect();
    assert_eq!(layers, (FIRST_LAYER..=DRAFT_LAYER).collect::<Vec<_>>());
    assert!(source.layers().iter().all(|&SparseLayer { experts, .. }| experts == EXPERTS));
    let storage: Vec<_> = source.tiers().iter().map(|tier| tier.geometry.quantisation[0]).collect();
    assert_eq!(storage, [4, 8].map(|bits| Quantisation::Signed { bits, group: None }));
    let slots: Vec<_> = source.tiers().iter().map(|tier| tier.layout.slot_bytes()).collect();
    assert_eq!(slots, [18_939_904, 37_814_272]);
    assert_eq!(source.tiers()[0].layout.record_bytes(), 18_915_328);
    assert_eq!(starts(source, 3, Part::Weight), [0, 6_291_456, 12_582_912]);
    assert_eq!(starts(source, 3, Part::Scales), [18_874_368, 18_907_136, 18_923_520]);
    assert_eq!(starts(source, DRAFT_LAYER, Part::Weight), [0, 12_582_912, 25_165_824]);
    assert_eq!(starts(source, DRAFT_LAYER, Part::Scales), [37_748_736, 37_781_504, 37_797_888]);
}

fn check_reads(source: &Colibri, straddling: &[ExpertKey]) {
    let reads = |key| source.segments(key).unwrap().len();
    let with = |n| main_keys().filter(|&key| reads(key) == n).count();
    assert_eq!((with(4), with(6)), (19_114, 86));
    assert!(straddling.iter().all(|&key| reads(key) == 6));
    assert!((0..EXPERTS).all(|e| reads(ExpertKey::new(LayerId(DRAFT_LAYER), ExpertId(e))) == 4));

    let mut segments = source.segments(ExpertKey::new(LayerId(3), ExpertId(1))).unwrap().to_vec();
    segments.sort_by_key(|s| s.slot_offset_bytes);
    let slot: Vec<_> = segments
        .iter()
        .map(|&Segment { slot_offset_bytes, len_bytes, .. }| (slot_offset_bytes, len_bytes))
        .collect();
    assert_eq!(slot, [(0, 18_874_368), (18_874_368, 24_576), (18_907_136, 8_192), (18_923_520, 8_192)]);
}
