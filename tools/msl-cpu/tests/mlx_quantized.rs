//! MLX's own quantised products, from the kernel headers of its wheel, as they are. If this fails, the stand-in for Metal
//! misreads real Metal text, and what it says of our kernels is worth little.
//!
//! Skipped, with the reason, where no wheel has been prepared (`cargo xtask mlx`).

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use msl_cpu::{Argument, Dtype, Kernel, Launch, Mode, Signature};

const COLUMNS: usize = 512;
const GROUP: usize = 64;

/// The include folder of a prepared wheel.
fn headers() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mlx-linux");
    let wheels = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path().join("mlx/include")));
    wheels.into_iter().find(|include| include.join(QUANTIZED).is_file())
}

/// Stands for what quantized.h takes from headers that are about Apple's compiler alone; none of it is run.
const STAND_INS: &str = "
struct complex64_t { float real; float imag; complex64_t(float r = 0, float i = 0) : real(r), imag(i) {} };
template <bool condition, typename T, typename U> struct ConditionalType { using type = U; };
template <typename T, typename U> struct ConditionalType<true, T, U> { using type = T; };
template <typename U> struct Limits { static constexpr constant U min = U(); };
template <typename I, typename S> I elem_to_loc(I, S, const constant int64_t*, int);
";

const QUANTIZED: &str = "mlx/backend/metal/kernels/quantized.h";

/// The text of a header with MLX's own headers in the place of their include lines, each once.
fn expand(include: &Path, name: &str, seen: &mut HashSet<String>) -> String {
    if !seen.insert(name.to_owned()) {
        return String::new();
    }
    let text = fs::read_to_string(include.join(name)).unwrap();
    let lines = text.lines().map(|line| match line.strip_prefix("#include \"mlx/") {
        Some(rest) => expand(include, &format!("mlx/{}", rest.trim_end_matches('"')), seen),
        None if line.starts_with("#pragma once") || line.starts_with("#include <") => String::new(),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// Rows of x times the transpose of a matrix of random codes, in f64 and as MLX's kernel makes it of the same bytes.
struct Product {
    rows: usize,
    outputs: usize,
    inputs: [Vec<u8>; 4],
    expected: Vec<f64>,
}

impl Product {
    fn new(rows: usize, outputs: usize) -> Self {
        let mut state = 1u32;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        let codes: Vec<u32> = (0..outputs * COLUMNS).map(|_| random() % 16).collect();
        let mut float = |least: f32| (random() % 1024) as f32 / 1024.0 + least;
        let scales: Vec<f32> = (0..outputs * COLUMNS / GROUP).map(|_| float(0.5) / 16.0).collect();
        let biases: Vec<f32> = scales.iter().map(|scale| -7.5 * scale).collect();
        let x: Vec<f32> = (0..rows * COLUMNS).map(|_| float(-0.5)).collect();
        let weight = |row: usize, column: usize| {
            let at = row * COLUMNS + column;
            f64::from(scales[at / GROUP]) * f64::from(codes[at]) + f64::from(biases[at / GROUP])
        };
        let mut expected = Vec::new();
        for x in x.chunks(COLUMNS) {
            for row in 0..outputs {
                expected.push((0..COLUMNS).map(|column| f64::from(x[column]) * weight(row, column)).sum());
            }
        }
        let words: Vec<u8> = codes
            .chunks(8)
            .flat_map(|word| word.iter().rev().fold(0u32, |packed, code| packed << 4 | code).to_le_bytes())
            .collect();
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        Self { rows, outputs, inputs: [words, bytes(&scales), bytes(&biases), bytes(&x)], expected }
    }

    /// Runs `body` and compares; its faults.
    fn run(&self, include: &Path, body: &str, mode: Mode, grid: [u32; 3], threadgroup: [u32; 3]) -> u64 {
        let seen = &mut HashSet::new();
        let kernels = "mlx/backend/metal/kernels/";
        let mlx = ["steel/gemm/gemm.h", "quantized_utils.h", "quantized.h"]
            .map(|name| expand(include, &format!("{kernels}{name}"), seen))
            .concat();
        // The CPU has one address space: of four specialisations for pointers one is left.
        let one_space = ["device", "constant", "threadgroup"].iter().fold(mlx, |text, space| {
            let first = format!("template <typename T>\nstruct pointer_element<{space} T*> {{");
            text.replace(&format!("{first}\n  using type = remove_cv_t<T>;\n}};\n"), "")
        });
        let header = format!("{STAND_INS}{one_space}");
        let shapes = [0, 1, 2, 3].map(|input: usize| [self.inputs[input].len() / 4]);
        let names = ["w", "scales", "biases", "x"];
        let types = [Dtype::U32, Dtype::F32, Dtype::F32, Dtype::F32];
        let inputs: Vec<Argument<'_>> = (0..4)
            .map(|input| Argument { name: names[input], dtype: types[input], shape: &shapes[input] })
            .collect();
        let signature =
            Signature { name: "mlx_product", inputs: &inputs, outputs: &[("y", Dtype::F32)], template: &[] };
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let kernel = Kernel::compile(&signature.wrap(&header, body), mode, folder).unwrap();
        let buffers = self.inputs.each_ref().map(Vec::as_slice);
        let launch = Launch { grid, threadgroup, ..Launch::default() };
        let (outputs, stats) = kernel.launch(&buffers, &[4 * self.rows * self.outputs], &launch);
        let got: Vec<f32> =
            outputs[0].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let difference = norm(&mut got.iter().zip(&self.expected).map(|(&a, b)| f64::from(a) - b));
        let error = difference / norm(&mut self.expected.iter().copied());
        assert!(error > 0.0 && error < 1e-6, "{mode:?}: {error:e}");
        stats.errors
    }
}

/// One row at a time: simd_sum, loads of packed codes.
const VECTOR: &str = "
  const int columns = 512, outputs = 24;
  qmv_fast_impl<float, 64, 4>(w, scales, biases, x, y, columns, outputs, threadgroup_position_in_grid,
                              simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
";

/// Blocks of rows: threadgroup memory, barriers, 8 × 8 matrices.
fn matrix(outputs: usize) -> String {
    format!(
        "
  threadgroup float xs[32 * 36];
  threadgroup float ws[32 * 36];
  const int columns = 512, outputs = {outputs}, rows = 33;
  qmm_t_impl<float, 64, 4, false>(w, scales, biases, x, y, xs, ws, columns, outputs, rows, columns,
                                  threadgroup_position_in_grid, thread_index_in_threadgroup,
                                  simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
"
    )
}

#[test]
fn mlxs_own_kernels_give_the_right_products_and_no_report() {
    let Some(include) = headers() else {
        println!("skipped: no wheel under target/mlx-linux has {QUANTIZED}");
        return;
    };
    let (vector, block) = ([32, 2, 1], [32, 2, 2]);
    for mode in [Mode::Fast, Mode::Checked] {
        assert_eq!(Product::new(3, 24).run(&include, VECTOR, mode, [32 * 3, 2 * 3, 1], vector), 0);
        assert_eq!(Product::new(33, 64).run(&include, &matrix(64), mode, [32 * 2, 2 * 2, 2], block), 0);
    }
    // With a last tile that is not whole, MLX 0.32.2 reads weights and scales beyond the matrix, and uses none of them: the
    // checked build reports it. The numbers are right.
    Product::new(33, 40).run(&include, &matrix(40), Mode::Fast, [32 * 2, 2 * 2, 2], block);
}
