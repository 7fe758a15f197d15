//! One module for each kind of input.

pub(crate) mod checksums;
pub(crate) mod ledger;
pub(crate) mod plans;
pub(crate) mod slab;
pub(crate) mod sources;
pub(crate) mod traces;

use std::{cell::OnceCell, fs, path::PathBuf};

use streamed_experts::{ExpertId, ExpertKey, ExpertSource};
use tempfile::TempDir;

/// A folder that lives as long as its thread; in memory where the system has such a place.
fn folder() -> PathBuf {
    thread_local! {
        static FOLDER: OnceCell<TempDir> = const { OnceCell::new() };
    }
    FOLDER.with(|folder| {
        let made = folder.get_or_init(|| {
            tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
        });
        made.path().to_owned()
    })
}

/// What a source that opened must answer: experts whose reads lie in their files, do not overlap in the slot, and fill
/// every component.
fn check_source(source: &dyn ExpertSource) {
    assert!(!source.tiers().is_empty() && !source.layers().is_empty());
    for layer in source.layers() {
        let tier = &source.tiers()[layer.tier.index()];
        let slot_bytes = tier.layout.slot_bytes();
        assert!(layer.experts > 0 && tier.layout.record_bytes() <= slot_bytes);
        for expert in [0, layer.experts / 2, layer.experts - 1] {
            let key = ExpertKey::new(layer.layer, ExpertId(expert));
            let mut segments = source.segments(key).expect("an expert of the layer").to_vec();
            segments.sort_by_key(|segment| segment.slot_offset_bytes);
            let mut end = 0;
            for segment in &segments {
                assert!(segment.len_bytes > 0 && segment.slot_offset_bytes >= end, "{key}: {segment:?}");
                end = segment.slot_offset_bytes + segment.len_bytes;
                let file_bytes = fs::metadata(source.path(segment.file)).expect("its file").len();
                assert!(segment.file_offset_bytes + segment.len_bytes <= file_bytes, "{key}: {segment:?}");
            }
            assert!(end <= slot_bytes, "{key}: {end} of {slot_bytes}");
            assert!(segments.iter().map(|s| s.len_bytes).sum::<u64>() >= tier.layout.record_bytes(), "{key}");
        }
        assert!(source.segments(ExpertKey::new(layer.layer, ExpertId(layer.experts))).is_none());
    }
}
