//! A file of experts to read.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use streamed_experts::{
    ExpertGeometry, ExpertKey, ExpertSource, FileId, FloatType, LayerId, Part, Projection, Quantisation,
    Segment, SlotLayout, SparseLayer, Tier, TierId,
};

/// Layers of seeded experts, one record each, in slot layout, one after another in a file.
#[derive(Debug)]
pub(crate) struct Records {
    path: PathBuf,
    file: File,
    tiers: [Tier; 1],
    layers: Vec<SparseLayer>,
    experts: u32,
    segments: Vec<[Segment; 1]>,
}

impl Records {
    pub(crate) fn write(
        folder: &Path,
        name: &str,
        geometry: ExpertGeometry,
        layers: u32,
        experts: u32,
    ) -> io::Result<Self> {
        let layout = SlotLayout::new(&geometry).map_err(io::Error::other)?;
        let path = folder.join(name);
        let mut random = fastrand::Rng::with_seed(1);
        let mut out = File::create(&path)?;
        let mut record = vec![0; layout.slot_bytes() as usize];
        for _ in 0..layers * experts {
            fill(&mut record, &geometry, &layout, &mut random);
            out.write_all(&record)?;
        }
        out.sync_all()?;
        let slot_bytes = layout.slot_bytes();
        let segment = |expert| Segment {
            file: FileId(0),
            file_offset_bytes: u64::from(expert) * slot_bytes,
            slot_offset_bytes: 0,
            len_bytes: slot_bytes,
        };
        Ok(Self {
            file: File::open(&path)?,
            path,
            tiers: [Tier { geometry, layout }],
            layers: (0..layers)
                .map(|layer| SparseLayer { layer: LayerId(layer), tier: TierId(0), experts })
                .collect(),
            experts,
            segments: (0..layers * experts).map(|expert| [segment(expert)]).collect(),
        })
    }
}

/// Random codes, and scales that keep the outputs near 1.
fn fill(record: &mut [u8], geometry: &ExpertGeometry, layout: &SlotLayout, random: &mut fastrand::Rng) {
    for projection in Projection::ALL {
        let shape = geometry.projection(projection);
        for part in Part::ALL {
            let Some(range) = layout.range(projection, part) else { continue };
            let bytes = &mut record[range.start as usize..range.end as usize];
            let value = 0.25 / (shape.columns as f32).sqrt() * if part == Part::Biases { -7.5 } else { 1.0 };
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

impl ExpertSource for Records {
    fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    fn layers(&self) -> &[SparseLayer] {
        &self.layers
    }

    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        let first = (key.layer.0 * self.experts) as usize;
        let known = key.layer.index() < self.layers.len() && key.expert.0 < self.experts;
        known.then(|| &self.segments[first + key.expert.index()][..])
    }

    fn read_at(&self, _: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset_bytes)
    }

    fn path(&self, _: FileId) -> &Path {
        &self.path
    }
}
