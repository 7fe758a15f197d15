//! If these fail, a packed model is not the model that was packed, a killed packer leaves a slab that lies, or damage goes
//! unnoticed.

mod slabs;

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, ErrorKind},
    ops::ControlFlow,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use slabs::{
    fixture, fixture_names, flip, go_on, key, keys, open_fixture, packed, partial, read_slot, slot_of,
};
use streamed_experts::{
    ExpertSource, PackError, PackOptions, SlabSource, SourceError, VerifyOptions, open_source, pack, verify,
};

const FIXTURE: &str = "colibri-q4-mtp-q8";

fn refusal(path: &Path) -> String {
    match open_source(path) {
        Err(SourceError::Slab(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_fixture_comes_back_from_a_slab_with_the_same_bytes_in_every_slot() {
    let directory = tempfile::tempdir().unwrap();
    for name in fixture_names() {
        let source = open_fixture(&name);
        let path = directory.path().join(format!("{name}.slab"));
        let report = pack(&*source, &path, &PackOptions::default(), go_on).unwrap();
        assert_eq!(report.file_bytes, fs::metadata(&path).unwrap().len(), "{name}");
        let slab = open_source(&path).unwrap();
        assert_eq!((slab.tiers(), slab.layers()), (source.tiers(), source.layers()), "{name}");
        for key in keys(&*source) {
            assert!(read_slot(&*slab, key) == read_slot(&*source, key), "{name} {key}");
            let layout = &slots_layout(&*slab, key);
            assert_eq!(
                slab.checksum(key),
                Some(streamed_experts::record_checksum(layout, &read_slot(&*source, key)))
            );
        }
        assert!(verify(&*slab, &VerifyOptions::default(), |_| ControlFlow::Continue(())).unwrap().is_sound());
    }
}

fn slots_layout(source: &dyn ExpertSource, key: streamed_experts::ExpertKey) -> streamed_experts::SlotLayout {
    slabs::tier_of(source, key).layout.clone()
}

#[test]
fn a_record_is_one_aligned_read_of_a_whole_slot() {
    let directory = tempfile::tempdir().unwrap();
    let slab = open_source(packed(directory.path(), FIXTURE)).unwrap();
    for key in keys(&*slab) {
        let [segment] = slab.segments(key).unwrap() else { panic!("{key} takes several reads") };
        assert_eq!(segment.file_offset_bytes % 16_384, 0);
        assert_eq!(segment.len_bytes, slots_layout(&*slab, key).slot_bytes());
        assert_eq!(segment.slot_offset_bytes, 0);
    }
}

#[test]
fn a_slab_of_some_layers_has_those_and_their_tiers_alone() {
    let directory = tempfile::tempdir().unwrap();
    let source = open_fixture(FIXTURE);
    let path = directory.path().join("draft.slab");
    let options = PackOptions { layers: Some(5..=90), ..PackOptions::default() };
    pack(&*source, &path, &options, go_on).unwrap();
    let slab = open_source(&path).unwrap();
    assert_eq!(slab.layers().len(), 1);
    assert_eq!(slab.tiers(), [slabs::tier_of(&*source, key(5, 0)).clone()]);
    assert!(read_slot(&*slab, key(5, 3)) == read_slot(&*source, key(5, 3)));
    let none = PackOptions { layers: Some(6..=90), ..PackOptions::default() };
    let error = pack(&*source, directory.path().join("none.slab"), &none, go_on).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the source has no layer between L6 and L90; its layers with experts are L3 to L5"
    );
}

#[test]
fn a_slab_remembers_what_it_was_packed_from() {
    let directory = tempfile::tempdir().unwrap();
    let slab = SlabSource::open(packed(directory.path(), FIXTURE)).unwrap();
    let names: Vec<&str> = slab.origin().files.iter().map(|file| file.name.as_str()).collect();
    assert!(names.contains(&"out-00000.safetensors") && names.contains(&"out-mtp-00000.safetensors"));
    let first = &slab.origin().files[0];
    assert_eq!(first.len_bytes, Some(fs::metadata(fixture(FIXTURE).join(&first.name)).unwrap().len()));
}

#[test]
fn what_lies_under_the_path_is_replaced_by_force_only() {
    let directory = tempfile::tempdir().unwrap();
    let source = open_fixture(FIXTURE);
    let path = directory.path().join("x.slab");
    fs::write(&path, "precious").unwrap();
    let error = pack(&*source, &path, &PackOptions::default(), go_on).unwrap_err();
    assert!(matches!(error, PackError::Exists { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    assert!(!partial(&path).exists());
    pack(&*source, &path, &PackOptions { force: true, ..PackOptions::default() }, go_on).unwrap();
    assert!(open_source(&path).is_ok() && !partial(&path).exists());
}

#[test]
fn a_slab_can_be_packed_over_itself() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), FIXTURE);
    let slab = open_source(&path).unwrap();
    let options = PackOptions { force: true, layers: Some(4..=4), ..PackOptions::default() };
    pack(&*slab, &path, &options, go_on).unwrap();
    assert_eq!(open_source(&path).unwrap().layers().len(), 1);
    assert!(slab.changed(slab.segments(key(3, 0)).unwrap()[0].file).is_some());
}

#[test]
fn a_stopped_packer_goes_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let source = open_fixture(FIXTURE);
    let path = directory.path().join("x.slab");
    let options = PackOptions { threads: 1, ..PackOptions::default() };
    let stop_at_6 = |progress: streamed_experts::PackProgress| {
        if progress.done_records == 6 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let error = pack(&*source, &path, &options, stop_at_6).unwrap_err();
    assert_eq!(error.to_string(), "stopped after 6 of 15 records");
    assert!(!path.exists());
    assert!(refusal(&partial(&path)).ends_with("is an unfinished slab; pack it again to finish it"));
    let report = pack(&*source, &path, &options, go_on).unwrap();
    assert!(report.kept_records >= 6 && report.records == 15, "{report:?}");
    let whole = packed(directory.path(), FIXTURE);
    assert!(fs::read(&path).unwrap() == fs::read(whole).unwrap());
}

#[test]
fn a_record_that_was_damaged_between_two_runs_is_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let source = open_fixture(FIXTURE);
    let path = directory.path().join("x.slab");
    let whole = packed(directory.path(), FIXTURE);
    let options = PackOptions { threads: 1, ..PackOptions::default() };
    let stop_at_6 = |progress: streamed_experts::PackProgress| {
        if progress.done_records == 6 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    pack(&*source, &path, &options, stop_at_6).unwrap_err();
    let at = open_source(&whole).unwrap().segments(key(3, 1)).unwrap()[0].file_offset_bytes;
    flip(&partial(&path), at + 5);
    flip(&partial(&path), at + 16_384 - 1);
    let report = pack(&*source, &path, &options, go_on).unwrap();
    assert!(report.kept_records < 15);
    assert!(fs::read(&path).unwrap() == fs::read(whole).unwrap());
}

/// Run by the next test in a process of its own.
#[test]
fn child_packs_slowly() {
    let Some(path) = std::env::var_os("SLAB_TEST_CHILD") else { return };
    let source = open_fixture(FIXTURE);
    let options = PackOptions { threads: 1, ..PackOptions::default() };
    let _ = pack(&*source, path, &options, |progress| {
        println!("\ndone {}", progress.done_records);
        std::thread::sleep(Duration::from_millis(if progress.done_records < 5 { 1 } else { 60_000 }));
        ControlFlow::Continue(())
    });
}

#[test]
fn a_packer_that_is_killed_leaves_nothing_under_the_path_and_the_next_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.slab");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_packs_slowly", "--nocapture"])
        .env("SLAB_TEST_CHILD", &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "done 5"), "the child ended early");
    let source = open_fixture(FIXTURE);
    let busy = pack(&*source, &path, &PackOptions::default(), go_on).unwrap_err();
    assert!(matches!(busy, PackError::Busy { .. }), "{busy}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!path.exists());
    assert!(refusal(&partial(&path)).contains("unfinished"));
    let report = pack(&*source, &path, &PackOptions::default(), go_on).unwrap();
    assert!(report.kept_records >= 5, "{report:?}");
    assert!(fs::read(&path).unwrap() == fs::read(packed(directory.path(), FIXTURE)).unwrap());
}

