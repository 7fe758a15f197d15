//! If this fails, the checker has gone blind: a kernel with a race or a stray access would pass every other test.

use std::path::Path;

use msl_cpu::{Argument, Dtype, Kernel, Launch, Mode, Signature, Stats, Template};

const ROWS: usize = 5;
const WIDTH: usize = 80;

/// y[row] = Σ x[row, ·], staged through threadgroup memory; one threadgroup of two simdgroups per row.
const BODY: &str = "
  threadgroup float staged[WIDTH];
  threadgroup float halves[2];
  const uint row = threadgroup_position_in_grid.y;
  const uint index = thread_index_in_threadgroup;
  const bool live = row < uint(ROWS);
  for (uint i = index; i < uint(WIDTH); i += 64) { staged[i] = live ? x[row * WIDTH + i] : 0.0f; }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint i = index; i < uint(WIDTH); i += 64) { sum += staged[WIDTH - 1 - i]; }
  sum = simd_sum(sum);
  if (thread_index_in_simdgroup == 0) { halves[simdgroup_index_in_threadgroup] = sum; }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (live && index == 0) { y[row] = halves[0] + halves[1]; }
";

fn run(body: &str, mode: Mode, seed: u64) -> (Vec<f32>, Stats) {
    let x: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i % 7) as f32).collect();
    let inputs = [Argument { name: "x", dtype: Dtype::F32, shape: &[ROWS, WIDTH] }];
    let template = [("ROWS", Template::Int(ROWS as i32)), ("WIDTH", Template::Int(WIDTH as i32))];
    let signature =
        Signature { name: "row_sums", inputs: &inputs, outputs: &[("y", Dtype::F32)], template: &template };
    let kernel =
        Kernel::compile(&signature.wrap("", body), mode, Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let x: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
    let launch =
        Launch { grid: [64, ROWS as u32 + 1, 1], threadgroup: [64, 1, 1], seed, ..Launch::default() };
    let (outputs, stats) = kernel.launch(&[&x], &[ROWS * 4], &launch);
    (outputs[0].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect(), stats)
}

fn expected() -> Vec<f32> {
    (0..ROWS).map(|row| (0..WIDTH).map(|i| ((row * WIDTH + i) % 7) as f32).sum()).collect()
}

#[test]
fn the_sound_kernel_passes_in_every_order() {
    for mode in [Mode::Fast, Mode::Checked] {
        for seed in 0..4 {
            let (y, stats) = run(BODY, mode, seed);
            assert_eq!((y, stats.errors, stats.divergent), (expected(), 0, 0), "{mode:?}, seed {seed}");
        }
    }
}

#[test]
fn every_planted_bug_is_reported() {
    const BARRIER: &str = "  threadgroup_barrier(mem_flags::mem_threadgroup);\n";
    let second_barrier_gone = BODY.rsplitn(2, BARRIER).collect::<Vec<_>>();
    let planted = [
        ("no barrier after staging", BODY.replacen(BARRIER, "", 1)),
        ("no barrier before the last sum", format!("{}{}", second_barrier_gone[1], second_barrier_gone[0])),
        (
            "a barrier for the wrong memory",
            BODY.replace("mem_flags::mem_threadgroup", "mem_flags::mem_device"),
        ),
        (
            "a simdgroup barrier across simdgroups",
            BODY.replacen("threadgroup_barrier", "simdgroup_barrier", 1),
        ),
        (
            "staging that leaves a gap",
            BODY.replacen("i < uint(WIDTH); i += 64) { staged", "i < 64; i += 64) { staged", 1),
        ),
        ("a read before the input", BODY.replace("x[row * WIDTH + i]", "x[int(row * WIDTH + i) - 1]")),
        ("a read past the input", BODY.replace("x[row * WIDTH + i]", "x[row * WIDTH + i + 1]")),
        ("no bound on the row", BODY.replace("live ?", "true ?").replace("live &&", "")),
        ("a write past the output", BODY.replace("y[row] =", "y[row + 1] =")),
        ("an output nobody wrote", BODY.replace("live && index == 0", "live && row != 2 && index == 0")),
        ("every thread writes the output", BODY.replace("live && index == 0", "live")),
        ("threadgroups that share an output", BODY.replace("y[row] =", "y[row / 2] =")),
        ("a write to the input", BODY.replace("y[row] =", "((device float*)x)[row] = y[row] =")),
        ("a read past threadgroup memory", BODY.replace("staged[WIDTH - 1 - i]", "staged[WIDTH - i]")),
        (
            "a barrier that half the threads skip",
            BODY.replacen("  float sum", "  if (index >= 32) { return; }\n  float sum", 1),
        ),
        ("more threadgroup memory than there is", BODY.replace("staged[WIDTH];", "staged[WIDTH * 110];")),
    ];
    for (what, body) in planted {
        assert_ne!(body, BODY, "{what}: nothing was planted");
        let (_, stats) = run(&body, Mode::Checked, 0);
        assert!(stats.errors > 0, "{what}: not reported");
    }
}

#[test]
fn a_shuffle_from_an_inactive_lane_is_reported() {
    let body = BODY.replace(
        "sum = simd_sum(sum);",
        "if (thread_index_in_simdgroup < 16) { sum = simd_shuffle(sum, ushort(20)); }",
    );
    assert!(run(&body, Mode::Checked, 0).1.errors > 0);
}

#[test]
fn a_name_that_metal_does_not_have_is_a_compile_error() {
    let body = BODY.replace("simd_sum", "simdgroup_sum");
    assert!(std::panic::catch_unwind(|| run(&body, Mode::Fast, 0)).is_err());
}
