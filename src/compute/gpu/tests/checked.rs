//! Every access to memory of every kernel, watched.

use super::{
    super::{KernelName, Parameter},
    bench::{BF16, Bench, F16, F32, Run, Size},
};
use crate::formats::{Activation, ExpertGeometry, FloatType, Quantisation};

const SIGNED: Quantisation = Quantisation::Signed { bits: 4, group: None };

fn small(quantisation: Quantisation, kind: FloatType, seed: u64) -> Bench {
    let geometry = ExpertGeometry::uniform(96, 64, quantisation);
    Bench::new(geometry, kind, Size { rows: 2, ranks: 2, experts: 3, shared: seed.is_multiple_of(2), seed })
}

#[test]
fn sound_kernels_give_no_report() {
    let formats = [
        (SIGNED, F32),
        (Quantisation::Signed { bits: 4, group: Some(48) }, BF16),
        (Quantisation::Signed { bits: 8, group: None }, F16),
        (Quantisation::Affine { bits: 4, group: 32, scales: BF16 }, BF16),
        (Quantisation::Affine { bits: 8, group: 32, scales: F32 }, F32),
    ];
    for (seed, (quantisation, kind)) in (1..).zip(formats) {
        let bench = small(quantisation, kind, seed);
        let checked = Run::checked(seed);
        assert_eq!(bench.fused(&checked), bench.fused(&Run::fast(seed)));
        assert_eq!(bench.split(&checked, 2, 1), bench.split(&Run::fast(seed), 1, 2));
    }
}

#[test]
fn biases_and_bounds_give_no_report() {
    let geometry = ExpertGeometry {
        bias: Some(F16),
        activation: Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 },
        ..ExpertGeometry::uniform(64, 32, Quantisation::Affine { bits: 4, group: 32, scales: F16 })
    };
    let bench = Bench::new(geometry, F16, Size { rows: 1, ranks: 3, experts: 3, shared: true, seed: 2 });
    bench.fused(&Run::checked(3));
    bench.split(&Run::checked(4), 1, 2);
}

/// Blocks that do not divide the columns: no geometry has them with the blocks we use, another choice of blocks would.
#[test]
fn edge_blocks_give_no_report() {
    let bench = small(SIGNED, F32, 2);
    let run = Run::checked(1);
    let tiles = bench.all_tiles(2);
    let ragged = |mut call: super::super::Call, columns: i32| {
        let rows = call.parameters.iter_mut().find(|(name, _)| *name == "ROWS").unwrap();
        rows.1 = Parameter::Int(5);
        let simdgroups = call.threadgroup[1];
        call.grid[1] = match call.kernel {
            KernelName::DownCompose => ((columns + 4) / 5) * simdgroups,
            _ => (columns + 4) / 5,
        };
        call
    };
    let call = ragged(bench.expert.gate_up(F32, tiles.rows.len(), tiles.count(), 2), 64);
    let inputs = bench.gate_up_inputs(&tiles);
    let inner = run.call(&call, &inputs);
    assert_eq!(inner, bench.gate_up(&Run::fast(0), &tiles, 2));
    let call = ragged(bench.expert.down(tiles.rows.len(), tiles.count(), 2), 96);
    let rows = run.call(&call, &bench.down_inputs(&tiles, &inner));
    assert_eq!(rows, bench.down(&Run::fast(0), &tiles, 2, &inner));
    let (call, inputs) = bench.down_compose_call(&tiles, &inner);
    assert_eq!(run.call(&ragged(call, 96), &inputs), bench.down_compose(&Run::fast(0), &tiles, &inner));
}

/// A change of a kernel's body that must not go unnoticed.
struct Planted {
    what: &'static str,
    kernel: KernelName,
    from: &'static str,
    to: &'static str,
}

const PLANTED: [Planted; 14] = [
    plant(
        "gate_up reads one expert too far",
        KernelName::GateUp,
        "size_t(slot) * layout[1]",
        "size_t(slot + 4) * layout[1]",
    ),
    plant("gate_up forgets a column", KernelName::GateUp, "if (n < uint(INNER))", "if (n + 1 < uint(INNER))"),
    plant("gate_up writes past its tile", KernelName::GateUp, "if (uint(p) < count)", "if (true)"),
    plant("gate_up writes from every lane", KernelName::GateUp, "if (lane == 0)", "if (true)"),
    plant(
        "gate_up reads past its rows",
        KernelName::GateUp,
        "pair_rows[first_pair + min(uint(p), count - 1u)]",
        "(pair_rows[first_pair] + 2)",
    ),
    plant("down reads past inner", KernelName::Down, "min(uint(p), count - 1u)", "uint(p) + 3u"),
    plant(
        "down skips the last pair of a tile",
        KernelName::Down,
        "if (uint(p) < count)",
        "if (uint(p) + 1 < count)",
    ),
    plant(
        "down writes every row to the first",
        KernelName::Down,
        "size_t(first_pair + uint(p)) * HIDDEN",
        "size_t(0) * HIDDEN",
    ),
    plant(
        "down_compose adds without waiting",
        KernelName::DownCompose,
        "  threadgroup_barrier(mem_flags::mem_threadgroup);",
        "",
    ),
    plant(
        "down_compose waits for device memory alone",
        KernelName::DownCompose,
        "mem_flags::mem_threadgroup",
        "mem_flags::mem_device",
    ),
    plant(
        "down_compose adds a rank nobody wrote",
        KernelName::DownCompose,
        "rank < count; rank++",
        "rank < count + 1; rank++",
    ),
    plant(
        "down_compose stores from every lane's column",
        KernelName::DownCompose,
        "weighted[rank * ROWS + r]",
        "weighted[rank * ROWS + r + 1]",
    ),
    plant(
        "compose reads past its rows",
        KernelName::Compose,
        "size_t(terms[begin + rank])",
        "size_t(terms[begin + rank] + 1)",
    ),
    plant("compose writes one row twice", KernelName::Compose, "out[size_t(row) * HIDDEN + n]", "out[n]"),
];

const fn plant(what: &'static str, kernel: KernelName, from: &'static str, to: &'static str) -> Planted {
    Planted { what, kernel, from, to }
}

#[test]
fn every_planted_bug_is_reported() {
    let bench = small(SIGNED, F32, 4);
    let sound = Run::checked(0);
    let tiles = bench.all_tiles(2);
    let inner = bench.gate_up(&sound, &tiles, 2);
    let rows = bench.down(&sound, &tiles, 2, &inner);
    for Planted { what, kernel, from, to } in PLANTED {
        assert!(kernel.body().contains(from), "{what}: nothing to plant");
        let body = kernel.body().replace(from, to);
        let (call, inputs) = match kernel {
            KernelName::GateUp => {
                (bench.expert.gate_up(F32, tiles.rows.len(), tiles.count(), 2), bench.gate_up_inputs(&tiles))
            }
            KernelName::Down => {
                (bench.expert.down(tiles.rows.len(), tiles.count(), 2), bench.down_inputs(&tiles, &inner))
            }
            KernelName::DownCompose => bench.down_compose_call(&tiles, &inner),
            KernelName::Compose => bench.compose_call(&[(&tiles, rows.clone())]),
            KernelName::Linear | KernelName::SwiGlu => unreachable!("the tests of linear plant in those"),
        };
        let (_, errors) = sound.try_text(&call, &inputs, Some(&body));
        assert!(errors > 0, "{what}: not reported");
    }
}
