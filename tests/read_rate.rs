//! If this fails, the rate that the examples print is not one that a drive could be held to.

#[path = "../examples/common/timed.rs"]
#[allow(unreachable_pub, reason = "an example's file")]
mod timed;

use std::{
    io,
    path::Path,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use streamed_experts::{ExpertKey, ExpertSource, FileId, Segment, SparseLayer, Tier, open_source};
use timed::Timed;

const READERS: usize = 4;
const READ: Duration = Duration::from_millis(40);
const BYTES: usize = 1000;

/// Each read waits until all readers are reading, and then takes its time.
#[derive(Debug)]
struct Slow(Box<dyn ExpertSource>, Barrier);

impl ExpertSource for Slow {
    fn tiers(&self) -> &[Tier] {
        self.0.tiers()
    }

    fn layers(&self) -> &[SparseLayer] {
        self.0.layers()
    }

    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        self.0.segments(key)
    }

    fn read_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.1.wait();
        thread::sleep(READ);
        self.0.read_at(file, buffer, offset_bytes)
    }

    fn path(&self, file: FileId) -> &Path {
        self.0.path(file)
    }
}

#[test]
fn reads_at_the_same_time_take_their_time_once_and_pauses_take_none() {
    let model = open_source("tests/fixtures/qwen3_moe-affine4-g64-bf16").unwrap();
    let source = Timed::new(Arc::new(Slow(model, Barrier::new(READERS))));
    let mut reading = Duration::ZERO;
    for _ in 0..2 {
        let begin = Instant::now();
        thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| assert_eq!(source.read_at(FileId(0), &mut [0; BYTES], 0).unwrap(), BYTES));
            }
        });
        reading += begin.elapsed();
        thread::sleep(10 * READ);
    }
    let seconds = (2 * READERS * BYTES) as f64 / 1e9 / source.gbps();
    assert!(seconds >= 2.0 * READ.as_secs_f64(), "{seconds} s for two rounds of {READ:?}");
    assert!(seconds <= reading.as_secs_f64(), "{seconds} s in {reading:?} of reading");
}
