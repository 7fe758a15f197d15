//! One layer of seeded random experts, in memory: what is measured is computing, not reading.

use std::{io, path::Path};

use streamed_experts::{
    ExpertGeometry, ExpertKey, ExpertSource, FileId, FloatType, LayerId, Part, Projection, Quantisation,
    Segment, SlotLayout, SparseLayer, Tier, TierId,
};

use crate::common::Failure;

/// Different records; experts beyond them repeat.
const RECORDS: u64 = 8;

/// The layer.
#[derive(Debug)]
pub struct Memory {
    bytes: Vec<u8>,
    tiers: [Tier; 1],
    layers: [SparseLayer; 1],
    segments: Vec<[Segment; 1]>,
}

impl Memory {
    pub fn new(geometry: ExpertGeometry, experts: u32) -> Result<Self, Failure> {
        let layout = SlotLayout::new(&geometry)?;
        let slot_bytes = layout.slot_bytes();
        let mut bytes = vec![0; (RECORDS * slot_bytes) as usize];
        let mut random = fastrand::Rng::with_seed(1);
        for record in bytes.chunks_exact_mut(slot_bytes as usize) {
            fill(record, &geometry, &layout, &mut random);
        }
        let segment = |expert| Segment {
            file: FileId(0),
            file_offset_bytes: u64::from(expert) % RECORDS * slot_bytes,
            slot_offset_bytes: 0,
            len_bytes: slot_bytes,
        };
        Ok(Self {
            bytes,
            tiers: [Tier { geometry, layout }],
            layers: [SparseLayer { layer: LayerId(0), tier: TierId(0), experts }],
            segments: (0..experts).map(|expert| [segment(expert)]).collect(),
        })
    }

    /// Bytes that one expert's products read.
    pub fn expert_bytes(&self) -> u64 {
        let layout = &self.tiers[0].layout;
        let parts =
            Projection::ALL.into_iter().flat_map(|projection| Part::ALL.map(|part| (projection, part)));
        parts
            .filter_map(|(projection, part)| layout.range(projection, part))
            .map(|range| range.end - range.start)
            .sum()
    }
}

/// Random codes, and scales that keep the outputs near 1.
fn fill(record: &mut [u8], geometry: &ExpertGeometry, layout: &SlotLayout, random: &mut fastrand::Rng) {
    for projection in Projection::ALL {
        let shape = geometry.projection(projection);
        for part in Part::ALL {
            let Some(range) = layout.range(projection, part) else { continue };
            let bytes = &mut record[range.start as usize..range.end as usize];
            let step = 0.5 / (shape.columns as f32).sqrt() / (1u32 << (shape.quantisation.bits() - 2)) as f32;
            let value = step * if part == Part::Biases { -7.5 } else { 1.0 };
            match (part, shape.quantisation) {
                (Part::Weight, _) => random.fill(bytes),
                (_, Quantisation::Affine { scales: FloatType::Bf16, .. }) => {
                    let scale = half::bf16::from_f32(value).to_le_bytes();
                    bytes.chunks_exact_mut(2).for_each(|chunk| chunk.copy_from_slice(&scale));
                }
                _ => bytes.chunks_exact_mut(4).for_each(|chunk| chunk.copy_from_slice(&value.to_le_bytes())),
            }
        }
    }
}

impl ExpertSource for Memory {
    fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    fn layers(&self) -> &[SparseLayer] {
        &self.layers
    }

    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        self.segments.get(key.expert.index()).map(|segments| &segments[..])
    }

    fn read_at(&self, _: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let rest = &self.bytes[(offset_bytes as usize).min(self.bytes.len())..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn path(&self, _: FileId) -> &Path {
        Path::new("in memory")
    }
}