#[test]
fn of_two_packers_to_one_path_the_second_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.slab");
    let (begun, wait_begun) = mpsc::channel();
    let (release, wait_release) = mpsc::channel::<()>();
    let first = std::thread::spawn({
        let path = path.clone();
        move || {
            pack(&*open_fixture(FIXTURE), path, &PackOptions::default(), |progress| {
                if progress.done_records == 1 {
                    begun.send(()).unwrap();
                    wait_release.recv().unwrap();
                }
                ControlFlow::Continue(())
            })
        }
    });
    wait_begun.recv().unwrap();
    for force in [false, true] {
        let options = PackOptions { force, ..PackOptions::default() };
        let error = pack(&*open_fixture(FIXTURE), &path, &options, go_on).unwrap_err();
        let expected = format!("{} is being written by somebody else", partial(&path).display());
        assert_eq!(error.to_string(), expected);
    }
    release.send(()).unwrap();
    first.join().unwrap().unwrap();
    assert!(open_source(&path).is_ok());
}

#[test]
fn the_beginning_of_another_slab_is_begun_anew_by_force_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.slab");
    let stop = |_| ControlFlow::Break(());
    let options = PackOptions::default();
    // Another source, other layers, a source that was touched, and a file that has nothing to do with it.
    pack(&*open_fixture("colibri-q8-row"), &path, &options, stop).unwrap_err();
    let source = open_fixture(FIXTURE);
    let foreign = |options: &PackOptions| {
        let error = pack(&*source, &path, options, stop).unwrap_err();
        assert!(matches!(error, PackError::Foreign { .. } | PackError::Stopped { .. }), "{error}");
        matches!(error, PackError::Foreign { .. })
    };
    // Stopped before the first record, nothing but an empty file is there.
    assert!(foreign(&options));
    fs::write(
        partial(&path),
        "something that somebody else calls partial, longer than the head of a slab is",
    )
    .unwrap();
    assert!(foreign(&options));
    let some = PackOptions { layers: Some(3..=3), ..PackOptions::default() };
    assert!(!foreign(&PackOptions { force: true, ..some.clone() }));
    assert!(!foreign(&some));
    assert!(foreign(&options));
    pack(&*source, &path, &PackOptions { force: true, ..options }, go_on).unwrap();
    assert_eq!(open_source(&path).unwrap().layers().len(), 3);
}

