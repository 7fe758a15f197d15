//! What tells one source from another of the same shape.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use crate::{
    formats::{Origin, OriginFile, bytes_checksum},
    ids::{ExpertId, ExpertKey, FileId},
    sources::{ExpertSource, Segment, SparseLayer},
};

/// How much of each place is looked at.
const SAMPLE_BYTES: usize = 4096;

/// A file that could not be read, and why.
pub(super) type OriginError = (PathBuf, io::Error);

/// The fingerprint of the experts of `layers`, and the files they lie in.
///
/// Covers where every expert lies, the beginning of each of its files, and the beginning of every read of the first, the
/// middle and the last expert of each layer: a fine-tuned twin of a model differs there.
pub(super) fn origin_of(source: &dyn ExpertSource, layers: &[SparseLayer]) -> Result<Origin, OriginError> {
    let (mut seen, mut files) = (Vec::new(), BTreeSet::new());
    let sample = |file: FileId, offset_bytes: u64, len: usize| {
        let mut bytes = vec![0; len];
        let got = read_up_to(source, file, &mut bytes, offset_bytes)
            .map_err(|error| (source.path(file).to_owned(), error))?;
        Ok(bytes_checksum(&bytes[..got]).to_le_bytes())
    };
    for layer in layers {
        seen.extend(format!("{layer:?}{:?}", source.tiers()[layer.tier.index()].geometry).into_bytes());
        for key in keys(layer) {
            let chosen = [0, layer.experts / 2, layer.experts.saturating_sub(1)].contains(&key.expert.0);
            for segment in source.segments(key).unwrap_or_default() {
                seen.extend(place(segment));
                files.insert(segment.file);
                if chosen {
                    let len = usize::try_from(segment.len_bytes).unwrap_or(usize::MAX).min(SAMPLE_BYTES);
                    seen.extend(sample(segment.file, segment.file_offset_bytes, len)?);
                }
            }
        }
        // Two numbers stand for all that was seen of a layer: a large model has millions of them.
        let so_far = bytes_checksum(&seen);
        seen.clear();
        seen.extend(so_far.to_le_bytes());
    }
    for &file in &files {
        seen.extend(sample(file, 0, SAMPLE_BYTES)?);
    }
    Ok(Origin::new(bytes_checksum(&seen), files.iter().map(|&file| file_entry(source.path(file))).collect()))
}

/// Every file that holds an expert of `layers`.
pub(super) fn files_of(source: &dyn ExpertSource, layers: &[SparseLayer]) -> BTreeSet<FileId> {
    let segments = layers.iter().flat_map(keys).filter_map(|key| source.segments(key)).flatten();
    segments.map(|segment| segment.file).collect()
}

/// The experts of a layer.
pub(super) fn keys(layer: &SparseLayer) -> impl Iterator<Item = ExpertKey> + use<> {
    let SparseLayer { layer, experts, .. } = *layer;
    (0..experts).map(move |expert| ExpertKey::new(layer, ExpertId(expert)))
}

fn place(segment: &Segment) -> Vec<u8> {
    let Segment { file, file_offset_bytes, slot_offset_bytes, len_bytes } = *segment;
    [u64::from(file.0), file_offset_bytes, slot_offset_bytes, len_bytes]
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

fn file_entry(path: &Path) -> OriginFile {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let metadata = std::fs::metadata(path).ok();
    let modified = metadata.as_ref().and_then(|metadata| metadata.modified().ok());
    let since = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
    let modified_ns = since.and_then(|since| u64::try_from(since.as_nanos()).ok());
    OriginFile::new(name, metadata.map(|metadata| metadata.len()), modified_ns)
}

/// Reads until the buffer is full or the file ends.
fn read_up_to(
    source: &dyn ExpertSource,
    file: FileId,
    buffer: &mut [u8],
    offset_bytes: u64,
) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match source.read_at(file, &mut buffer[done..], offset_bytes + done as u64) {
            Ok(0) => break,
            Ok(got) => done += got.min(buffer.len() - done),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
