//! The answers of a source: tiers, layers, and the reads of every expert in one flat list.

use std::fmt;

use super::{Segment, SparseLayer, Tier, error::SourceError};
use crate::{
    formats::{ExpertGeometry, GeometryError, SlotLayout},
    ids::{ExpertKey, FileId, LayerId, TierId},
};

/// Reads that one expert may need: four parts of three projections, none of them neighbours.
pub(super) const MAX_SEGMENTS: usize = 12;

/// Tiers that a model may have. Each has a bank of its own.
const MAX_TIERS: usize = 256;

/// Experts that a model may have in all its layers together (GLM-5.2: 19,456).
const MAX_EXPERTS_IN_ALL: usize = 1 << 18;

/// Tiers, layers and reads, filled once while a source is opened.
///
/// # Invariants
/// 1. `layers` ascend; `first_experts` has one entry per layer: the position of its expert 0 among all experts.
/// 2. `starts` has one entry more than there are experts; expert n's reads are `segments[starts[n]..starts[n + 1]]`.
/// 3. The reads of an expert do not overlap in the slot. They cover exactly the components of its tier's layout, or, if it
///    is stored as the slot is laid out, the whole slot.
#[derive(Default)]
pub(super) struct ExpertTable {
    tiers: Vec<Tier>,
    layers: Vec<SparseLayer>,
    first_experts: Vec<usize>,
    segments: Vec<Segment>,
    starts: Vec<u32>,
}

/// Counts instead of contents: a model has tens of thousands of reads.
impl fmt::Debug for ExpertTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpertTable")
            .field("tiers", &self.tiers.len())
            .field("layers", &self.layers.len())
            .field("experts", &self.starts.len().saturating_sub(1))
            .field("segments", &self.segments.len())
            .finish()
    }
}

impl ExpertTable {
    /// The tier of a geometry, made if it is new.
    ///
    /// # Errors
    /// A geometry that has no layout, or one tier too many.
    pub(super) fn tier(&mut self, layer: LayerId, geometry: ExpertGeometry) -> Result<TierId, SourceError> {
        let position = match self.tiers.iter().position(|tier| tier.geometry == geometry) {
            Some(position) => position,
            None if self.tiers.len() == MAX_TIERS => {
                return Err(SourceError::TooManyTiers { layer, limit: MAX_TIERS });
            }
            None => {
                let layout = SlotLayout::new(&geometry)
                    .map_err(|reason: GeometryError| SourceError::Layout { layer, reason })?;
                self.tiers.push(Tier { geometry, layout });
                self.tiers.len() - 1
            }
        };
        Ok(TierId(u32::try_from(position).expect("at most MAX_TIERS")))
    }

    /// Begins a layer; its experts follow in order.
    ///
    /// # Errors
    /// More experts than any model has.
    pub(super) fn begin_layer(
        &mut self,
        layer: LayerId,
        tier: TierId,
        experts: u32,
    ) -> Result<(), SourceError> {
        assert!(self.layers.last().is_none_or(|last| last.layer < layer), "{layer} out of order");
        if self.starts.is_empty() {
            self.starts.push(0);
        }
        let first_expert = self.starts.len() - 1;
        let in_all = first_expert + experts as usize;
        if in_all > MAX_EXPERTS_IN_ALL {
            return Err(SourceError::TooManyExperts { layer, experts: in_all, limit: MAX_EXPERTS_IN_ALL });
        }
        self.first_experts.push(first_expert);
        self.layers.push(SparseLayer { layer, tier, experts });
        Ok(())
    }

    /// Adds the next expert of the layer begun last: one read per component, in any order.
    ///
    /// Reads are kept in file order, so that a drive is asked to go forwards; two become one if they are neighbours both
    /// in the file and in the slot.
    pub(super) fn push_expert(&mut self, mut reads: Vec<Segment>) {
        let tier = self.layers.last().expect("a layer was begun").tier;
        reads.sort_unstable_by_key(|read| (read.file, read.file_offset_bytes));
        let first = self.segments.len();
        for read in reads {
            match self.segments[first..].last_mut() {
                Some(last) if follows(last, &read) => last.len_bytes += read.len_bytes,
                _ => self.segments.push(read),
            }
        }
        let own = &self.segments[first..];
        assert!(own.len() <= MAX_SEGMENTS, "{} reads for one expert", own.len());
        let covered: u64 = own.iter().map(|read| read.len_bytes).sum();
        assert_eq!(covered, self.tiers[tier.index()].layout.record_bytes(), "reads cover the expert");
        self.starts
            .push(u32::try_from(self.segments.len()).expect("at most MAX_EXPERTS_IN_ALL × MAX_SEGMENTS"));
    }

    /// Adds the next expert of the layer begun last, stored in one piece as its slot is laid out.
    pub(super) fn push_record(&mut self, file: FileId, file_offset_bytes: u64) {
        let tier = self.layers.last().expect("a layer was begun").tier;
        let len_bytes = self.tiers[tier.index()].layout.slot_bytes();
        self.segments.push(Segment { file, file_offset_bytes, slot_offset_bytes: 0, len_bytes });
        self.starts
            .push(u32::try_from(self.segments.len()).expect("at most MAX_EXPERTS_IN_ALL × MAX_SEGMENTS"));
    }

    /// The geometries.
    pub(super) fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// The layers.
    pub(super) fn layers(&self) -> &[SparseLayer] {
        &self.layers
    }

    /// The position of an expert among all of them.
    pub(super) fn position(&self, key: ExpertKey) -> Option<usize> {
        let layer = self.layers.binary_search_by_key(&key.layer, |layer| layer.layer).ok()?;
        (key.expert.0 < self.layers[layer].experts).then(|| self.first_experts[layer] + key.expert.index())
    }

    /// The reads of an expert.
    pub(super) fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        let expert = self.position(key)?;
        let (start, end) = (*self.starts.get(expert)?, *self.starts.get(expert + 1)?);
        Some(&self.segments[start as usize..end as usize])
    }

    /// Gives back what growing has over-allocated, and checks that every layer has its experts.
    pub(super) fn finish(mut self) -> Self {
        let experts: usize = self.layers.iter().map(|layer| layer.experts as usize).sum();
        assert_eq!(self.starts.len(), experts + 1, "one start per expert and an end");
        self.segments.shrink_to_fit();
        self.starts.shrink_to_fit();
        self
    }
}

/// Whether `next` continues `last` in the file and in the slot.
fn follows(last: &Segment, next: &Segment) -> bool {
    last.file == next.file
        && last.file_offset_bytes + last.len_bytes == next.file_offset_bytes
        && last.slot_offset_bytes + last.len_bytes == next.slot_offset_bytes
}
