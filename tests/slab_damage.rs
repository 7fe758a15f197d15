//! If these fail, a damaged slab computes nonsense without a word, or crashes the program that opens it.

mod slabs;

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use proptest::prelude::*;
use slabs::{go_on, keys, open_fixture, packed, partial, parts, read_slot};
use streamed_experts::{ExpertKey, PackOptions, VerifyOptions, open_source, pack, verify};

/// A slab with two tiers, and the slots it should give.
struct Original {
    slab: Vec<u8>,
    slots: Vec<(ExpertKey, Vec<u8>)>,
    _directory: tempfile::TempDir,
}

const FIXTURE: &str = "colibri-q4-mtp-q8";

fn original() -> &'static Original {
    static ORIGINAL: OnceLock<Original> = OnceLock::new();
    ORIGINAL.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = packed(directory.path(), FIXTURE);
        let slab = open_source(&path).unwrap();
        let slots = keys(&*slab).map(|key| (key, read_slot(&*slab, key))).collect();
        Original { slab: fs::read(path).unwrap(), slots, _directory: directory }
    })
}

/// Whether bytes pass for a slab whose every record is sound. They must then be the original's experts.
fn passes(bytes: &[u8]) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("spoilt.slab");
    fs::write(&path, bytes).unwrap();
    let Ok(slab) = open_source(&path) else { return false };
    let report = verify(&*slab, &VerifyOptions { threads: 1 }, |_| ControlFlow::Continue(())).unwrap();
    if !report.is_sound() {
        return false;
    }
    for (key, slot) in &original().slots {
        assert!(read_slot(&*slab, *key) == *slot, "{key} was accepted and is another");
    }
    true
}

fn spoil_partial(directory: &Path, changes: &[(usize, u8)]) -> PathBuf {
    let path = directory.join("x.slab");
    let mut bytes = original().slab.clone();
    for &(at, value) in changes {
        bytes[at] ^= value;
    }
    fs::write(partial(&path), bytes).unwrap();
    path
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_changed_byte_is_noticed_wherever_it_lies(
        position in any::<prop::sample::Index>(), early in any::<bool>(), change in 1u8..,
    ) {
        let mut bytes = original().slab.clone();
        let at = position.index(if early { parts(&bytes).records } else { bytes.len() });
        bytes[at] ^= change;
        prop_assert!(!passes(&bytes), "byte {}", at);
    }

    #[test]
    fn a_changed_number_of_the_head_is_refused_in_peace_though_its_checksum_fits(
        field in 0usize..5, value in prop_oneof![any::<u64>(), 0u64..100_000, Just(1 << 18), Just(u64::MAX)],
    ) {
        let mut bytes = original().slab.clone();
        let at = 16 + 8 * field;
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let head = xxhash_rust::xxh3::xxh3_64(&bytes[..56]);
        bytes[56..64].copy_from_slice(&head.to_le_bytes());
        prop_assert!(bytes == original().slab || !passes(&bytes));
    }

    #[test]
    fn a_manifest_with_bytes_changed_never_gives_other_experts_in_silence(
        changes in proptest::collection::vec(
            (any::<prop::sample::Index>(), prop_oneof![any::<u8>(), b'0'..=b'9']), 1..4),
    ) {
        // Its checksum is made to fit. What passes then has the same experts under other names at most.
        let bytes = slabs::with_manifest(&original().slab, |json| {
            let mut json = json.as_bytes().to_vec();
            for (position, value) in &changes {
                let at = position.index(json.len());
                json[at] = *value;
            }
            String::from_utf8_lossy(&json).into_owned()
        });
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("spoilt.slab");
        fs::write(&path, bytes).unwrap();
        if let Ok(slab) = open_source(&path) {
            let _ = verify(&*slab, &VerifyOptions { threads: 1 }, |_| ControlFlow::Continue(())).unwrap();
        }
    }

    #[test]
    fn a_slab_cut_anywhere_is_refused_in_peace(position in any::<prop::sample::Index>()) {
        let bytes = &original().slab;
        prop_assert!(!passes(&bytes[..position.index(bytes.len())]));
    }

    #[test]
    fn random_bytes_behind_a_slab_s_magic_are_refused_in_peace(
        tail in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let bytes: Vec<u8> = original().slab[..12].iter().copied().chain(tail).collect();
        prop_assert!(!passes(&bytes));
    }

    #[test]
    fn whatever_befell_a_partial_slab_packing_goes_on_to_the_right_one_or_refuses(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..6),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let changes: Vec<(usize, u8)> =
            changes.iter().map(|(at, change)| (at.index(original().slab.len()), *change)).collect();
        let path = spoil_partial(directory.path(), &changes);
        if pack(&*open_fixture(FIXTURE), &path, &PackOptions::default(), go_on).is_ok() {
            let slab = open_source(&path).unwrap();
            for (key, slot) in &original().slots {
                prop_assert!(read_slot(&*slab, *key) == *slot, "{}", key);
            }
        } else {
            prop_assert!(!path.exists());
        }
    }
}
