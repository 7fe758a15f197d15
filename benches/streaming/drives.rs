//! Two drives with the same bytes, whose rates are limited.

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use streamed_experts::{ExpertKey, ExpertSource, FileId, ReadMode, Segment, SparseLayer, Tier};

use super::{Effort, data::Data, lease, median};

/// The slab's experts, read from nothing: file 0 on one drive, file 1 on another, each with its rate.
#[derive(Debug)]
struct Limited {
    inner: Arc<dyn ExpertSource>,
    bytes_per_second: [f64; 2],
    /// When each drive has served what it was asked for.
    free: [Mutex<Option<Instant>>; 2],
}

impl ExpertSource for Limited {
    fn tiers(&self) -> &[Tier] {
        self.inner.tiers()
    }

    fn layers(&self) -> &[SparseLayer] {
        self.inner.layers()
    }

    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        self.inner.segments(key)
    }

    fn read_at(&self, file: FileId, buffer: &mut [u8], _: u64) -> io::Result<usize> {
        let drive = file.index();
        let time = Duration::from_secs_f64(buffer.len() as f64 / self.bytes_per_second[drive]);
        let mut free = self.free[drive].lock().expect("no reader panics");
        let now = Instant::now();
        // A drive that nobody asked for a moment has not saved that moment up; a thread that woke late has.
        let begins = free
            .filter(|&free| now.saturating_duration_since(free) < Duration::from_millis(2))
            .unwrap_or(now);
        let ends = begins + time;
        *free = Some(ends);
        drop(free);
        std::thread::sleep(ends.saturating_duration_since(Instant::now()));
        Ok(buffer.len())
    }

    fn path(&self, file: FileId) -> &Path {
        self.inner.path(file)
    }

    fn drive(&self, file: FileId) -> u64 {
        file.0.into()
    }

    fn mirror(&self, file: FileId) -> Option<FileId> {
        (file == FileId(0)).then_some(FileId(1))
    }
}

/// Bytes a second of both ÷ the sum of their rates.
pub(crate) fn mirror(data: &Data, effort: Effort) -> Vec<(String, f64)> {
    let mut figures = Vec::new();
    for (name, rates) in [("mirror_1_to_1", [0.3e9, 0.3e9]), ("mirror_3_to_1", [0.45e9, 0.15e9])] {
        let source = Limited { inner: data.slab(), bytes_per_second: rates, free: Default::default() };
        let manager = lease::manager(Arc::new(source), ReadMode::Buffered, (4, 4 << 20));
        let ratio =
            median(effort.rounds.min(3), |_| lease::rate(&manager, effort.experts) / (rates[0] + rates[1]));
        figures.push((name.to_owned(), ratio));
    }
    let least = figures.iter().map(|figure| figure.1).fold(f64::INFINITY, f64::min);
    figures.push(("mirror".into(), least));
    figures
}
