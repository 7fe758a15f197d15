//! Host kernels against the scalar oracle on the same stored bytes. If these fail, an engine that computes experts
//! on the CPU says something else than the model, or says something else each time the batch or the cache changes.
#![allow(missing_docs)]

use std::{num::NonZeroUsize, sync::Arc};

use proptest::prelude::*;
use streamed_experts::{
    Activation, ExpertGeometry, ExpertView, FloatType, HostActivations, HostError, HostFamily, HostIsa,
    HostJob, HostOptions, HostSupport, HostThreads, Part, Projection, Quantisation, SlotLayout, oracle::Mlp,
};

/// Experts of one geometry with random bytes.
struct Experts {
    geometry: ExpertGeometry,
    layout: SlotLayout,
    slots: Vec<Vec<u8>>,
}

impl Experts {
    fn random(geometry: ExpertGeometry, count: usize, random: &mut fastrand::Rng) -> Self {
        let layout = SlotLayout::new(&geometry).unwrap();
        let slots = (0..count).map(|_| random_slot(&geometry, &layout, random)).collect();
        Self { geometry, layout, slots }
    }

    fn view(&self, expert: usize) -> ExpertView<'_> {
        ExpertView::new(&self.geometry, &self.layout, &self.slots[expert]).unwrap()
    }
}

fn push_float(kind: FloatType, value: f32, to: &mut [u8]) {
    match kind {
        FloatType::F32 => to.copy_from_slice(&value.to_le_bytes()),
        FloatType::F16 => to.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
        FloatType::Bf16 => to.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
    }
}

/// Random bytes everywhere, padding included; scales such that products keep the size of the inputs.
fn random_slot(geometry: &ExpertGeometry, layout: &SlotLayout, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut slot: Vec<u8> = (0..layout.slot_bytes()).map(|_| random.u8(..)).collect();
    for projection in Projection::ALL {
        let shape = geometry.projection(projection);
        let size = 1.0 / f64::from(shape.columns).sqrt();
        let steps = match shape.quantisation {
            Quantisation::Affine { bits, .. } | Quantisation::Signed { bits, .. } => {
                f64::from(1u32 << bits) / 3.5
            }
            Quantisation::Mxfp8 => 100.0,
            _ => 3.0,
        };
        let part = |part: Part| layout.range(projection, part).map(|r| r.start as usize..r.end as usize);
        let mut float = |scale: f64| (scale * (0.5 + random.f64())) as f32;
        if let (Quantisation::Mxfp8, Some(range)) = (shape.quantisation, part(Part::Weight)) {
            // No NaN among the weights.
            slot[range].iter_mut().for_each(|b| *b &= 0xf7);
        }
        let scales = part(Part::Scales).unwrap();
        match shape.quantisation {
            Quantisation::Affine { bits, scales: kind, .. } => {
                let width = kind.bytes() as usize;
                let biases = part(Part::Biases).unwrap();
                for at in (0..scales.len()).step_by(width) {
                    let scale = float(size / steps);
                    push_float(kind, scale, &mut slot[scales.start + at..][..width]);
                    let middle = -scale * (1u32 << bits) as f32 / 2.0;
                    push_float(kind, middle + float(0.1 * size), &mut slot[biases.start + at..][..width]);
                }
            }
            Quantisation::Signed { .. } => {
                for scale in slot[scales].chunks_exact_mut(4) {
                    push_float(FloatType::F32, float(size / steps), scale);
                }
            }
            Quantisation::Nvfp4 => slot[scales].fill(0x28 - (size.recip().log2() as u8).min(4) * 8),
            _ => {
                let exponent = 127 + (size / steps).log2().round() as i32;
                slot[scales].iter_mut().for_each(|e| *e = (exponent + (i32::from(*e) % 3 - 1)) as u8);
            }
        }
        if let (Some(kind), Some(range)) = (geometry.bias, part(Part::Bias)) {
            for bias in slot[range].chunks_exact_mut(kind.bytes() as usize) {
                push_float(kind, float(1.0) - 1.0, bias);
            }
        }
    }
    slot
}

/// The oracle's output for each row of `input`, one after the other.
fn reference(expert: &ExpertView<'_>, input: &[f32]) -> Vec<f64> {
    let input: Vec<f64> = input.iter().map(|&x| f64::from(x)).collect();
    Mlp::of_expert(expert).unwrap().forward(&input).unwrap()
}

