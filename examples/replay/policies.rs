//! What is compared, on what.

use streamed_experts::{CachePolicy, Echo, Frequency, Lru, PolicyScope, S3Fifo};

pub type Factory = fn(&PolicyScope<'_>) -> Box<dyn CachePolicy>;

pub const DEFAULT: &str = "echo";

pub const POLICIES: [(&str, Factory); 5] = [
    ("LRU", Lru::boxed),
    ("LFU, ghost counts", Frequency::boxed),
    ("ghosts, halved at 32", Frequency::boxed_decayed),
    ("S3-FIFO", S3Fifo::boxed),
    (DEFAULT, Echo::boxed),
];

/// The traces that come with the examples.
pub const TRACES: [(&str, &str); 3] = [
    ("OLMoE", include_str!("../data/olmoe-299.jsonl")),
    ("Kimi-Linear", include_str!("../data/kimi-linear-300.jsonl")),
    ("Qwen3-30B", include_str!("../data/qwen3-30b-128.jsonl")),
];

/// Traces and slots per layer that the figures are means over.
pub const CASES: [(usize, u32); 6] = [(0, 16), (0, 32), (1, 32), (1, 64), (2, 16), (2, 32)];
