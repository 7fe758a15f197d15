//! If these fail, an expert that rotted on disk is computed with, or one bad record takes the whole model down.

mod slabs;

use std::{fs, ops::ControlFlow, path::Path, sync::Arc};

use slabs::{copy_fixture, fixture_names, flip, key, keys, open_fixture, packed, read_slot};
use streamed_experts::{
    Budget, ChecksumMode, Checksummed, ChecksumsError, ExpertChecksums, ExpertId, ExpertKey, ExpertSource,
    FileChange, FileId, LayerId, LeaseError, LoadError, Lru, ManagerOptions, Mapped, ResidencyManager,
    ResidencyPlan, Segment, SourceError, SparseLayer, Tier, VerifyOptions, VerifyReport, open_source, verify,
};

const FIXTURE: &str = "colibri-q4-mtp-q8";

fn report(source: &dyn ExpertSource) -> VerifyReport {
    verify(source, &VerifyOptions::default(), |_| ControlFlow::Continue(())).unwrap()
}

fn try_manager(source: &Arc<dyn ExpertSource>, checksums: ChecksumMode) -> Result<ResidencyManager, String> {
    let plan = ResidencyPlan::new(&**source, &Budget { working_slots: 2, ..Budget::new(8 << 20) }).unwrap();
    let banks = plan.anonymous_banks().unwrap();
    let options = ManagerOptions { checksums, ..ManagerOptions::default() };
    ResidencyManager::new(Arc::clone(source), plan, banks, Lru::boxed, &options).map_err(|e| e.to_string())
}

fn manager(source: &Arc<dyn ExpertSource>, checksums: ChecksumMode) -> ResidencyManager {
    try_manager(source, checksums).unwrap()
}

/// Leases experts of a layer, then lets them go; the errors of those that could not be loaded.
fn load(manager: &ResidencyManager, layer: u32, experts: &[u32]) -> Vec<LoadError> {
    let experts: Vec<ExpertId> = experts.iter().copied().map(ExpertId).collect();
    match manager.lease_with(LayerId(layer), &experts, |_| {}) {
        Ok(lease) => {
            lease.release().unwrap();
            Vec::new()
        }
        Err(LeaseError::Load(errors)) => errors.errors().to_vec(),
        Err(other) => panic!("{other}"),
    }
}

fn slab(path: &Path) -> Arc<dyn ExpertSource> {
    Arc::from(open_source(path).unwrap())
}

#[test]
fn a_bad_record_fails_its_own_request_and_the_next_one_retries() {
    for mode in [ChecksumMode::default(), ChecksumMode::FirstLoad, ChecksumMode::Always] {
        let directory = tempfile::tempdir().unwrap();
        let path = packed(directory.path(), FIXTURE);
        let source = slab(&path);
        let manager = manager(&source, mode);
        let at = source.segments(key(4, 1)).unwrap()[0].file_offset_bytes;
        flip(&path, at + 3);
        let errors = load(&manager, 4, &[0, 1]);
        let [error @ LoadError::Checksum { expected, found, offset_bytes, .. }] = &errors[..] else {
            panic!("{errors:?}")
        };
        assert_eq!(*offset_bytes, at);
        assert_eq!(Some(*expected), source.checksum(key(4, 1)));
        assert_eq!(
            error.to_string(),
            format!(
                "L4E1 at offset {at} B of {} is damaged: its checksum is {found:016x}, and should be {expected:016x} \
                 (it was written to since it was opened)",
                path.display()
            )
        );
        assert!(load(&manager, 4, &[0, 2]).is_empty(), "the others are loaded");
        assert_eq!(load(&manager, 4, &[1]).len(), 1, "still damaged");
        flip(&path, at + 3);
        assert!(load(&manager, 4, &[1]).is_empty(), "mended");
        manager.check_invariants();
    }
}

