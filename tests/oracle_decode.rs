//! Every storage format against an independent reading of its definition. If these fail, every weight is wrong.

use half::{bf16, f16};
use proptest::prelude::*;
use streamed_experts::{DecodeError, FloatType, Part, Quantisation, decode_floats, dequantise_row};

const FLOATS: [FloatType; 3] = [FloatType::F32, FloatType::F16, FloatType::Bf16];

fn dequantise(
    quantisation: Quantisation,
    columns: usize,
    [weights, scales, biases]: [&[u8]; 3],
) -> Result<Vec<f64>, DecodeError> {
    let mut out = vec![f64::NAN; columns];
    dequantise_row(quantisation, weights, scales, biases, &mut out).map(|()| out)
}

fn store(kind: FloatType, values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&value| match kind {
            FloatType::F32 => value.to_le_bytes().to_vec(),
            FloatType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            FloatType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        })
        .collect()
}

/// Packs codes bit by bit into u32 words, lowest bits first.
fn pack(codes: &[u8], bits: usize) -> Vec<u8> {
    let mut words = vec![0u32; (codes.len() * bits).div_ceil(32)];
    for (column, &code) in codes.iter().enumerate() {
        for bit in 0..bits {
            let place = column * bits + bit;
            words[place / 32] |= u32::from(code >> bit & 1) << (place % 32);
        }
    }
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Multiples of 1/8 below 16 are exact in every float type.
fn eighths(count: usize) -> impl Strategy<Value = Vec<f32>> {
    proptest::collection::vec((-127i16..=127).prop_map(|n| f32::from(n) / 8.0), count..=count)
}

proptest! {
    #[test]
    fn affine_rows_of_every_width_are_code_times_scale_plus_bias(
        codes in proptest::collection::vec(any::<u8>(), 256..=256),
        scales in eighths(8),
        biases in eighths(8),
    ) {
        for bits in [2, 3, 4, 5, 6, 8] {
            let codes: Vec<u8> = codes.iter().map(|code| code & (u8::MAX >> (8 - bits))).collect();
            for (group, kind) in [32u32, 64, 128].into_iter().flat_map(|group| FLOATS.map(|kind| (group, kind))) {
                let groups = 256 / group as usize;
                let (scales, biases) = (&scales[..groups], &biases[..groups]);
                let parts = [pack(&codes, bits), store(kind, scales), store(kind, biases)];
                let quantisation = Quantisation::Affine { bits: u32::try_from(bits).unwrap(), group, scales: kind };
                let got = dequantise(quantisation, 256, [&parts[0], &parts[1], &parts[2]]).unwrap();
                for (column, got) in got.into_iter().enumerate() {
                    let (scale, bias) = (scales[column / group as usize], biases[column / group as usize]);
                    prop_assert_eq!(got, f64::from(codes[column]) * f64::from(scale) + f64::from(bias));
                }
            }
        }
    }

    #[test]
    fn signed_rows_may_be_odd_and_their_last_group_short(
        values in proptest::collection::vec(-8i8..8, 1..80),
        group in 1u32..=48,
        scales in eighths(80),
    ) {
        let columns = values.len();
        let nibble = |column: usize| values.get(column).map_or(8, |value| (value + 8).cast_unsigned());
        let weights: Vec<u8> = (0..columns.div_ceil(2)).map(|i| nibble(2 * i) | nibble(2 * i + 1) << 4).collect();
        for (group, width) in [(Some(group), group as usize), (None, columns)] {
            let scales = &scales[..columns.div_ceil(width)];
            let quantisation = Quantisation::Signed { bits: 4, group };
            let got = dequantise(quantisation, columns, [&weights, &store(FloatType::F32, scales), &[]]).unwrap();
            for (column, got) in got.into_iter().enumerate() {
                prop_assert_eq!(got, f64::from(values[column]) * f64::from(scales[column / width]));
            }
        }
        let weights: Vec<u8> = values.iter().map(|value| (value * 16).cast_unsigned()).collect();
        let quantisation = Quantisation::Signed { bits: 8, group: None };
        let got = dequantise(quantisation, columns, [&weights, &0.25f32.to_le_bytes(), &[]]).unwrap();
        prop_assert!(got.into_iter().eq(values.iter().map(|&value| f64::from(value) * 4.0)));
    }

    #[test]
    fn colibri_nibbles_are_mlx_codes_with_a_bias_of_minus_eight_scales(
        weights in proptest::collection::vec(any::<u8>(), 32..=32),
        scales in eighths(2),
    ) {
        let biases: Vec<f32> = scales.iter().map(|scale| -8.0 * scale).collect();
        let (scales, biases) = (store(FloatType::F32, &scales), store(FloatType::F32, &biases));
        let signed = Quantisation::Signed { bits: 4, group: Some(32) };
        let affine = Quantisation::Affine { bits: 4, group: 32, scales: FloatType::F32 };
        prop_assert_eq!(
            dequantise(signed, 64, [&weights, &scales, &[]]).unwrap(),
            dequantise(affine, 64, [&weights, &scales, &biases]).unwrap()
        );
    }

    #[test]
    fn alignment_does_not_matter(bytes in proptest::collection::vec(any::<u8>(), 200..=200), shift in 0usize..8) {
        let affine = Quantisation::Affine { bits: 5, group: 32, scales: FloatType::F32 };
        let parts = [&bytes[..40], &bytes[40..48], &bytes[48..56]];
        let shifted: Vec<Vec<u8>> = parts.iter().map(|part| [&vec![0; shift], *part].concat()).collect();
        let moved = [&shifted[0][shift..], &shifted[1][shift..], &shifted[2][shift..]];
        let bits = |row: Vec<f64>| row.into_iter().map(f64::to_bits).collect::<Vec<_>>();
        prop_assert_eq!(
            bits(dequantise(affine, 64, parts).unwrap()),
            bits(dequantise(affine, 64, moved).unwrap())
        );
    }
}

const E2M1: [f64; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// A byte that counts nibbles up: 0x10, 0x32, …, 0xFE.
fn all_nibbles() -> [u8; 8] {
    std::array::from_fn(|i| u8::try_from((2 * i) | ((2 * i + 1) << 4)).unwrap())
}

#[test]
fn mxfp4_is_e2m1_times_a_power_of_two() {
    let weights = all_nibbles().repeat(4);
    let got = dequantise(Quantisation::Mxfp4, 64, [&weights, &[127 + 3, 0], &[]]).unwrap();
    for (column, got) in got.into_iter().enumerate() {
        let scale = if column < 32 { 8.0 } else { 2.0f64.powi(-127) };
        assert_eq!(got.to_bits(), (E2M1[column % 16] * scale).to_bits());
    }
}

#[test]
fn an_e8m0_scale_of_all_ones_is_nan() {
    for quantisation in [Quantisation::Mxfp4, Quantisation::Mxfp8] {
        let weights = vec![0x11; 4 * quantisation.bits() as usize];
        let got = dequantise(quantisation, 32, [&weights, &[255], &[]]).unwrap();
        assert!(got.into_iter().all(f64::is_nan));
    }
}

/// E4M3 read as a binary16: the same sign, mantissa and exponent field, eight below in bias.
fn e4m3(code: u8) -> f64 {
    if code & 0x7F == 0x7F {
        return f64::NAN;
    }
    f64::from(f16::from_bits(u16::from(code & 0x80) << 8 | u16::from(code & 0x7F) << 7)) * 256.0
}

#[test]
fn mxfp8_is_e4m3_times_a_power_of_two() {
    let codes: Vec<u8> = (0..=255).collect();
    let got = dequantise(Quantisation::Mxfp8, 256, [&codes, &[126; 8], &[]]).unwrap();
    for (code, got) in codes.into_iter().zip(got) {
        let expected = e4m3(code) / 2.0;
        assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(), "{code:#x}: {got}");
    }
    let largest = dequantise(Quantisation::Mxfp8, 32, [&[0x7E; 32], &[127], &[]]).unwrap();
    assert_eq!(largest[0], 448.0);
}

#[test]
fn nvfp4_is_e2m1_times_an_e4m3_scale() {
    let scales: Vec<u8> = (0..=255).collect();
    let weights = all_nibbles().repeat(256);
    let got = dequantise(Quantisation::Nvfp4, 4096, [&weights, &scales, &[]]).unwrap();
    for (column, got) in got.into_iter().enumerate() {
        let expected = E2M1[column % 16] * e4m3(scales[column / 16]);
        assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan());
    }
}

