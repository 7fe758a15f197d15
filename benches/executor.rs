//! A layer's forward at real geometry: resident and streaming, at 1, 8 and 64 rows, for every family of this build.
//!
//! Each row goes to 2 of 8 experts. *Resident*: every expert is a hit. *Streaming*: every expert is a miss; the file was just
//! written, so that reads come from the system's page cache and the drive is not measured. Throughput is in bytes of the
//! experts used. Where we lose: MLX's CPU products are scalar on x86, so the stock family's times here say nothing of a
//! GPU.

#[path = "common/records.rs"]
mod records;

use std::{hint::black_box, sync::Arc, time::Duration};

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use records::Records;
use streamed_experts::{
    BatchPlan, Budget, ExecutorOptions, ExpertGeometry, ExpertSource, Family, FloatType, LayerId,
    Quantisation, Routes, StreamedExpertExecutor,
};

const EXPERTS: u32 = 8;
const RANKS: usize = 2;
const FAMILIES: &[Family] =
    if cfg!(feature = "mlx") { &[Family::Stock, Family::Host] } else { &[Family::Host] };

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
            Arc::new(Records::write(folder.path(), name, geometry, 1, EXPERTS).expect("records"));
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