#[test]
fn without_checksums_damage_is_not_looked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), FIXTURE);
    let source = slab(&path);
    flip(&path, source.segments(key(4, 1)).unwrap()[0].file_offset_bytes);
    assert!(load(&manager(&source, ChecksumMode::Off), 4, &[1]).is_empty());
}

#[test]
fn the_first_load_alone_is_checked_or_every_load_as_asked() {
    for (mode, bad) in
        [(ChecksumMode::WherePresent, 0), (ChecksumMode::FirstLoad, 0), (ChecksumMode::Always, 1)]
    {
        let directory = tempfile::tempdir().unwrap();
        let path = packed(directory.path(), FIXTURE);
        let source = slab(&path);
        // As few resident slots as there can be: every other expert of the layer drives expert 0 out.
        let least =
            ResidencyPlan::new(&*source, &Budget { working_slots: 2, ..Budget::new(8 << 20) }).unwrap();
        let bytes: u64 = least
            .tiers()
            .iter()
            .map(|tier| tier.slot_bytes() * (u64::from(tier.working_slots()) + tier.layers().len() as u64))
            .sum();
        let plan = ResidencyPlan::new(&*source, &Budget { working_slots: 2, ..Budget::new(bytes) }).unwrap();
        let banks = plan.anonymous_banks().unwrap();
        let options = ManagerOptions { checksums: mode, ..ManagerOptions::default() };
        let manager = ResidencyManager::new(Arc::clone(&source), plan, banks, Lru::boxed, &options).unwrap();
        assert!(load(&manager, 4, &[0]).is_empty());
        for other in 1..5 {
            assert!(load(&manager, 4, &[other]).is_empty());
        }
        assert!(!manager.is_resident(key(4, 0)), "it was driven out");
        flip(&path, source.segments(key(4, 0)).unwrap()[0].file_offset_bytes);
        assert_eq!(load(&manager, 4, &[0]).len(), bad, "{mode:?}");
    }
}

#[test]
fn checksums_asked_for_of_a_source_without_them_are_an_error() {
    let source: Arc<dyn ExpertSource> = Arc::from(open_fixture("qwen3_moe-mxfp4"));
    assert_eq!(
        try_manager(&source, ChecksumMode::Always).unwrap_err(),
        "the source has no checksum of L0E0, and `checksums` is Always: pack it, or add a file of checksums"
    );
}

#[test]
fn by_default_a_source_without_checksums_is_used_as_it_is_read() {
    let source: Arc<dyn ExpertSource> = Arc::from(open_fixture("qwen3_moe-mxfp4"));
    assert!(load(&manager(&source, ManagerOptions::default().checksums), 0, &[0, 1]).is_empty());
}

/// A source that has the checksums of even experts only.
#[derive(Debug)]
struct EvenChecksums(Arc<dyn ExpertSource>);

impl ExpertSource for EvenChecksums {
    fn tiers(&self) -> &[Tier] {
        self.0.tiers()
    }
    fn layers(&self) -> &[SparseLayer] {
        self.0.layers()
    }
    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        self.0.segments(key)
    }
    fn path(&self, file: FileId) -> &Path {
        self.0.path(file)
    }
    fn read_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> std::io::Result<usize> {
        self.0.read_at(file, buffer, offset_bytes)
    }
    fn checksum(&self, key: ExpertKey) -> Option<u64> {
        self.0.checksum(key).filter(|_| key.expert.0.is_multiple_of(2))
    }
}

#[test]
fn by_default_what_has_a_checksum_is_checked_and_the_rest_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), FIXTURE);
    let whole = slab(&path);
    for expert in [0, 1] {
        flip(&path, whole.segments(key(4, expert)).unwrap()[0].file_offset_bytes);
    }
    let source: Arc<dyn ExpertSource> = Arc::new(EvenChecksums(whole));
    let errors = load(&manager(&source, ChecksumMode::default()), 4, &[0, 1]);
    assert!(matches!(&errors[..], [LoadError::Checksum { key: bad, .. }] if *bad == key(4, 0)), "{errors:?}");
    assert!(try_manager(&source, ChecksumMode::FirstLoad).unwrap_err().contains("no checksum of"));
}

