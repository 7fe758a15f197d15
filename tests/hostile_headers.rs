//! If these fail, a damaged download can crash the program that opens it, or make it ask for more memory than there is.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use proptest::prelude::*;
use streamed_experts::{TensorIndex, open_source};

thread_local! {
    /// The largest allocation this thread has asked for since it was last set.
    static LARGEST_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, watched.
struct Watched;

// SAFETY: every call goes to the system's allocator unchanged; the thread-local needs no allocation and no destructor.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST_BYTES.with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        LARGEST_BYTES.with(|largest| largest.set(largest.get().max(new_size)));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// Opening a file of so many bytes may not ask for more than this at once: its header, or a list of its tensors.
fn limit_bytes(file_bytes: usize) -> usize {
    64 * 1024 + 8 * file_bytes
}

/// A copy of a fixture with a model file of these bytes, opened as index and as source.
fn open_spoilt(fixture: &str, file: &str, bytes: &[u8]) {
    let original = fixture_path(fixture);
    let directory = tempfile::tempdir().unwrap();
    fs::copy(original.join("config.json"), directory.path().join("config.json")).unwrap();
    let path = directory.path().join(file);
    fs::write(&path, bytes).unwrap();
    LARGEST_BYTES.set(0);
    let opened = TensorIndex::open_file(&path);
    let source = open_source(directory.path());
    let largest = LARGEST_BYTES.get();
    assert!(largest <= limit_bytes(bytes.len()), "{largest} B at once for a file of {} B", bytes.len());
    if let Ok(index) = &opened {
        assert!(index.iter().all(|(_, t)| t.offset_bytes + t.len_bytes <= bytes.len() as u64));
    }
    if let Ok(source) = source {
        assert!(!source.tiers().is_empty() && !source.layers().is_empty());
    }
}

fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Two small fixtures: a checkpoint's file and a container's.
fn originals() -> &'static [(&'static str, &'static str, Vec<u8>); 2] {
    static ORIGINALS: OnceLock<[(&str, &str, Vec<u8>); 2]> = OnceLock::new();
    ORIGINALS.get_or_init(|| {
        [("gpt_oss-mxfp4", "model.safetensors"), ("colibri-q8-row", "out-00000.safetensors")]
            .map(|(fixture, file)| (fixture, file, fs::read(fixture_path(fixture).join(file)).unwrap()))
    })
}

fn header_len(bytes: &[u8]) -> usize {
    8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused_in_peace(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        open_spoilt("gpt_oss-mxfp4", "model.safetensors", &bytes);
    }

    #[test]
    fn a_random_header_length_is_refused_in_peace(len in any::<u64>(), small in 0u64..5000, pick in any::<bool>()) {
        let (fixture, file, mut bytes) = originals()[0].clone();
        bytes[..8].copy_from_slice(&(if pick { len } else { small }).to_le_bytes());
        open_spoilt(fixture, file, &bytes);
    }

    #[test]
    fn a_header_with_some_bytes_changed_is_refused_or_opened_in_peace(
        which in 0usize..2,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), b'0'..=b'9']), 1..4),
    ) {
        let (fixture, file, mut bytes) = originals()[which].clone();
        let len = header_len(&bytes);
        for (position, value) in changes {
            bytes[8 + position.index(len - 8)] = value;
        }
        open_spoilt(fixture, file, &bytes);
    }

    #[test]
    fn a_header_with_a_number_changed_is_refused_or_opened_in_peace(
        which in 0usize..2, position in any::<prop::sample::Index>(),
        value in prop_oneof![any::<u64>(), 0u64..100_000, Just(1 << 32), Just(u64::MAX)],
    ) {
        let (fixture, file, bytes) = &originals()[which];
        let text = std::str::from_utf8(&bytes[8..header_len(bytes)]).unwrap();
        let starts: Vec<usize> = text
            .char_indices()
            .filter(|&(at, c)| c.is_ascii_digit() && !text.as_bytes()[at - 1].is_ascii_digit())
            .map(|(at, _)| at)
            .collect();
        let start = starts[position.index(starts.len())];
        let end = start + text[start..].bytes().take_while(u8::is_ascii_digit).count();
        let header = format!("{}{value}{}", &text[..start], &text[end..]);
        let mut spoilt = (header.len() as u64).to_le_bytes().to_vec();
        spoilt.extend(header.as_bytes());
        spoilt.extend(&bytes[header_len(bytes)..]);
        open_spoilt(fixture, file, &spoilt);
    }

    #[test]
    fn a_file_cut_anywhere_is_refused_in_peace(which in 0usize..2, position in any::<prop::sample::Index>()) {
        let (fixture, file, bytes) = &originals()[which];
        open_spoilt(fixture, file, &bytes[..position.index(bytes.len())]);
    }
}
