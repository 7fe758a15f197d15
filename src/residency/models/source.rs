//! A source in memory whose experts are filled with their number.

use std::{io, path::Path};

use crate::{
    formats::{ExpertGeometry, Quantisation, SlotLayout},
    ids::{ExpertId, ExpertKey, FileId, LayerId, TierId},
    sources::{ExpertSource, Segment, SparseLayer, Tier},
};

#[derive(Debug)]
pub(super) struct NumberedExperts {
    tiers: [Tier; 1],
    layers: [SparseLayer; 1],
    segments: Vec<Vec<Segment>>,
    /// An expert that cannot be read.
    broken: Option<ExpertId>,
}

pub(super) const LAYER: LayerId = LayerId(0);

impl NumberedExperts {
    pub(super) fn new(experts: u32, broken: Option<ExpertId>) -> Self {
        let geometry = ExpertGeometry::uniform(8, 8, Quantisation::Signed { bits: 8, group: None });
        let layout = SlotLayout::new(&geometry).unwrap();
        let len_bytes = layout.slot_bytes();
        let segment = |expert: u32| Segment {
            file: FileId(0),
            file_offset_bytes: u64::from(expert) * len_bytes,
            slot_offset_bytes: 0,
            len_bytes,
        };
        Self {
            segments: (0..experts).map(|expert| vec![segment(expert)]).collect(),
            layers: [SparseLayer { layer: LAYER, tier: TierId(0), experts }],
            tiers: [Tier { geometry, layout }],
            broken,
        }
    }

    pub(super) fn slot_bytes(&self) -> u64 {
        self.tiers[0].layout.slot_bytes()
    }
}

impl ExpertSource for NumberedExperts {
    fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    fn layers(&self) -> &[SparseLayer] {
        &self.layers
    }

    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        self.segments.get(key.expert.index()).map(Vec::as_slice)
    }

    fn read_at(&self, _: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let expert = ExpertId(u32::try_from(offset_bytes / self.slot_bytes()).unwrap());
        if self.broken == Some(expert) {
            return Err(io::Error::other("broken"));
        }
        buffer.fill(u8::try_from(expert.0).unwrap() + 1);
        Ok(buffer.len())
    }

    fn path(&self, _: FileId) -> &Path {
        Path::new("experts")
    }
}