/// Every instruction set there is.
const ISAS: [HostIsa; 4] = [HostIsa::Portable, HostIsa::Avx2, HostIsa::Avx512, HostIsa::Neon];

fn family(threads: usize) -> HostFamily {
    HostFamily::new(HostOptions::new().thread_count(threads)).unwrap()
}

/// One family per instruction set that this machine has.
fn families(threads: usize) -> Vec<HostFamily> {
    let options = HostOptions::new().thread_count(threads);
    ISAS.iter().filter_map(|&isa| HostFamily::new(options.clone().isa(isa)).ok()).collect()
}

fn random_rows(rows: usize, width: usize, random: &mut fastrand::Rng) -> Vec<f32> {
    (0..rows * width).map(|_| random.f32() * 2.0 - 1.0).collect()
}

/// Runs one expert over all rows of `input`, into an output that was poisoned before.
fn run_one(family: &HostFamily, expert: ExpertView<'_>, input: &[f32]) -> Vec<f32> {
    let rows: Vec<u32> = (0..(input.len() / expert.geometry().hidden as usize) as u32).collect();
    let mut output = vec![f32::NAN; input.len()];
    family.run(&[HostJob { expert, rows: &rows, pairs: &rows }], input, &mut output).unwrap();
    output
}

/// The error of a row against the reference in units of 1e-6 × sqrt(width): the norm of the difference by the norm of the
/// row, or, if that is more, a quarter of the largest difference by the root mean square.
fn error(got: &[f32], want: &[f64], width: u32) -> f64 {
    let errors = got.iter().zip(want).map(|(&y, w)| (f64::from(y) - w).abs());
    let norm =
        errors.clone().map(|e| e * e).sum::<f64>().sqrt() / want.iter().map(|y| y * y).sum::<f64>().sqrt();
    let rms = (want.iter().map(|y| y * y).sum::<f64>() / want.len() as f64).sqrt();
    let worst = errors.fold(0.0, |worst, e| if e > worst || e.is_nan() { e } else { worst }) / rms;
    if norm.is_nan() { norm } else { norm.max(worst / 4.0) / (1e-6 * f64::from(width).sqrt()) }
}

fn check_against_reference(geometry: ExpertGeometry, rows: usize, seed: u64) {
    check_families(&families(1), geometry, geometry.hidden.min(geometry.intermediate), rows, seed);
}

/// `width` is what the bound counts with.
fn check_families(families: &[HostFamily], geometry: ExpertGeometry, width: u32, rows: usize, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let experts = Experts::random(geometry, 1, &mut random);
    let hidden = geometry.hidden as usize;
    let input = random_rows(rows, hidden, &mut random);
    let want = reference(&experts.view(0), &input);
    // A handful of terms may cancel: widths below 16 count as 16.
    let width = width.max(16);
    for family in families {
        let got = run_one(family, experts.view(0), &input);
        for (row, (got, want)) in got.chunks_exact(hidden).zip(want.chunks_exact(hidden)).enumerate() {
            let error = error(got, want, width);
            assert!(error <= 1.0, "{:?} {geometry:?} row {row}: {error} of the bound", family.isa());
        }
    }
}

const Q4: Quantisation = Quantisation::Signed { bits: 4, group: None };
const Q8: Quantisation = Quantisation::Signed { bits: 8, group: None };

const fn q4(group: u32) -> Quantisation {
    Quantisation::Signed { bits: 4, group: Some(group) }
}

const fn affine(bits: u32, group: u32, scales: FloatType) -> Quantisation {
    Quantisation::Affine { bits, group, scales }
}

/// Every format that a model of width 128 and up can have.
fn formats() -> Vec<Quantisation> {
    let mut formats = vec![Q4, Q8, Quantisation::Mxfp4, Quantisation::Nvfp4, Quantisation::Mxfp8];
    formats.extend([16, 32, 48, 64, 96, 128, 192, 256].map(q4));
    for scales in [FloatType::F32, FloatType::F16, FloatType::Bf16] {
        for group in [32, 64, 128] {
            formats.extend([2, 3, 4, 5, 6, 8].map(|bits| affine(bits, group, scales)));
        }
    }
    formats
}

