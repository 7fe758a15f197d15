//! What is said of the runs.

use std::sync::Arc;

use streamed_experts::{ExpertSource, MemoryInfo};

use crate::{
    common::{
        Failure, budget, bytes,
        first_layers::FirstLayers,
        memory::{self, kept},
    },
    run::Outcome,
};

/// The streamed run's figures, before anything else can go wrong; whether it stayed within its memory.
pub fn streamed(streamed: &Outcome, raw_gbps: f64, peak_bytes: u64, budget_bytes: u64) -> bool {
    let overhead_bytes = memory::process_bytes();
    let (held, verdict) =
        memory::verdict(peak_bytes, budget_bytes, overhead_bytes, "code, libraries and activations");
    println!("\nhit rate         {:.1} %", 100.0 * streamed.hit_rate);
    println!("read             {} in {} reads", bytes::show(streamed.bytes), streamed.reads);
    println!(
        "rate             {:.2} GB/s while any read was under way; one reader, one file, from its start: {raw_gbps:.2} GB/s",
        streamed.read_gbps
    );
    println!("speed            {:.1} tokens/s", streamed.tokens_per_s);
    println!("memory           {verdict}");
    for (name, value) in [
        ("hit_rate", streamed.hit_rate),
        ("read_bytes", streamed.bytes as f64),
        ("read_gbps", streamed.read_gbps),
        ("raw_gbps", raw_gbps),
        ("peak_bytes", peak_bytes as f64),
        ("budget_bytes", budget_bytes as f64),
        ("overhead_bytes", overhead_bytes as f64),
    ] {
        println!("figure {name} {value}");
    }
    held
}

/// The comparison; whether both runs gave the same bits.
pub fn comparison(streamed: &Outcome, resident: &Outcome) -> bool {
    let equal = streamed.checksum == resident.checksum;
    println!(
        "\nall resident     {:.1} tokens/s, {:.1} % hits (each expert is read once)",
        resident.tokens_per_s,
        100.0 * resident.hit_rate
    );
    println!("output checksum  streamed {:016x}, resident {:016x}", streamed.checksum, resident.checksum);
    println!("                 where an expert lives does not change one bit: {}", kept(equal));
    println!("figure output_equal {}", u8::from(equal));
    equal
}

/// Why nothing was compared, and what can be.
pub fn not_compared(source: &Arc<dyn ExpertSource>, working: u32, reason: &Failure) {
    let (layers, everything) = (source.layers().len(), budget::everything(&**source, working));
    println!(
        "\noutput           not compared: {layers} layers with every expert resident take {}",
        bytes::show(everything)
    );
    println!("                 ({reason})");
    if let Some(layers) = layers_with_room(source, working) {
        println!("                 `--layers {layers}` runs and compares the first {layers}");
    }
}

/// How many layers can be resident in half of the machine's memory.
fn layers_with_room(source: &Arc<dyn ExpertSource>, working: u32) -> Option<usize> {
    let room = MemoryInfo::measure().total_bytes()? / 2;
    let fits =
        |&layers: &usize| budget::everything(&FirstLayers::new(Arc::clone(source), layers), working) <= room;
    (1..source.layers().len()).rev().find(fits)
}