#[test]
fn checksums_of_a_checkpoint_are_written_once_and_tell_later_which_expert_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let copy = copy_fixture(directory.path(), "gpt_oss-mxfp4");
    let file = directory.path().join("sums.json");
    let plain = open_source(&copy).unwrap();
    let first = report(&*plain);
    assert_eq!((first.compared_records, first.records), (0, 8));
    first.checksums.unwrap().write(&file).unwrap();
    let checked = || {
        let source = Arc::from(open_source(&copy).unwrap());
        Checksummed::new(source, ExpertChecksums::read(&file).unwrap()).unwrap()
    };
    let sound = report(&checked());
    assert!(sound.is_sound());
    assert_eq!(sound.compared_records, 8);
    let scales = *plain.segments(key(1, 2)).unwrap().last().unwrap();
    flip(&copy.join("model.safetensors"), scales.file_offset_bytes);
    let bad = report(&checked());
    assert_eq!(bad.bad_records, 1);
    assert!(bad.bad[0].to_string().starts_with("L1E2 at offset "), "{}", bad.bad[0]);
    // The same checksums serve while loading.
    let source: Arc<dyn ExpertSource> = Arc::new(checked());
    let manager = manager(&source, ChecksumMode::FirstLoad);
    assert_eq!(load(&manager, 1, &[1, 2]).len(), 1);
    assert!(load(&manager, 1, &[1, 3]).is_empty());
}

#[test]
fn an_expert_has_the_same_checksum_in_a_checkpoint_and_in_a_slab() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["gpt_oss-mxfp4", "colibri-q4-odd", "qwen3_moe-affine3-g64-bf16"] {
        let checksums = report(&*open_fixture(name)).checksums.unwrap();
        let slab = slab(&packed(directory.path(), name));
        assert!(keys(&*slab).all(|key| slab.checksum(key) == checksums.get(key)), "{name}");
        assert!(Checksummed::new(slab, checksums).is_ok(), "{name}");
    }
}

