//! Figures of the host kernels: `cargo bench --bench host_kernels --no-default-features`.
//!
//! Prints `figure NAME VALUE`. Ratios are medians over rounds; both sides of a ratio are measured in the same round, in
//! an order that alternates. Experts together are many times the size of the last cache, so every weight comes from
//! memory. One-thread figures count the thread's own time, so that a busy machine does not count against either side;
//! figures that compare thread counts need a quiet machine. An argument picks the figures whose names contain it;
//! `isa=avx2` and the like choose the instruction set.

#[cfg(feature = "mlx")]
mod stock;

use std::{hint::black_box, sync::OnceLock, thread::available_parallelism, time::Instant};

use rustix::time::{ClockId, clock_gettime};
use streamed_experts::{
    ExpertGeometry, ExpertView, FloatType, HostActivations, HostFamily, HostIsa, HostJob, HostOptions, Part,
    Projection, Quantisation, SlotLayout,
};

const ROUNDS: usize = 7;

/// Experts that take turns: 48 matrices.
const EXPERTS: usize = 16;

/// GLM-5.2.
const HIDDEN: u32 = 6144;
const INTERMEDIATE: u32 = 2048;

const Q4: Quantisation = Quantisation::Signed { bits: 4, group: None };
const Q8: Quantisation = Quantisation::Signed { bits: 8, group: None };
const AFFINE4: Quantisation = Quantisation::Affine { bits: 4, group: 64, scales: FloatType::Bf16 };

/// Every figure, by the beginning of its name.
const FIGURES: &[(&str, fn())] = &[
    ("host_q4_m1", || m1_vs_read("host_q4_m1", Q4, HostActivations::Exact)),
    ("host_q8_m1", || m1_vs_read("host_q8_m1", Q8, HostActivations::Exact)),
    ("host_affine4_m1", || m1_vs_read("host_affine4_m1", AFFINE4, HostActivations::Exact)),
    ("host_mxfp4_m1", || m1_vs_read("host_mxfp4_m1", Quantisation::Mxfp4, HostActivations::Exact)),
    ("host_q4_int8_m1", || m1_vs_read("host_q4_int8_m1", Q4, HostActivations::Int8)),
    ("host_q8_int8_m1", || m1_vs_read("host_q8_int8_m1", Q8, HostActivations::Int8)),
    ("host_q4_m1_scaling", scaling),
    ("host_q4_m32", || m32_vs_sgemm("host_q4_m32", Q4)),
    ("host_affine4_m32", || m32_vs_sgemm("host_affine4_m32", AFFINE4)),
    ("host_q4_rows", cost_per_rows),
    #[cfg(feature = "mlx")]
    ("host_vs_stock_m1", || stock::host_vs_stock("host_vs_stock_m1", 1)),
    #[cfg(feature = "mlx")]
    ("host_vs_stock_m32", || stock::host_vs_stock("host_vs_stock_m32", 32)),
];

/// The instruction set asked for.
static ISA: OnceLock<HostIsa> = OnceLock::new();

fn main() {
    let mut pick = String::new();
    for argument in std::env::args().skip(1).filter(|argument| !argument.starts_with('-')) {
        match argument.strip_prefix("isa=") {
            Some(name) => ISA.set(isa(name)).expect("one instruction set"),
            None => pick = argument,
        }
    }
    println!("# {:?}", family(1));
    for (name, run) in FIGURES {
        if name.contains(&pick) {
            run();
        }
    }
}

fn isa(name: &str) -> HostIsa {
    match name {
        "portable" => HostIsa::Portable,
        "avx2" => HostIsa::Avx2,
        "avx512" => HostIsa::Avx512,
        "neon" => HostIsa::Neon,
        _ => panic!("no instruction set {name}: portable, avx2, avx512 or neon"),
    }
}

fn figure(name: &str, value: f64) {
    println!("figure {name} {value:.3}");
}

/// Experts of one geometry with random weights, in memory one after the other.
struct Experts {
    geometry: ExpertGeometry,
    layout: SlotLayout,
    slots: Vec<Vec<u8>>,
}

