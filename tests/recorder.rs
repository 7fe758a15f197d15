//! If this fails, a recording slows the model down, fills the disk, or cannot be replayed.

use std::fs;

use streamed_experts::{LayerId, RecorderLimits, RouteRecorder, Routes, Trace};

fn routes(rows: &[&[(u32, f32)]]) -> Routes {
    let rows: Vec<Vec<_>> = rows
        .iter()
        .map(|row| row.iter().map(|&(e, w)| (streamed_experts::ExpertId(e), w)).collect())
        .collect();
    Routes::from_ragged(&rows, 64).unwrap()
}

#[test]
fn what_was_recorded_can_be_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    let mut recorder =
        RouteRecorder::create(&path, RecorderLimits { weights: true, ..RecorderLimits::default() }).unwrap();
    assert!(recorder.record(0, LayerId(3), &routes(&[&[(7, 0.5), (2, 0.25)], &[(2, f32::NAN)]])).unwrap());
    assert!(recorder.record(0, LayerId(5), &routes(&[&[(1, 1.0)], &[]])).unwrap());
    assert!(recorder.record(1, LayerId(3), &routes(&[&[(9, 1.0)]])).unwrap());
    let text = fs::read_to_string(&path).unwrap();
    let first = "{\"turn\":0,\"layer\":3,\"rows\":2,\"experts\":[7,2,2],\"weights\":[0.5,0.25,null]}";
    assert_eq!(text.lines().next(), Some(first));
    assert_eq!(recorder.written_bytes(), text.len() as u64);
    let trace = Trace::read(&path).unwrap();
    let read: Vec<_> = trace.requests().map(|r| (r.forward, r.layer.0, r.experts.len())).collect();
    assert_eq!(read, [(0, 3, 2), (0, 5, 1), (1, 3, 1)]);
}

#[test]
fn a_recording_ends_with_a_whole_line_before_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    let limits = RecorderLimits { file_bytes: 100, ..RecorderLimits::default() };
    let mut recorder = RouteRecorder::create(&path, limits).unwrap();
    let written = (0..9).map(|turn| recorder.record(turn, LayerId(0), &routes(&[&[(1, 1.0)]])).unwrap());
    let written = written.filter(|&written| written).count();
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.len() <= 100 && text.ends_with('\n') && text.lines().count() == written && written == 2,
        "{text}"
    );
    assert!(recorder.is_full());
}

#[test]
fn an_earlier_recording_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    fs::write(&path, "mine").unwrap();
    let error = RouteRecorder::create(&path, RecorderLimits::default()).unwrap_err().to_string();
    assert!(error.contains("trace.jsonl: cannot make the trace"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
}
