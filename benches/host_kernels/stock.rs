//! The host family against MLX's stock family, both as an executor runs them.

use std::{hint::black_box, io, path::Path, sync::Arc};

use streamed_experts::{
    BatchPlan, Budget, ExecutorOptions, ExpertKey, ExpertSource, Family, FileId, LayerId, Routes, Segment,
    SparseLayer, StreamedExpertExecutor, Tier, TierId,
};

use super::{AFFINE4, EXPERTS, Experts, HIDDEN, compare, figure, options, seconds};

/// Experts as a source of one layer.
#[derive(Debug)]
struct Memory {
    tiers: [Tier; 1],
    layers: [SparseLayer; 1],
    segments: Vec<[Segment; 1]>,
    slots: Vec<Vec<u8>>,
}

impl Memory {
    fn new(experts: Experts) -> Self {
        let Experts { geometry, layout, slots } = experts;
        let segment = |expert| Segment {
            file: FileId(expert),
            file_offset_bytes: 0,
            slot_offset_bytes: 0,
            len_bytes: layout.slot_bytes(),
        };
        let segments = (0..slots.len() as u32).map(|expert| [segment(expert)]).collect();
        let layers = [SparseLayer { layer: LayerId(0), tier: TierId(0), experts: slots.len() as u32 }];
        Self { segments, layers, tiers: [Tier { geometry, layout }], slots }
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

    fn read_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let rest = &self.slots[file.0 as usize][offset_bytes as usize..];
        let bytes = buffer.len().min(rest.len());
        buffer[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    }

    fn path(&self, _: FileId) -> &Path {
        Path::new("memory")
    }
}

/// Time of the stock family ÷ time of the host family on one thread, for `rows` rows that all go to one expert, another
/// one in each forward; affine 4 bits. Every expert is resident. Time that passes, as MLX computes on a thread of its own.
pub(super) fn host_vs_stock(name: &str, rows: usize) {
    let source: Arc<dyn ExpertSource> = Arc::new(Memory::new(Experts::new(AFFINE4)));
    let slots = 2 * EXPERTS as u64;
    let budget = Budget {
        working_slots: EXPERTS as u32,
        ..Budget::new(slots * source.tiers()[0].layout.slot_bytes())
    };
    let executor = |family| {
        let options = ExecutorOptions { family, host: options(1), ..ExecutorOptions::new(budget.clone()) };
        StreamedExpertExecutor::open(source.clone(), &options).expect("an executor")
    };
    let forward = |executor: &mut StreamedExpertExecutor, rows: usize, expert: u32| {
        let routes = Routes::from_top_k(rows, 1, &vec![expert; rows], &vec![1.0; rows], EXPERTS as u32);
        let plan = BatchPlan::new(&routes.expect("routes"), EXPERTS as u32).expect("a plan");
        let input = vec![0.5; rows * HIDDEN as usize];
        black_box(executor.execute_rows(LayerId(0), &input, &plan, None).expect("a forward"));
    };
    let (mut stock, mut host) = (executor(Family::Stock), executor(Family::Host));
    for expert in 0..EXPERTS as u32 {
        forward(&mut stock, 1, expert);
        forward(&mut host, 1, expert);
    }
    let (mut stock_turns, mut host_turns) = ((0..EXPERTS as u32).cycle(), (0..EXPERTS as u32).cycle());
    let (stock_time, host_time, ratio) = compare(
        || seconds(|| forward(&mut stock, rows, stock_turns.next().expect("a cycle"))),
        || seconds(|| forward(&mut host, rows, host_turns.next().expect("a cycle"))),
    );
    println!("# {rows} rows: stock {:.2} ms, host {:.2} ms", stock_time * 1e3, host_time * 1e3);
    figure(name, ratio);
}
