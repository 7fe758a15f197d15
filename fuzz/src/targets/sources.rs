//! Checkpoints and containers.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use streamed_experts::{ExpertSource, open_source};

use super::{check_source, folder};
use crate::{fixture, memory::at_most, number_first, read};

/// Larger files are cut to this: they are sparse, but a file system has its limits.
const LONGEST_FILE_BYTES: u64 = 1 << 40;

/// No header may be longer (the format's own limit).
const LONGEST_HEADER_BYTES: u64 = 100_000_000;

/// The headers, and lists of what they name.
fn limit_bytes(input_bytes: usize) -> usize {
    (1 << 20) + 64 * input_bytes
}

fn open(directory: &Path, input_bytes: usize) {
    open_with_header(directory, input_bytes, 0);
}

/// `header_bytes`: what a file of the input says, if it is as long as that.
fn open_with_header(directory: &Path, input_bytes: usize, header_bytes: usize) {
    let opened = at_most(limit_bytes(input_bytes) + header_bytes, || open_source(directory));
    match opened {
        Ok(source) => check_source(&*source as &dyn ExpertSource),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A folder with these files of a fixture.
fn prepared(name: &str, fixture_name: &str, files: &[&str]) -> std::path::PathBuf {
    let directory = folder().join(name);
    if !directory.exists() {
        fs::create_dir(&directory).expect("a folder");
        for file in files {
            fs::copy(fixture(fixture_name).join(file), directory.join(file)).expect("a fixture's file");
        }
    }
    directory
}

/// The input's first eight bytes are the file's length, the rest its beginning. What may be read as its header.
fn write_beginning(path: &Path, data: &[u8]) -> usize {
    let (file_bytes, beginning) = number_first(data);
    let mut file = File::create(path).expect("a file");
    file.write_all(beginning).expect("room");
    let file_bytes = file_bytes.min(LONGEST_FILE_BYTES);
    file.set_len(file_bytes).expect("a sparse file");
    let (header_bytes, _) = number_first(beginning);
    if header_bytes <= file_bytes.min(LONGEST_HEADER_BYTES) { header_bytes as usize } else { 0 }
}

/// Length and header of a safetensors file.
fn beginning(path: impl AsRef<Path>) -> Vec<u8> {
    let bytes = read(path);
    let (header_bytes, _) = number_first(&bytes);
    let mut seed = (bytes.len() as u64).to_le_bytes().to_vec();
    seed.extend(&bytes[..8 + header_bytes as usize]);
    seed
}

/// A checkpoint's only shard.
pub fn checkpoint(data: &[u8]) {
    let directory = prepared("checkpoint", "qwen3_moe-affine4-g64-bf16", &["config.json"]);
    let header_bytes = write_beginning(&directory.join("model.safetensors"), data);
    open_with_header(&directory, data.len(), header_bytes);
}

pub(crate) fn checkpoint_seeds() -> Vec<Vec<u8>> {
    ["qwen3_moe-affine4-g64-bf16", "qwen3_moe-per-expert", "gpt_oss-mxfp4"]
        .map(|name| beginning(fixture(name).join("model.safetensors")))
        .to_vec()
}

/// The list of a checkpoint's shards.
pub fn shard_index(data: &[u8]) {
    let shards = ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let directory = prepared("shard_index", "qwen3_moe-sharded", &shards);
    fs::write(directory.join("model.safetensors.index.json"), data).expect("room");
    open(&directory, data.len() + 64 * 1024);
}

pub(crate) fn shard_index_seeds() -> Vec<Vec<u8>> {
    vec![read(fixture("qwen3_moe-sharded").join("model.safetensors.index.json"))]
}

/// A checkpoint's configuration.
pub fn config(data: &[u8]) {
    let directory = prepared("config", "qwen3_moe-affine4-g64-bf16", &["model.safetensors"]);
    fs::write(directory.join("config.json"), data).expect("room");
    open(&directory, data.len() + 64 * 1024);
}

pub(crate) fn config_seeds() -> Vec<Vec<u8>> {
    let checkpoints = [
        "qwen3_moe-affine4-g64-bf16",
        "qwen3_moe-overrides",
        "gpt_oss-mxfp4",
        "deepseek_v3-nvfp4",
        "colibri-q4-row",
    ];
    checkpoints.map(|name| read(fixture(name).join("config.json"))).to_vec()
}

/// A container's first file, beside its second.
pub fn colibri(data: &[u8]) {
    let directory = prepared("colibri", "colibri-q4-row", &["config.json", "out-00001.safetensors"]);
    let header_bytes = write_beginning(&directory.join("out-00000.safetensors"), data);
    open_with_header(&directory, data.len() + 64 * 1024, header_bytes);
}

pub(crate) fn colibri_seeds() -> Vec<Vec<u8>> {
    ["colibri-q4-row", "colibri-q4-g64", "colibri-q8-row"]
        .map(|name| beginning(fixture(name).join("out-00000.safetensors")))
        .to_vec()
}