impl Experts {
    fn new(quantisation: Quantisation) -> Self {
        let geometry = ExpertGeometry::uniform(HIDDEN, INTERMEDIATE, quantisation);
        let layout = SlotLayout::new(&geometry).expect("a geometry");
        let mut random = fastrand::Rng::with_seed(3);
        let slots = (0..EXPERTS).map(|_| random_slot(&layout, quantisation, &mut random)).collect();
        Self { geometry, layout, slots }
    }

    fn view(&self, expert: usize) -> ExpertView<'_> {
        ExpertView::new(&self.geometry, &self.layout, &self.slots[expert]).expect("a view")
    }

    fn bytes(&self) -> f64 {
        self.layout.record_bytes() as f64 * self.slots.len() as f64
    }

    /// Computes every expert once for the same `rows` rows.
    fn compute(&self, family: &HostFamily, rows: usize, input: &[f32], output: &mut [f32]) {
        let rows: Vec<u32> = (0..rows as u32).collect();
        for expert in 0..self.slots.len() {
            let job = HostJob { expert: self.view(expert), rows: &rows, pairs: &rows };
            family.run(&[job], input, output).expect("a call");
        }
        black_box(output);
    }

    /// Sums every byte that computing reads.
    fn read(&self, threads: usize) {
        std::thread::scope(|scope| {
            for thread in 1..threads {
                scope.spawn(move || self.read_share(thread, threads));
            }
            self.read_share(0, threads);
        });
    }

    fn read_share(&self, thread: usize, threads: usize) {
        for expert in (thread..self.slots.len()).step_by(threads) {
            for part in Part::ALL {
                for projection in Projection::ALL {
                    black_box(sum(self.view(expert).part(projection, part)));
                }
            }
        }
    }
}

fn random_slot(layout: &SlotLayout, quantisation: Quantisation, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut slot = vec![0; layout.slot_bytes() as usize];
    random.fill(&mut slot);
    for projection in Projection::ALL {
        for part in [Part::Scales, Part::Biases] {
            let Some(range) = layout.range(projection, part) else { continue };
            let bytes = &mut slot[range.start as usize..range.end as usize];
            match quantisation.scale_bytes() {
                1 => bytes.fill(120),
                2 => bytes.as_chunks_mut().0.fill(half::bf16::from_f32(0.01).to_le_bytes()),
                _ => bytes.as_chunks_mut().0.fill(0.01f32.to_le_bytes()),
            }
        }
    }
    slot
}

/// The plain summing read.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 16];
    for chunk in bytes.as_chunks::<128>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk.as_chunks().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Seconds that this thread spends in `work`.
fn own_seconds(work: impl FnOnce()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    };
    let begin = now();
    work();
    now() - begin
}