#[test]
fn a_source_that_changes_while_it_is_packed_makes_no_slab() {
    let directory = tempfile::tempdir().unwrap();
    let copy = slabs::copy_fixture(directory.path(), "qwen3_moe-mxfp4");
    let source = open_source(&copy).unwrap();
    let path = directory.path().join("x.slab");
    let error = pack(&*source, &path, &PackOptions::default(), |progress| {
        if progress.done_records == 1 {
            let model = copy.join("model.safetensors");
            fs::copy(&model, copy.join("new")).unwrap();
            fs::rename(copy.join("new"), model).unwrap();
        }
        ControlFlow::Continue(())
    })
    .unwrap_err();
    assert!(error.to_string().ends_with(
        "model.safetensors changed while it was packed: its path names another file since it was opened"
    ));
    assert!(!path.exists());
}

#[test]
fn a_damaged_expert_of_a_slab_is_not_packed_into_another() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), FIXTURE);
    let at = open_source(&path).unwrap().segments(key(4, 2)).unwrap()[0].file_offset_bytes;
    flip(&path, at);
    let slab = open_source(&path).unwrap();
    let copy = directory.path().join("copy.slab");
    let error = pack(&*slab, &copy, &PackOptions::default(), go_on).unwrap_err();
    assert!(error.to_string().starts_with(&format!("L4E2 at offset {at} B of")), "{error}");
    assert!(!copy.exists());
}

