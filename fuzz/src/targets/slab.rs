//! Slabs.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use streamed_experts::{PackOptions, SlabSource, open_source, pack};
use xxhash_rust::xxh3::xxh3_64;

use super::{check_source, folder};
use crate::{fixture, memory::at_most, number_first, read};

const PAGE: u64 = 16_384;
/// Larger files are cut to this.
const LONGEST_FILE_BYTES: u64 = 1 << 40;

/// The first byte says what follows: 0, the file as it is, its length first; otherwise the number of records, the bytes of
/// the records, and the manifest, under a head whose checksums fit.
pub fn slab(data: &[u8]) {
    let path = folder().join("model.slab");
    let Some((&kind, rest)) = data.split_first() else { return };
    let file = File::create(&path).expect("a file");
    let (first, rest) = number_first(rest);
    if kind == 0 {
        file.write_all_at(rest, 0).expect("room");
        file.set_len(first.min(LONGEST_FILE_BYTES)).expect("a sparse file");
    } else {
        let records = first % (1 << 18);
        let (record_bytes, manifest) = number_first(rest);
        write_fitting(&file, records, record_bytes % LONGEST_FILE_BYTES, manifest);
    }
    let opened = at_most((8 << 20) + 64 * data.len(), || SlabSource::open(&path));
    match opened {
        Ok(source) => check_source(&source),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn write_fitting(file: &File, records: u64, record_bytes: u64, manifest: &[u8]) {
    let table = vec![0; 8 * records as usize];
    let table_at = PAGE + (manifest.len() as u64).next_multiple_of(PAGE);
    let file_bytes = table_at + (table.len() as u64).next_multiple_of(PAGE) + record_bytes;
    let mut head = b"\x89SXSLAB\n".to_vec();
    head.extend(1u32.to_le_bytes());
    head.extend([0; 4]);
    for number in [manifest.len() as u64, xxh3_64(manifest), records, xxh3_64(&table), file_bytes] {
        head.extend(number.to_le_bytes());
    }
    head.extend(xxh3_64(&head).to_le_bytes());
    file.write_all_at(&head, 0).expect("room");
    file.write_all_at(manifest, PAGE).expect("room");
    file.set_len(file_bytes).expect("a sparse file");
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for name in ["qwen3_moe-affine4-g64-bf16", "gpt_oss-mxfp4-clamped", "colibri-q4-mtp-q8"] {
        let path = folder().join("seed.slab");
        let _ = fs::remove_file(&path);
        let source = open_source(fixture(name)).expect("a fixture");
        pack(&*source, &path, &PackOptions::default(), |_| std::ops::ControlFlow::Continue(()))
            .expect("a slab");
        let bytes = read(&path);
        let field = |at: usize| number_first(&bytes[at..]).0;
        let (manifest_bytes, records) = (field(16), field(32));
        let records_at = PAGE + manifest_bytes.next_multiple_of(PAGE) + (8 * records).next_multiple_of(PAGE);
        let manifest = &bytes[PAGE as usize..(PAGE + manifest_bytes) as usize];
        let mut fitting = vec![1];
        fitting.extend(records.to_le_bytes());
        fitting.extend((bytes.len() as u64 - records_at).to_le_bytes());
        fitting.extend(manifest);
        seeds.push(fitting);
        let mut raw = vec![0];
        raw.extend((bytes.len() as u64).to_le_bytes());
        raw.extend(&bytes[..records_at as usize]);
        seeds.push(raw);
    }
    seeds
}
