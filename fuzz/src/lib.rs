//! Hostile input for every reader of `streamed-experts`; see `README.md`.

mod memory;
mod targets;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub use targets::{
    checksums::checksums,
    ledger::ledger,
    plans::plans,
    slab::slab,
    sources::{checkpoint, colibri, config, shard_index},
    traces::traces,
};

/// A target: its name, what it does, and inputs to begin with.
#[derive(Clone, Copy)]
pub struct Target {
    /// As cargo-fuzz calls it.
    pub name: &'static str,
    /// Panics if a reader misbehaves.
    pub run: fn(&[u8]),
    /// Inputs that a reader takes, or nearly.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub const TARGETS: [Target; 9] = [
    Target { name: "checkpoint", run: checkpoint, seeds: targets::sources::checkpoint_seeds },
    Target { name: "shard_index", run: shard_index, seeds: targets::sources::shard_index_seeds },
    Target { name: "config", run: config, seeds: targets::sources::config_seeds },
    Target { name: "colibri", run: colibri, seeds: targets::sources::colibri_seeds },
    Target { name: "slab", run: slab, seeds: targets::slab::seeds },
    Target { name: "checksums", run: checksums, seeds: targets::checksums::seeds },
    Target { name: "ledger", run: ledger, seeds: targets::ledger::seeds },
    Target { name: "traces", run: traces, seeds: targets::traces::seeds },
    Target { name: "plans", run: plans, seeds: targets::plans::seeds },
];

fn project() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn fixture(name: &str) -> PathBuf {
    project().join("tests/fixtures").join(name)
}

fn read(path: impl AsRef<Path>) -> Vec<u8> {
    let path = path.as_ref();
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The first eight bytes as a number, and the rest; zeros where there are fewer.
fn number_first(data: &[u8]) -> (u64, &[u8]) {
    let (number, rest) = data.split_at(data.len().min(8));
    let mut bytes = [0; 8];
    bytes[..number.len()].copy_from_slice(number);
    (u64::from_le_bytes(bytes), rest)
}