#[test]
fn plain_floats_are_widened_exactly() {
    let values = [1.5f32, -0.0, f32::INFINITY, 0.099_975_586];
    for kind in [FloatType::F32, FloatType::F16] {
        let mut out = [0.0; 4];
        decode_floats(kind, &store(kind, &values), &mut out).unwrap();
        assert_eq!(out.map(f64::to_bits), values.map(|value| f64::from(value).to_bits()));
    }
    let mut out = [0.0; 2];
    decode_floats(FloatType::Bf16, &[0x80, 0x3F, 0x01, 0x00], &mut out).unwrap();
    assert_eq!(out, [1.0, 2.0f64.powi(-133)]);
    let expected = DecodeError::Floats { needed_bytes: 4, given_bytes: 3 };
    assert_eq!(decode_floats(FloatType::Bf16, &[0; 3], &mut out), Err(expected));
}

#[test]
fn bytes_of_another_length_are_refused_by_name() {
    let affine = Quantisation::Affine { bits: 4, group: 32, scales: FloatType::Bf16 };
    let bytes = [0; 64];
    let cases: [(_, [&[u8]; 3]); 4] = [
        ((Part::Weight, 32, 31), [&bytes[..31], &bytes[..4], &bytes[..4]]),
        ((Part::Weight, 32, 33), [&bytes[..33], &bytes[..4], &bytes[..4]]),
        ((Part::Scales, 4, 2), [&bytes[..32], &bytes[..2], &bytes[..4]]),
        ((Part::Biases, 4, 0), [&bytes[..32], &bytes[..4], &[]]),
    ];
    for ((part, needed_bytes, given_bytes), parts) in cases {
        let expected = DecodeError::Length { part, needed_bytes, given_bytes };
        assert_eq!(dequantise(affine, 64, parts), Err(expected));
    }
    let stray = dequantise(Quantisation::Mxfp4, 32, [&bytes[..16], &bytes[..1], &bytes[..1]]);
    assert!(matches!(stray, Err(DecodeError::Length { part: Part::Biases, .. })));
}

#[test]
fn shapes_that_a_format_cannot_store_are_refused() {
    let affine = |bits, group| Quantisation::Affine { bits, group, scales: FloatType::F32 };
    let signed = |bits, group| Quantisation::Signed { bits, group };
    let refused = [
        (affine(7, 64), 64),
        (affine(0, 64), 64),
        (affine(4, 48), 96),
        (affine(4, 64), 96),
        (affine(4, 0), 64),
        (signed(5, None), 64),
        (signed(8, Some(32)), 64),
        (signed(4, Some(0)), 64),
        (Quantisation::Mxfp4, 0),
        (Quantisation::Nvfp4, 24),
    ];
    for (quantisation, columns) in refused {
        let error = dequantise(quantisation, columns, [&[0; 64]; 3]).unwrap_err();
        assert!(matches!(error, DecodeError::Geometry(_)), "{quantisation:?}: {error}");
    }
    assert_eq!(dequantise(signed(4, None), 0, [&[], &[0; 4], &[]]), Ok(vec![]));
}