/// Seconds that pass during `work`.
fn seconds(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median times of `a` and `b`, and the median of a's time ÷ b's, over rounds that alternate the order.
fn compare(mut a: impl FnMut() -> f64, mut b: impl FnMut() -> f64) -> (f64, f64, f64) {
    a();
    b();
    let times: Vec<(f64, f64)> = (0..ROUNDS)
        .map(|round| {
            if round % 2 == 0 {
                let first = a();
                (first, b())
            } else {
                let first = b();
                (a(), first)
            }
        })
        .collect();
    let of = |value: fn(&(f64, f64)) -> f64| median(times.iter().map(value).collect());
    (of(|t| t.0), of(|t| t.1), of(|t| t.0 / t.1))
}

fn input(rows: usize) -> (Vec<f32>, Vec<f32>) {
    let mut random = fastrand::Rng::with_seed(4);
    let input: Vec<f32> = (0..rows * HIDDEN as usize).map(|_| random.f32() - 0.5).collect();
    let output = vec![f32::NAN; input.len()];
    (input, output)
}

fn family(threads: usize) -> HostFamily {
    family_with(threads, HostActivations::Exact)
}

fn family_with(threads: usize, activations: HostActivations) -> HostFamily {
    HostFamily::new(options(threads).activations(activations)).expect("a family")
}

fn options(threads: usize) -> HostOptions {
    let mut options = HostOptions::new().thread_count(threads);
    options.isa = ISA.get().copied();
    options
}

/// Weight bytes per second of whole experts at M = 1 on one thread, against a plain summing read of the same bytes.
fn m1_vs_read(name: &str, quantisation: Quantisation, activations: HostActivations) {
    let (experts, family) = (Experts::new(quantisation), family_with(1, activations));
    let (input, mut output) = input(1);
    let (read, computed, ratio) = compare(
        || own_seconds(|| experts.read(1)),
        || own_seconds(|| experts.compute(&family, 1, &input, &mut output)),
    );
    println!(
        "# read {:.2} GB/s, computed {:.2} GB/s",
        experts.bytes() / read / 1e9,
        experts.bytes() / computed / 1e9
    );
    figure(&format!("{name}_vs_read"), ratio);
}

/// What two threads and more gain at M = 1 and in the plain read: time of one ÷ time of all.
fn scaling() {
    let experts = Experts::new(Q4);
    let (input, mut output) = input(1);
    let mut outputs = output.clone();
    let all = available_parallelism().map_or(1, usize::from);
    for threads in [2, 4, 8, 16].into_iter().filter(|&threads| threads <= all.max(2)) {
        let (one, more) = (family(1), family(threads));
        let (_, time, computing) = compare(
            || seconds(|| experts.compute(&one, 1, &input, &mut output)),
            || seconds(|| experts.compute(&more, 1, &input, &mut outputs)),
        );
        let (_, read, reading) =
            compare(|| seconds(|| experts.read(1)), || seconds(|| experts.read(threads)));
        let rate = |time| experts.bytes() / time / 1e9;
        println!("# {threads} threads: read {:.2} GB/s, computed {:.2} GB/s", rate(read), rate(time));
        let of = if threads == 2 { String::new() } else { format!("_{threads}") };
        figure(&format!("host_q4_m1_scaling{of}"), computing);
        figure(&format!("host_read_scaling{of}"), reading);
    }
}

/// FLOP/s of whole experts at M = 32, against dense f32 products of the same shapes.
fn m32_vs_sgemm(name: &str, quantisation: Quantisation) {
    const ROWS: usize = 32;
    let (experts, family) = (Experts::new(quantisation), family(1));
    let (input, mut output) = input(ROWS);
    let (hidden, intermediate) = (HIDDEN as usize, INTERMEDIATE as usize);
    let dense: [Vec<f32>; 3] = std::array::from_fn(|i| vec![0.5 + i as f32; hidden * intermediate]);
    let mut middle = vec![0.0; ROWS * intermediate];
    let (dense_time, time, ratio) = compare(
        || {
            own_seconds(|| {
                sgemm(&input, &dense[0], &mut middle, hidden);
                sgemm(&input, &dense[1], &mut middle, hidden);
                sgemm(&middle, &dense[2], &mut output.clone(), intermediate);
            }) * experts.slots.len() as f64
        },
        || own_seconds(|| experts.compute(&family, ROWS, &input, &mut output.clone())),
    );
    output.fill(0.0);
    let flops = (2 * 3 * ROWS * hidden * intermediate * experts.slots.len()) as f64;
    println!("# sgemm {:.1} GFLOP/s, experts {:.1} GFLOP/s", flops / dense_time / 1e9, flops / time / 1e9);
    figure(&format!("{name}_vs_sgemm"), ratio);
}

/// `c = a × bᵀ`, rows of `depth`.
fn sgemm(a: &[f32], b: &[f32], c: &mut [f32], depth: usize) {
    let (rows, columns) = (a.len() / depth, b.len() / depth);
    assert_eq!(c.len(), rows * columns);
    let parallelism = gemm::Parallelism::None;
    // SAFETY: the three slices hold the rows × depth, columns × depth and rows × columns values that the strides reach.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            c.as_mut_ptr(),
            1,
            columns as isize,
            false,
            a.as_ptr(),
            1,
            depth as isize,
            b.as_ptr(),
            depth as isize,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
    black_box(c);
}

/// Time of one expert by number of rows, in units of M = 1.
fn cost_per_rows() {
    let (experts, family) = (Experts::new(Q4), family(1));
    let mut times = Vec::new();
    for rows in [1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64] {
        let (input, mut output) = input(rows);
        let time = (0..3).map(|_| own_seconds(|| experts.compute(&family, rows, &input, &mut output)));
        times.push((rows, median(time.collect())));
    }
    for (rows, time) in &times {
        println!(
            "# {rows} rows: {:.2} × one row, {:.2} per row",
            time / times[0].1,
            time / times[0].1 / *rows as f64
        );
    }
}