#[test]
fn too_little_room_is_told_before_anything_is_written() {
    let Some(mount) = slabs::Tmpfs::mount("96k") else { return };
    let path = mount.path().join("x.slab");
    let error = pack(&*open_fixture(FIXTURE), &path, &PackOptions::default(), go_on).unwrap_err();
    let PackError::NoSpace { needed_bytes, free_bytes, .. } = error else { panic!("{error}") };
    assert!(needed_bytes > free_bytes && free_bytes <= 96 << 10);
    assert_eq!(fs::metadata(partial(&path)).unwrap().len(), 0);
}

#[test]
fn a_drive_that_fills_up_leaves_the_old_slab_and_packing_goes_on_when_there_is_room() {
    let Some(mount) = slabs::Tmpfs::mount("8m") else { return };
    let path = mount.path().join("x.slab");
    fs::write(&path, "the old slab").unwrap();
    let source = open_fixture(FIXTURE);
    let options = PackOptions { force: true, threads: 1, ..PackOptions::default() };
    let filler = mount.path().join("filler");
    let error = pack(&*source, &path, &options, |progress| {
        if progress.done_records == 4 {
            let full = std::io::copy(&mut std::io::repeat(1), &mut File::create(&filler).unwrap());
            assert_eq!(full.unwrap_err().kind(), ErrorKind::StorageFull);
        }
        ControlFlow::Continue(())
    })
    .unwrap_err();
    let PackError::Write { source: cause, .. } = &error else { panic!("{error}") };
    assert_eq!(cause.kind(), ErrorKind::StorageFull);
    assert_eq!(fs::read(&path).unwrap(), b"the old slab");
    fs::remove_file(filler).unwrap();
    let report = pack(&*source, &path, &options, go_on).unwrap();
    assert!(report.kept_records >= 4, "{report:?}");
    for key in keys(&*source) {
        assert!(read_slot(&*open_source(&path).unwrap(), key) == read_slot(&*source, key));
    }
}

#[test]
fn a_slab_that_was_cut_or_has_grown_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), FIXTURE);
    let whole = fs::read(&path).unwrap();
    for len in [whole.len() - 1, whole.len() - 16_384, whole.len() / 2, 40_000, 16_384, 64] {
        fs::write(&path, &whole[..len]).unwrap();
        let expected = format!("has {len} B, and should have {} B", whole.len());
        assert!(refusal(&path).contains(&expected), "{}", refusal(&path));
    }
    let mut grown = whole.clone();
    grown.push(0);
    fs::write(&path, grown).unwrap();
    assert!(refusal(&path).contains("something was appended"));
    for len in [0, 7, 63] {
        fs::write(&path, &whole[..len]).unwrap();
        assert!(open_source(&path).is_err(), "{len}");
    }
    fs::write(&path, &whole).unwrap();
    assert!(open_source(&path).is_ok());
}

