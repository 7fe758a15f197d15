//! A slab before it is written: what it will hold, and where.

use std::{ops::RangeInclusive, path::Path};

use super::{
    error::PackError,
    origin::{keys, origin_of},
};
use crate::{
    formats::{Head, Manifest, ManifestLayer, ManifestTier, SlabError, SlotLayout},
    ids::{ExpertKey, LayerId},
    sources::{ExpertSource, SparseLayer},
};

/// One record to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) key: ExpertKey,
    /// Position of its tier among the source's.
    pub(super) tier: usize,
    pub(super) offset_bytes: u64,
}

/// Everything that is known before the first expert is read.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) layers: Vec<SparseLayer>,
    pub(super) manifest: Vec<u8>,
    pub(super) head: Head,
    pub(super) records: Vec<Record>,
}

impl Draft {
    /// A draft of the experts of `layers`, or of all.
    pub(super) fn new(
        source: &dyn ExpertSource,
        path: &Path,
        layers: Option<&RangeInclusive<u32>>,
    ) -> Result<Self, PackError> {
        let layers = chosen(source, layers)?;
        let origin =
            origin_of(source, &layers).map_err(|(path, error)| PackError::Origin { path, source: error })?;
        let (mut tiers, mut entries) = (Vec::new(), Vec::new());
        for layer in &layers {
            // Tiers go by their first layer, also where the source has others before them.
            let position = tiers.iter().position(|&tier| tier == layer.tier).unwrap_or_else(|| {
                tiers.push(layer.tier);
                tiers.len() - 1
            });
            let tier = u32::try_from(position).expect("fewer tiers than a u32 counts");
            entries.push(ManifestLayer { layer: layer.layer.0, tier, experts: layer.experts });
        }
        let shapes = tiers.iter().map(|tier| &source.tiers()[tier.index()]);
        let tiers = shapes.map(|tier| ManifestTier::new(&tier.geometry, &tier.layout)).collect();
        let manifest = Manifest::new(tiers, entries, origin).to_json();
        let slot_bytes = |layer: &SparseLayer| layout(source, layer.tier.index()).slot_bytes();
        let count = layers.iter().map(|layer| u64::from(layer.experts)).sum();
        let bytes = layers
            .iter()
            .try_fold(0u64, |sum, layer| {
                sum.checked_add(slot_bytes(layer).checked_mul(layer.experts.into())?)
            })
            .unwrap_or(u64::MAX / 2); // beyond the limit of a slab, which says so
        let head = Head::new(path, &manifest, count, bytes)?;
        let mut offset_bytes = head.records_offset_bytes();
        let mut records = Vec::new();
        for layer in &layers {
            for key in keys(layer) {
                records.push(Record { key, tier: layer.tier.index(), offset_bytes });
                offset_bytes += slot_bytes(layer);
            }
        }
        assert_eq!(offset_bytes, head.file_bytes, "records fill the slab");
        check_manifest(source, path, &layers, &manifest)?;
        Ok(Self { layers, manifest, head, records })
    }
}

/// The layout of a tier.
pub(super) fn layout(source: &dyn ExpertSource, tier: usize) -> &SlotLayout {
    &source.tiers()[tier].layout
}

fn chosen(
    source: &dyn ExpertSource,
    layers: Option<&RangeInclusive<u32>>,
) -> Result<Vec<SparseLayer>, PackError> {
    let (Some(low), Some(high)) = (source.layers().first(), source.layers().last()) else {
        return Err(PackError::Empty);
    };
    let asked = |layer: &&SparseLayer| layers.is_none_or(|range| range.contains(&layer.layer.0));
    let chosen: Vec<_> = source.layers().iter().filter(asked).copied().collect();
    match layers {
        Some(range) if chosen.is_empty() => Err(PackError::NoLayers {
            first: LayerId(*range.start()),
            last: LayerId(*range.end()),
            low: low.layer,
            high: high.layer,
        }),
        _ => Ok(chosen),
    }
}

/// A manifest must say what the source says: read back, every layer has its geometry.
fn check_manifest(
    source: &dyn ExpertSource,
    path: &Path,
    layers: &[SparseLayer],
    json: &[u8],
) -> Result<(), PackError> {
    let manifest = Manifest::parse(path, json)?;
    for (entry, layer) in manifest.layers.iter().zip(layers) {
        let written = manifest.tiers[entry.tier as usize].geometry(path)?;
        let known = source.tiers()[layer.tier.index()].geometry;
        if written != known {
            let reason = format!("{:?} cannot be written down: {known:?} reads as {written:?}", layer.layer);
            return Err(SlabError::Manifest { path: path.into(), reason }.into());
        }
    }
    Ok(())
}
