//! A layer's forward at real geometry: resident and streaming, at 1, 8 and 64 rows, for every family of this build.
//!
//! Each row goes to 2 of 8 experts. *Resident*: every expert is a hit. *Streaming*: every expert is a miss; the file was just
//! written, so that reads come from the system's page cache and the drive is not measured. Throughput is in bytes of the
//! experts used. Where we lose: MLX's CPU products are scalar on x86, so the stock family's times here say nothing of a
//! GPU.

use std::{
    fs::File,
    hint::black_box,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use streamed_experts::{
    BatchPlan, Budget, ExecutorOptions, ExpertGeometry, ExpertKey, ExpertSource, Family, FileId, FloatType,
    LayerId, Part, Projection, Quantisation, Routes, Segment, SlotLayout, SparseLayer,
    StreamedExpertExecutor, Tier, TierId,
};

const EXPERTS: u32 = 8;
const RANKS: usize = 2;
const FAMILIES: &[Family] =
    if cfg!(feature = "mlx") { &[Family::Stock, Family::Host] } else { &[Family::Host] };

/// One layer of seeded experts, one record each, in slot layout.
#[derive(Debug)]
struct Records {
    path: PathBuf,
    file: File,
    tiers: [Tier; 1],
    layers: [SparseLayer; 1],
    segments: Vec<[Segment; 1]>,
}

impl Records {
    fn write(folder: &Path, name: &str, geometry: ExpertGeometry) -> io::Result<Self> {
        let layout = SlotLayout::new(&geometry).map_err(io::Error::other)?;
        let path = folder.join(name);
        let mut random = fastrand::Rng::with_seed(1);
        let mut out = File::create(&path)?;
        let mut record = vec![0; layout.slot_bytes() as usize];
        for _ in 0..EXPERTS {
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
            layers: [SparseLayer { layer: LayerId(0), tier: TierId(0), experts: EXPERTS }],
            segments: (0..EXPERTS).map(|expert| [segment(expert)]).collect(),
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
        self.segments.get(key.expert.index()).map(|segments| &segments[..])
    }

    fn read_at(&self, _: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset_bytes)
    }

    fn path(&self, _: FileId) -> &Path {
        &self.path
    }
}

fn plan(rows: usize) -> BatchPlan {
    let experts: Vec<u32> = (0..(rows * RANKS) as u32).map(|pair| pair % EXPERTS).collect();
    let routes = Routes::from_top_k(rows, RANKS, &experts, &vec![0.5; rows * RANKS], EXPERTS);
    BatchPlan::new(&routes.expect("routes are well formed"), EXPERTS).expect("the plan fits the layer")
}

fn forward(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let affine = Quantisation::Affine { bits: 4, group: 64, scales: FloatType::Bf16 };
    let signed = Quantisation::Signed { bits: 4, group: None };
    for (name, geometry) in [
        ("qwen3-30b", ExpertGeometry::uniform(2048, 768, affine)),
        ("glm-5.2", ExpertGeometry::uniform(6144, 2048, signed)),
    ] {
        let source: Arc<dyn ExpertSource> =
            Arc::new(Records::write(folder.path(), name, geometry).expect("records"));
        let slot_bytes = source.tiers()[0].layout.slot_bytes();
        for &family in FAMILIES {
            for (kind, resident) in [("resident", EXPERTS), ("streaming", 1)] {
                let budget = Budget {
                    working_slots: EXPERTS,
                    ..Budget::new(slot_bytes * u64::from(EXPERTS + resident))
                };
                let options = ExecutorOptions { family, ..ExecutorOptions::new(budget) };
                let mut executor =
                    StreamedExpertExecutor::open(source.clone(), &options).expect("an executor");
                let mut group = c.benchmark_group(format!("{name}/{}/{kind}", family.name()));
                group
                    .sampling_mode(SamplingMode::Flat)
                    .sample_size(10)
                    .measurement_time(Duration::from_secs(2));
                for rows in [1, 8, 64] {
                    let plan = plan(rows);
                    let input = vec![0.5; rows * geometry.hidden as usize];
                    let record_bytes = source.tiers()[0].layout.record_bytes();
                    group.throughput(Throughput::Bytes(record_bytes * plan.unique_experts() as u64));
                    group.bench_with_input(BenchmarkId::from_parameter(rows), &plan, |b, plan| {
                        b.iter(|| {
                            black_box(
                                executor.execute_rows(LayerId(0), &input, plan, None).expect("a forward"),
                            )
                        });
                    });
                }
            }
        }
    }
}

criterion_group!(benches, forward);
criterion_main!(benches);