#[test]
fn every_format_computes_what_its_bytes_say() {
    for (seed, quantisation) in formats().into_iter().enumerate() {
        for rows in [1, 6] {
            check_against_reference(ExpertGeometry::uniform(128, 256, quantisation), rows, seed as u64);
        }
    }
}

#[test]
fn production_widths_stay_within_the_error_bound() {
    let qwen = affine(4, 64, FloatType::Bf16);
    for (hidden, intermediate, quantisation) in
        [(6144, 2048, Q4), (6144, 2048, Q8), (2048, 768, qwen), (2048, 768, Quantisation::Mxfp4)]
    {
        // The best instruction set only: without optimisation, the portable one takes minutes.
        let geometry = ExpertGeometry::uniform(hidden, intermediate, quantisation);
        check_families(&[family(1)], geometry, hidden.min(intermediate), 1, 5);
    }
}

#[test]
fn gpt_oss_experts_have_biases_and_a_clamp() {
    for (bias, limit) in [(FloatType::Bf16, 7.0), (FloatType::F32, 0.5), (FloatType::F16, 1.0)] {
        let geometry = ExpertGeometry {
            bias: Some(bias),
            activation: Activation::ClampedSwiGlu { alpha: 1.702, limit },
            ..ExpertGeometry::uniform(2880, 96, Quantisation::Mxfp4)
        };
        check_against_reference(geometry, 2, 6);
    }
}

#[test]
fn projections_may_be_stored_in_different_formats() {
    let geometry = ExpertGeometry {
        quantisation: [affine(6, 64, FloatType::Bf16), Q8, affine(4, 32, FloatType::F16)],
        ..ExpertGeometry::uniform(128, 192, Q4)
    };
    check_against_reference(geometry, 3, 7);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn odd_shapes_compute_what_their_bytes_say(
        hidden in 1u32..300,
        intermediate in 1u32..300,
        rows in 1usize..9,
        format in 0usize..11,
        seed in any::<u64>(),
    ) {
        let format = [Q4, Q8, q4(1), q4(5), q4(16), q4(32), q4(48), q4(64), q4(96), q4(128), q4(1000)][format];
        // Shapes may be far from square here: the error is that of the longest sum.
        let geometry = ExpertGeometry::uniform(hidden, intermediate, format);
        check_families(&families(1), geometry, hidden.max(intermediate), rows, seed);
    }
}

/// Bits of each row of `input` when computed `at_once` rows at a time.
fn bits(family: &HostFamily, expert: ExpertView<'_>, input: &[f32], at_once: usize) -> Vec<u32> {
    let hidden = expert.geometry().hidden as usize;
    let calls = input.chunks(at_once * hidden).flat_map(|input| run_one(family, expert, input));
    calls.map(f32::to_bits).collect()
}

fn check_bits(geometry: ExpertGeometry, rows: usize) {
    for (one, two) in families(1).iter().zip(&families(2)) {
        check_bits_of(one, two, geometry, rows);
    }
}

fn check_bits_of(one: &HostFamily, two: &HostFamily, geometry: ExpertGeometry, rows: usize) {
    let mut random = fastrand::Rng::with_seed(11);
    let experts = Experts::random(geometry, 1, &mut random);
    let input = random_rows(rows, geometry.hidden as usize, &mut random);
    let alone = bits(one, experts.view(0), &input, 1);
    for at_once in [2, 7, 13, 32, 256].into_iter().filter(|&at_once| at_once <= rows || at_once == 256) {
        for family in [one, two] {
            let together = bits(family, experts.view(0), &input, at_once);
            let (isa, threads) = (family.isa(), family.threads());
            assert!(alone == together, "{isa:?} {geometry:?} {at_once} at once on {threads} threads");
        }
    }
}

#[test]
fn a_rows_bits_do_not_depend_on_the_rows_beside_it_or_on_the_threads() {
    for quantisation in formats() {
        check_bits(ExpertGeometry::uniform(128, 256, quantisation), 7);
    }
    for (hidden, intermediate) in [(65, 33), (96, 40), (1, 1), (200, 72)] {
        for quantisation in [Q4, Q8, q4(48), q4(7)] {
            check_bits(ExpertGeometry::uniform(hidden, intermediate, quantisation), 67);
        }
    }
}