#[test]
fn checksums_of_another_model_or_a_damaged_list_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sums.json");
    report(&*open_fixture("gpt_oss-mxfp4")).checksums.unwrap().write(&file).unwrap();
    let other = Arc::from(open_fixture("qwen3_moe-mxfp4"));
    let foreign = Checksummed::new(other, ExpertChecksums::read(&file).unwrap()).unwrap_err();
    assert_eq!(foreign.to_string(), "the checksums are of another model: 2 layers, not 1");
    let text = fs::read_to_string(&file).unwrap();
    let at = text.rfind("checksums\":\"").unwrap() + 12;
    let digit = if text.as_bytes()[at] == b'0' { "1" } else { "0" };
    for (spoilt, expected) in [
        (format!("{}{digit}{}", &text[..at], &text[at + 1..]), "its checksums have checksum"),
        (format!("{}x{}", &text[..at], &text[at + 1..]), "is not 16 hexadecimal digits"),
        (text.replace(r#""version":1"#, r#""version":2"#), "version 2"),
        (text.replace(r#""layer":1"#, r#""layer":0"#), "out of order"),
        (text.replace(r#""layer":1"#, r#""layer":4096"#), "not below 4096"),
    ] {
        fs::write(&file, spoilt).unwrap();
        let error = ExpertChecksums::read(&file).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    fs::write(&file, &text[..text.len() / 2]).unwrap();
    assert!(matches!(ExpertChecksums::read(&file), Err(ChecksumsError::Json { .. })));
    fs::write(&file, vec![b' '; (16 << 20) + 1]).unwrap();
    assert!(matches!(ExpertChecksums::read(&file), Err(ChecksumsError::TooLong { .. })));
}

#[test]
#[allow(unsafe_code)]
fn a_mapped_source_gives_the_same_bytes_for_every_fixture() {
    for name in fixture_names() {
        let source: Arc<dyn ExpertSource> = Arc::from(open_fixture(&name));
        // SAFETY: nobody writes to the fixtures.
        let mapped = unsafe { Mapped::new(Arc::clone(&source)) }.unwrap();
        assert_eq!((mapped.tiers(), mapped.layers()), (source.tiers(), source.layers()));
        assert!(keys(&*source).all(|key| read_slot(&mapped, key) == read_slot(&*source, key)), "{name}");
        let file = source.segments(keys(&*source).next().unwrap()).unwrap()[0].file;
        let len = fs::metadata(source.path(file)).unwrap().len();
        assert_eq!(mapped.read_at(file, &mut [0; 8], len - 3).unwrap(), 3);
        assert_eq!(mapped.read_at(file, &mut [0; 8], len).unwrap(), 0);
        assert_eq!(mapped.read_at(file, &mut [0; 8], u64::MAX).unwrap(), 0);
    }
}

#[test]
#[allow(unsafe_code)]
fn a_mapped_slab_keeps_its_checksums() {
    let directory = tempfile::tempdir().unwrap();
    let source = slab(&packed(directory.path(), FIXTURE));
    // SAFETY: the slab is this test's own, and nothing writes to it.
    let mapped = unsafe { Mapped::new(Arc::clone(&source)) }.unwrap();
    let found = report(&mapped);
    assert!(found.is_sound());
    assert_eq!(found.compared_records, 15);
    let mapped: Arc<dyn ExpertSource> = Arc::new(mapped);
    assert!(load(&manager(&mapped, ChecksumMode::Always), 3, &[0, 1]).is_empty());
}

#[test]
#[allow(unsafe_code)]
fn a_file_that_was_replaced_before_it_is_mapped_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), FIXTURE);
    let source = slab(&path);
    fs::copy(&path, directory.path().join("new")).unwrap();
    fs::rename(directory.path().join("new"), &path).unwrap();
    // SAFETY: the slab is this test's own, and nothing writes to it.
    let refused = unsafe { Mapped::new(source) }.unwrap_err();
    assert!(matches!(refused, SourceError::Changed { change: FileChange::Replaced, .. }), "{refused}");
}

#[test]
fn what_befalls_an_open_file_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), FIXTURE);
    let whole = fs::read(&path).unwrap();
    let source = slab(&path);
    let segment = source.segments(key(5, 4)).unwrap()[0];
    assert_eq!(source.changed(segment.file), None);
    let expected = read_slot(&*source, key(5, 4));

    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let opened_bytes = whole.len() as u64;
    file.set_len(opened_bytes + 1).unwrap();
    let grown = FileChange::Length { opened_bytes, now_bytes: opened_bytes + 1 };
    assert_eq!(source.changed(segment.file), Some(grown));

    let cut_bytes = segment.file_offset_bytes + 100;
    file.set_len(cut_bytes).unwrap();
    let manager = manager(&source, ChecksumMode::Off);
    let errors = load(&manager, 5, &[4]);
    assert_eq!(
        errors[0].to_string(),
        format!(
            "{} ends inside L5E4: wanted {} B at offset {} B, got 100 B (it has {cut_bytes} B now, and had \
             {opened_bytes} B when it was opened)",
            path.display(),
            segment.len_bytes,
            segment.file_offset_bytes
        )
    );
    fs::write(&path, &whole).unwrap();
    assert_eq!(source.changed(segment.file), Some(FileChange::Written));
    assert!(load(&manager, 5, &[4]).is_empty(), "whole again");

    let source = slab(&path);
    fs::rename(&path, directory.path().join("elsewhere")).unwrap();
    assert_eq!(source.changed(segment.file), Some(FileChange::Removed));
    fs::write(&path, "another").unwrap();
    assert_eq!(source.changed(segment.file), Some(FileChange::Replaced));
    assert!(read_slot(&*source, key(5, 4)) == expected, "the open file still holds what it held");
}