#[test]
fn other_files_and_later_versions_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), FIXTURE);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 2;
    fs::write(&path, &bytes).unwrap();
    assert!(refusal(&path).ends_with("is a slab of version 2; this library reads version 1"));
    fs::write(&path, vec![b'x'; 100_000]).unwrap();
    assert!(refusal(&path).ends_with("is not a slab"));
    let model = fixture("qwen3_moe-mxfp4").join("model.safetensors");
    assert!(refusal(&model).ends_with("is not a slab"));
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused_though_its_checksum_fits() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), FIXTURE);
    let whole = fs::read(&path).unwrap();
    for (from, to, expected) in [
        (r#""experts":5"#, r#""experts":6"#, "there are 15 records"),
        (r#""experts":5"#, r#""experts":0"#, "layer 3 has 0 experts"),
        (
            r#""experts":5"#,
            r#""experts":4000000000"#,
            "4000000000 experts in a layer, and 16384 is the limit",
        ),
        (r#""layer":4"#, r#""layer":3"#, "out of order"),
        (r#""layer":5"#, r#""layer":4096"#, "4096 as a layer's number"),
        (r#""tier":1"#, r#""tier":7"#, "of tier 7, which is not there"),
        (r#""tier":0"#, r#""tier":1"#, "tier 1 should be T0"),
        (r#""hidden":64"#, r#""hidden":63"#, "by their geometry"),
        (r#""hidden":64"#, r#""hidden":4294967295"#, "4294967295 hidden, and 16777216 is the limit"),
        (r#""bits":4"#, r#""bits":7"#, "not a storage format"),
        (r#""alignment_bytes":16384"#, r#""alignment_bytes":4096"#, "aligned to 4096 B"),
        (r#""order":"layer, expert""#, r#""order":"expert, layer""#, "cannot be read"),
        (r#""order""#, r#""surprise":1,"order""#, "cannot be read"),
    ] {
        fs::write(&path, slabs::with_manifest(&whole, |json| json.replacen(from, to, 1))).unwrap();
        let found = open_source(&path).unwrap_err().to_string();
        assert!(found.contains(expected), "{from} as {to}: {found}");
    }
}

#[test]
fn verify_names_every_bad_record_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = packed(directory.path(), FIXTURE);
    let slab = open_source(&path).unwrap();
    let offset = |key| slab.segments(key).unwrap()[0].file_offset_bytes;
    flip(&path, offset(key(3, 4)));
    flip(&path, offset(key(5, 1)) + 17);
    // Behind the last component: no checksum covers it, and it should be zero.
    let padding = offset(key(4, 0)) + slots_layout(&*slab, key(4, 0)).slot_bytes() - 1;
    flip(&path, padding);
    let report = verify(&*slab, &VerifyOptions::default(), |_| ControlFlow::Continue(())).unwrap();
    let bad: Vec<String> = report.bad.iter().map(ToString::to_string).collect();
    assert_eq!(report.bad_records, 3, "{bad:?}");
    assert!(bad[0].starts_with(&format!(
        "L3E4 at offset {} B of {} is damaged: its checksum is ",
        offset(key(3, 4)),
        path.display()
    )));
    assert_eq!(bad[1], format!("L4E0 in {}: the padding at offset {padding} B is not zero", path.display()));
    assert!(bad[2].starts_with(&format!("L5E1 at offset {} B of", offset(key(5, 1)))));
    assert!(!report.is_sound() && report.checksums.is_none());
    assert!(!report.changed.is_empty(), "it was written to while it was open");
}

#[test]
fn a_sound_slab_compares_every_record_and_tells_as_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let slab = open_source(packed(directory.path(), FIXTURE)).unwrap();
    let mut last = (0, 0);
    let report = verify(&*slab, &VerifyOptions { threads: 3 }, |progress| {
        assert!(progress.done_records == 0 || progress.done_records == last.0 + 1);
        last = (progress.done_records, progress.done_bytes);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(report.is_sound());
    assert_eq!((report.records, report.compared_records), (15, 15));
    assert_eq!(last, (15, report.bytes));
    let checksums = report.checksums.unwrap();
    assert!(keys(&*slab).all(|key| checksums.get(key) == slab.checksum(key)));
}

#[test]
fn thread_counts_that_make_no_sense_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let source = open_fixture(FIXTURE);
    for threads in [0, 257] {
        let options = PackOptions { threads, ..PackOptions::default() };
        let error = pack(&*source, directory.path().join("x"), &options, go_on).unwrap_err();
        assert_eq!(error.to_string(), format!("{threads} threads: between 1 and 256 are possible"));
        let error = verify(&*source, &VerifyOptions { threads }, |_| ControlFlow::Continue(())).unwrap_err();
        assert_eq!(error.to_string(), format!("{threads} threads: between 1 and 256 are possible"));
    }
}

#[test]
fn a_slab_at_production_geometry_holds_experts_of_the_published_size() {
    let directory = tempfile::tempdir().unwrap();
    let source = slabs::Synthetic::glm_5_2(3);
    let path = directory.path().join("glm.slab");
    pack(&source, &path, &PackOptions::default(), go_on).unwrap();
    let slab = open_source(&path).unwrap();
    assert_eq!(slab.segments(key(3, 2)).unwrap()[0].len_bytes, 18_939_904);
    assert!(keys(&*slab).all(|key| slot_of(&source, key) == read_slot(&*slab, key)));
}