#[test]
fn a_rows_bits_at_production_widths_do_not_depend_on_the_rows_beside_it() {
    // The best instruction set only: without optimisation the portable one takes minutes.
    let (one, two) = (family(1), family(2));
    for (hidden, intermediate, quantisation) in [
        (6144, 64, Q4),
        (64, 2048, Q4),
        (2048, 128, affine(4, 64, FloatType::Bf16)),
        (2880, 64, Quantisation::Mxfp4),
    ] {
        check_bits_of(&one, &two, ExpertGeometry::uniform(hidden, intermediate, quantisation), 33);
    }
}

#[test]
fn a_waves_bits_do_not_depend_on_how_it_is_split_over_calls() {
    let mut random = fastrand::Rng::with_seed(12);
    let geometry = ExpertGeometry::uniform(192, 96, q4(32));
    let experts = Experts::random(geometry, 5, &mut random);
    let input = random_rows(90, 192, &mut random);
    let uses: [Vec<u32>; 5] =
        [(0..90).collect(), vec![3], vec![7, 2], (10..80).rev().collect(), vec![5, 5, 5]];
    let mut next = 0..;
    let pairs = uses.each_ref().map(|uses| uses.iter().map(|_| next.next().unwrap()).collect::<Vec<u32>>());
    let jobs: Vec<HostJob<'_>> =
        (0..5).map(|e| HostJob { expert: experts.view(e), rows: &uses[e], pairs: &pairs[e] }).collect();
    let poisoned = || vec![f32::NAN; next.clone().next().unwrap() as usize * 192];
    for family in families(2) {
        let mut together = poisoned();
        family.run(&jobs, &input, &mut together).unwrap();
        let mut apart = poisoned();
        for job in jobs.iter().rev() {
            family.run(std::slice::from_ref(job), &input, &mut apart).unwrap();
        }
        assert!(together.iter().all(|y| y.is_finite()));
        assert!(together.iter().zip(&apart).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

#[test]
fn a_call_larger_than_its_scratch_goes_in_rounds() {
    // 64 MiB of packed rows are 2048 uses of this width.
    let mut random = fastrand::Rng::with_seed(13);
    let geometry = ExpertGeometry::uniform(8128, 16, Q8);
    let experts = Experts::random(geometry, 2, &mut random);
    let input = random_rows(3, 8128, &mut random);
    let rows: Vec<u32> = (0..1100).map(|i| i % 3).collect();
    let pairs: [Vec<u32>; 2] = [(0..1100).collect(), (1100..2200).collect()];
    let jobs = [0, 1].map(|e| HostJob { expert: experts.view(e), rows: &rows, pairs: &pairs[e] });
    let family = family(2);
    let mut output = vec![f32::NAN; 2200 * 8128];
    family.run(&jobs, &input, &mut output).unwrap();
    for (e, output) in output.chunks_exact(1100 * 8128).enumerate() {
        let alone = run_one(&family, experts.view(e), &input);
        for (row, got) in output.chunks_exact(8128).enumerate() {
            assert_eq!(got, &alone[row % 3 * 8128..][..8128], "expert {e} row {row}");
        }
    }
}

#[test]
fn rows_that_no_use_writes_keep_what_they_hold() {
    let mut random = fastrand::Rng::with_seed(14);
    let experts = Experts::random(ExpertGeometry::uniform(64, 64, Q4), 1, &mut random);
    let input = random_rows(2, 64, &mut random);
    let mut output = vec![7.0; 4 * 64];
    let job = HostJob { expert: experts.view(0), rows: &[1, 0], pairs: &[3, 1] };
    family(1).run(&[job], &input, &mut output).unwrap();
    assert!(output[..64].iter().chain(&output[128..192]).all(|&y| y == 7.0));
    assert!(output[64..128].iter().chain(&output[192..]).all(|&y| y != 7.0));
}

#[test]
fn an_expert_of_zero_weights_gives_zeros() {
    for quantisation in [Q4, Q8, q4(32)] {
        let geometry = ExpertGeometry::uniform(6144, 128, quantisation);
        let mut experts = Experts::random(geometry, 1, &mut fastrand::Rng::with_seed(15));
        for projection in Projection::ALL {
            let range = experts.layout.range(projection, Part::Weight).unwrap();
            let zero = if quantisation == Q8 { 0 } else { 0x88 };
            experts.slots[0][range.start as usize..range.end as usize].fill(zero);
        }
        let input: Vec<f32> = (0..3 * 6144).map(|i| 1.0 + (i % 17) as f32).collect();
        for family in families(1) {
            assert!(run_one(&family, experts.view(0), &input).iter().all(|&y| y == 0.0));
        }
    }
}

#[test]
fn a_nan_in_one_row_stays_in_that_row() {
    let mut random = fastrand::Rng::with_seed(16);
    let experts = Experts::random(ExpertGeometry::uniform(256, 128, Q4), 1, &mut random);
    let clean = random_rows(9, 256, &mut random);
    let mut input = clean.clone();
    input[4 * 256 + 77] = f32::NAN;
    input[6 * 256] = f32::INFINITY;
    for family in families(1) {
        let (want, got) =
            (run_one(&family, experts.view(0), &clean), run_one(&family, experts.view(0), &input));
        for (row, (want, got)) in want.chunks_exact(256).zip(got.chunks_exact(256)).enumerate() {
            match row {
                4 | 6 => assert!(got.iter().all(|y| !y.is_finite()), "row {row}"),
                _ => assert_eq!(want, got, "row {row}"),
            }
        }
    }
}

#[test]
fn bad_calls_are_refused_before_any_work() {
    let mut random = fastrand::Rng::with_seed(17);
    let experts = Experts::random(ExpertGeometry::uniform(64, 32, Q4), 1, &mut random);
    let others = Experts::random(ExpertGeometry::uniform(64, 96, Q4), 1, &mut random);
    let family = family(1);
    let expert = experts.view(0);
    let good = HostJob { expert, rows: &[0], pairs: &[0] };
    let refusal = |jobs: &[HostJob<'_>], input: usize, output: usize| {
        let mut output = vec![7.0; output];
        let error = family.run(jobs, &vec![1.0; input], &mut output).unwrap_err();
        assert!(output.iter().all(|&y| y == 7.0), "{error}");
        error
    };
    let no_rows = HostJob { rows: &[], pairs: &[], ..good };
    assert!(matches!(refusal(&[good, no_rows], 64, 64), HostError::NoRows { job: 1 }));
    let uneven = HostJob { rows: &[0, 0], ..good };
    assert!(matches!(refusal(&[uneven], 64, 64), HostError::Uneven { job: 0, rows: 2, pairs: 1 }));
    let beyond = HostJob { rows: &[2], ..good };
    assert!(matches!(refusal(&[beyond], 128, 64), HostError::RowOutOfRange { job: 0, row: 2, rows: 2 }));
    let beyond = HostJob { pairs: &[1], ..good };
    assert!(matches!(refusal(&[beyond], 64, 64), HostError::PairOutOfRange { job: 0, pair: 1, pairs: 1 }));
    assert!(matches!(refusal(&[good, good], 64, 64), HostError::PairTwice { job: 1, pair: 0 }));
    assert!(matches!(refusal(&[good], 63, 64), HostError::PartialRow { slice: "input", values: 63, .. }));
    assert!(matches!(refusal(&[good], 64, 65), HostError::PartialRow { slice: "output", values: 65, .. }));
    assert!(matches!(refusal(&[good], 0, 64), HostError::RowOutOfRange { rows: 0, .. }));
    let other = HostJob { expert: others.view(0), rows: &[0], pairs: &[1] };
    assert!(matches!(refusal(&[good, other], 64, 128), HostError::MixedGeometry { job: 1 }));
    let wrong_layout = ExpertView::new(&experts.geometry, &others.layout, &others.slots[0]).unwrap();
    let wrong = HostJob { expert: wrong_layout, ..good };
    assert!(matches!(refusal(&[wrong], 64, 64), HostError::PartBytes { job: 0, part: Part::Weight, .. }));
}

#[test]
fn a_call_without_jobs_does_nothing() {
    family(1).run(&[], &[], &mut []).unwrap();
}

#[test]
fn a_family_can_share_the_callers_pool() {
    let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap());
    let family = HostFamily::new(HostOptions::new().threads(HostThreads::Pool(pool))).unwrap();
    assert_eq!(family.threads(), 3);
    let mut random = fastrand::Rng::with_seed(18);
    let experts = Experts::random(ExpertGeometry::uniform(128, 320, Q8), 1, &mut random);
    let input = random_rows(5, 128, &mut random);
    let alone = HostFamily::new(HostOptions::new().threads(HostThreads::Count(NonZeroUsize::MIN))).unwrap();
    assert_eq!(run_one(&family, experts.view(0), &input), run_one(&alone, experts.view(0), &input));
}

#[test]
fn support_says_what_will_be_slow_and_what_cannot_be() {
    let family = family(1);
    let support = |quantisation| family.supports(&ExpertGeometry::uniform(256, 128, quantisation));
    for quantisation in [Q4, Q8, q4(64), affine(4, 32, FloatType::F32), affine(8, 128, FloatType::Bf16)] {
        assert_eq!(support(quantisation), HostSupport::Fast);
    }
    assert_eq!(support(affine(3, 64, FloatType::F16)), HostSupport::Generic);
    assert!(matches!(support(affine(7, 64, FloatType::F16)), HostSupport::Unsupported(_)));
}

fn int8_families() -> Vec<HostFamily> {
    let options = HostOptions::new().thread_count(1).activations(HostActivations::Int8);
    ISAS.iter().filter_map(|&isa| HostFamily::new(options.clone().isa(isa)).ok()).collect()
}

/// The formats that have kernels for eight-bit inputs.
fn int8_formats() -> [Quantisation; 8] {
    let bf16 = FloatType::Bf16;
    [
        Q4,
        Q8,
        q4(32),
        q4(96),
        affine(4, 64, bf16),
        affine(8, 32, bf16),
        affine(8, 128, bf16),
        Quantisation::Mxfp4,
    ]
}

#[test]
fn eight_bit_inputs_give_the_same_bits_everywhere_within_the_stated_error() {
    let mut random = fastrand::Rng::with_seed(19);
    for quantisation in int8_formats() {
        for (hidden, intermediate) in [(256, 128), (1024, 384)] {
            let experts =
                Experts::random(ExpertGeometry::uniform(hidden, intermediate, quantisation), 1, &mut random);
            let input = random_rows(6, hidden as usize, &mut random);
            let want = reference(&experts.view(0), &input);
            let families = int8_families();
            let first = bits(&families[0], experts.view(0), &input, 1);
            for family in &families {
                for at_once in [1, 2, 6] {
                    let got = bits(family, experts.view(0), &input, at_once);
                    assert!(got == first, "{:?} {quantisation:?}, {at_once} at once", family.isa());
                }
            }
            let rows = first.chunks_exact(hidden as usize).zip(want.chunks_exact(hidden as usize));
            for (got, want) in rows {
                let norm = want.iter().map(|y| y * y).sum::<f64>().sqrt();
                let off = got
                    .iter()
                    .zip(want)
                    .map(|(&y, w)| (f64::from(f32::from_bits(y)) - w).powi(2))
                    .sum::<f64>();
                assert!(off.sqrt() / norm <= 0.02, "{quantisation:?}: {}", off.sqrt() / norm);
            }
        }
    }
}

#[test]
fn eight_bit_inputs_take_odd_widths_zeros_and_nan() {
    for family in int8_families() {
        for quantisation in [Q4, Q8, q4(64)] {
            let mut random = fastrand::Rng::with_seed(20);
            let experts = Experts::random(ExpertGeometry::uniform(65, 33, quantisation), 1, &mut random);
            let mut input = random_rows(3, 65, &mut random);
            input[..65].fill(0.0);
            input[65 + 64] = f32::NAN;
            let got = run_one(&family, experts.view(0), &input);
            assert!(got[..65].iter().all(|&y| y == 0.0));
            assert!(got[65..130].iter().all(|y| y.is_nan()));
            let want = reference(&experts.view(0), &input[130..]);
            assert!(error(&got[130..], &want, 33) * 1e-6 * 33f64.sqrt() <= 0.02);
        }
    }
}

#[test]
fn formats_without_kernels_for_eight_bits_stay_exact() {
    for quantisation in [Quantisation::Nvfp4, q4(48), affine(3, 64, FloatType::F16)] {
        let geometry = ExpertGeometry::uniform(192, 64, quantisation);
        check_families(&int8_families(), geometry, geometry.hidden.min(geometry.intermediate), 2, 21);
    }
}
