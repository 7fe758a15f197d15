//! Checksums of experts that have just been read.

use super::error::LoadError;
use crate::{
    formats::{SlotLayout, record_checksum},
    ids::{ExpertId, ExpertKey, LayerId, TierId},
    sources::ExpertSource,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// When an expert's bytes are compared with its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumMode {
    /// Never.
    Off,
    /// The first time an expert is read that the source has a checksum for: a slab's experts, or those of a source that was
    /// wrapped in [`Checksummed`](crate::Checksummed). Others are used as they are read.
    #[default]
    WherePresent,
    /// The first time it is read, and again until that succeeds. A source without a checksum for every expert is refused.
    FirstLoad,
    /// Every time it is read. A source without a checksum for every expert is refused.
    Always,
}

/// Which loads are checked. Knows what has been checked before; allocates nothing after it is made.
#[derive(Debug)]
pub(crate) struct Checks {
    mode: ChecksumMode,
    /// Layers with the position of their expert 0 in `checked`, ascending.
    layers: Vec<(LayerId, usize)>,
    /// One bit for each expert that has once been found sound. Empty if the mode is `Always`.
    checked: Vec<AtomicU64>,
}

impl Checks {
    /// Checks for `source`.
    ///
    /// # Errors
    /// The first expert without a checksum, if all are to be checked.
    pub(crate) fn new(source: &dyn ExpertSource, mode: ChecksumMode) -> Result<Self, ExpertKey> {
        let off = Self { mode: ChecksumMode::Off, layers: Vec::new(), checked: Vec::new() };
        if mode == ChecksumMode::Off {
            return Ok(off);
        }
        let (mut layers, mut experts, mut with_checksum) = (Vec::new(), 0, 0);
        for layer in source.layers() {
            for expert in 0..layer.experts {
                let key = ExpertKey::new(layer.layer, ExpertId(expert));
                match (source.checksum(key), mode) {
                    (Some(_), _) => with_checksum += 1,
                    (None, ChecksumMode::WherePresent) => {}
                    (None, _) => return Err(key),
                }
            }
            layers.push((layer.layer, experts));
            experts += layer.experts as usize;
        }
        if with_checksum == 0 {
            return Ok(off);
        }
        let words = if mode == ChecksumMode::Always { 0 } else { experts.div_ceil(64) };
        let checked = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { mode, layers, checked })
    }

    /// Compares an expert that has been read with its checksum, if its time has come.
    pub(super) fn check(
        &self,
        source: &dyn ExpertSource,
        tier: TierId,
        key: ExpertKey,
        slot: &[u8],
    ) -> Result<(), LoadError> {
        if self.mode == ChecksumMode::Off {
            return Ok(());
        }
        let bit = self.bit(key);
        // Relaxed: the bit is a hint that guards no other memory; two readers that miss it check the expert twice.
        if bit.is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0) {
            return Ok(());
        }
        if source.checksum(key).is_none() {
            return Ok(());
        }
        check_record(source, &source.tiers()[tier.index()].layout, key, slot)?;
        if let Some((word, bit)) = bit {
            word.fetch_or(bit, Relaxed);
        }
        Ok(())
    }

    fn bit(&self, key: ExpertKey) -> Option<(&AtomicU64, u64)> {
        let layer = self.layers.binary_search_by_key(&key.layer, |&(layer, _)| layer).ok()?;
        let position = self.layers[layer].1 + key.expert.index();
        Some((self.checked.get(position / 64)?, 1 << (position % 64)))
    }
}

/// Compares an expert's bytes with the checksum that its source has; its checksum.
///
/// # Errors
/// [`LoadError::Checksum`] if they differ. Without anything to compare with, there is no error.
pub(crate) fn check_record(
    source: &dyn ExpertSource,
    layout: &SlotLayout,
    key: ExpertKey,
    slot: &[u8],
) -> Result<u64, LoadError> {
    let found = record_checksum(layout, slot);
    match source.checksum(key) {
        Some(expected) if expected != found => {
            let segments = source.segments(key).ok_or(LoadError::NoSegments { key })?;
            let first = segments.first().ok_or(LoadError::NoSegments { key })?;
            Err(LoadError::Checksum {
                key,
                path: source.path(first.file).into(),
                offset_bytes: first.file_offset_bytes,
                expected,
                found,
                change: segments.iter().find_map(|segment| source.changed(segment.file)),
            })
        }
        _ => Ok(found),
    }
}
