//! What the drive does without the library.

use std::{collections::BTreeSet, fs::File, io::Read, time::Instant};

use streamed_experts::{ExpertId, ExpertKey, ExpertSource, FileId};

use crate::common::Failure;

/// How much of a file the measurement reads.
const SAMPLE_BYTES: u64 = 256 << 20;

/// The files that hold experts.
fn files(source: &dyn ExpertSource) -> BTreeSet<FileId> {
    let layers = source.layers().iter();
    let keys = layers
        .flat_map(|layer| (0..layer.experts).map(|expert| ExpertKey::new(layer.layer, ExpertId(expert))));
    keys.filter_map(|key| source.segments(key)).flatten().map(|segment| segment.file).collect()
}

/// Sequential reads of up to [`SAMPLE_BYTES`] from one file, cold where the system lets us say so: GB/s.
pub fn raw_rate(source: &dyn ExpertSource) -> Result<f64, Failure> {
    drop_cached_pages(source);
    let first = files(source).into_iter().next().ok_or("the source has no experts")?;
    let path = source.path(first);
    let mut file = File::open(path).map_err(|e| format!("cannot open {}: {e}", path.display()))?;
    let mut buffer = vec![0; 4 << 20];
    let (mut total, start) = (0u64, Instant::now());
    while total < SAMPLE_BYTES {
        match file.read(&mut buffer)? {
            0 => break,
            read => total += read as u64,
        }
    }
    Ok(total as f64 / start.elapsed().as_secs_f64() / 1e9)
}

/// Asks the system to forget what it has cached of the source's files. Only Linux can be asked; elsewhere pages may be
/// warm, and rates are then those of memory.
pub fn drop_cached_pages(source: &dyn ExpertSource) {
    #[cfg(target_os = "linux")]
    for file in files(source) {
        if let Ok(file) = File::open(source.path(file)) {
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = source;
}
