//! AVX2 with FMA.
//!
//! # Soundness
//! *Type*: vectors of f32 and of integers are plain bits. *Initialisation*: every load is from a reference to an array
//! of the load's size. *Lifetime*: nothing is kept. *Bounds*: as initialisation; a prefetch reads nothing. *Threads*:
//! the token is a proof about the machine, the same for every thread: [`Avx2::detect`] makes it only where the processor
//! has AVX2 and FMA and the system saves their registers (invariant 1), so the intrinsics may be executed wherever a
//! token is at hand.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::{
    lanes::{Kernel, LANES, Lanes, sum_of_eight},
    plan::Int8Step,
};

/// The token of AVX2 and FMA.
///
/// # Invariants
/// 1. A value exists only on machines where both were detected.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Avx2(());

impl Avx2 {
    /// The token, where the machine has the instruction set.
    pub(in super::super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }
}

/// Everything inlined into this is compiled for the instruction set.
#[target_feature(enable = "avx2,fma")]
fn enter<K: Kernel>(token: Avx2, kernel: K) -> K::Output {
    kernel.run(token)
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn splat_halves(low: f32, high: f32) -> __m256 {
    _mm256_insertf128_ps::<1>(_mm256_set1_ps(low), _mm_set1_ps(high))
}

/// The vectors of looked-up bytes.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn floats(low_nibbles: __m256i, high_nibbles: __m256i) -> [__m256; 8] {
    let exponent = _mm256_set1_epi8(0x40);
    let words = [
        _mm256_unpacklo_epi8(low_nibbles, exponent),
        _mm256_unpacklo_epi8(high_nibbles, exponent),
        _mm256_unpackhi_epi8(low_nibbles, exponent),
        _mm256_unpackhi_epi8(high_nibbles, exponent),
    ];
    // A shuffle rather than a shift: some processors shift in one pipe only.
    let lower = _mm256_set_epi8(
        13, 12, -1, -1, 9, 8, -1, -1, 5, 4, -1, -1, 1, 0, -1, -1, 13, 12, -1, -1, 9, 8, -1, -1, 5, 4, -1, -1,
        1, 0, -1, -1,
    );
    let mut floats = [_mm256_setzero_ps(); 8];
    for (floats, words) in floats.as_chunks_mut::<2>().0.iter_mut().zip(words) {
        *floats = [_mm256_castsi256_ps(words), _mm256_castsi256_ps(_mm256_shuffle_epi8(words, lower))];
    }
    floats
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn nibbles(bytes: __m256i, table: __m256i) -> [__m256; 8] {
    let mask = _mm256_set1_epi8(15);
    let low_nibbles = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, mask));
    let high_nibbles = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask));
    floats(low_nibbles, high_nibbles)
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn integer_nibbles(bytes: __m256i) -> [__m256; 8] {
    let eights = _mm256_set_epi64x(
        0x7870_6860_5850_4840,
        0x3830_2820_1810_0800,
        0x7870_6860_5850_4840,
        0x3830_2820_1810_0800,
    );
    let low_nibbles = _mm256_shuffle_epi8(eights, _mm256_and_si256(bytes, _mm256_set1_epi8(15)));
    let high_nibbles = _mm256_and_si256(_mm256_srli_epi16::<1>(bytes), _mm256_set1_epi8(0x78));
    floats(low_nibbles, high_nibbles)
}

/// Eight bytes in the lower half of a register.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn load_eight(bytes: &[u8; 8]) -> __m128i {
    _mm_cvtsi64_si128(i64::from_le_bytes(*bytes))
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn signed_bytes(vectors: &[[u8; 8]]) -> [__m256; 4] {
    let mut floats = [_mm256_setzero_ps(); 4];
    for (floats, bytes) in floats.iter_mut().zip(vectors) {
        *floats = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_eight(bytes)));
    }
    floats
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn unsigned_bytes(vectors: &[[u8; 8]]) -> [__m256; 4] {
    let mut floats = [_mm256_setzero_ps(); 4];
    for (floats, bytes) in floats.iter_mut().zip(vectors) {
        *floats = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_eight(bytes)));
    }
    floats
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn dot_nibbles(bytes: &[u8; 32], table: __m256i, step: &Int8Step<'_>) -> __m256 {
    let [even, odd]: &[[i8; 32]; 2] = bytemuck::cast_ref(step.values);
    let (bytes, mask) = (load_words(bytes), _mm256_set1_epi8(15));
    let low = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, mask));
    let high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask));
    // Looked-up bytes are at most 24, so neither the pairs nor their sum saturate: 4 × 24 × 127 < 32,768.
    let low = _mm256_maddubs_epi16(low, load_words(bytemuck::cast_ref(even)));
    let high = _mm256_maddubs_epi16(high, load_words(bytemuck::cast_ref(odd)));
    let sums = _mm256_madd_epi16(_mm256_add_epi16(low, high), _mm256_set1_epi16(1));
    _mm256_cvtepi32_ps(_mm256_add_epi32(sums, load_words(bytemuck::cast_ref(step.centres))))
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn dot_bytes(bytes: &[u8; 32], flip: u8, step: &Int8Step<'_>) -> __m256 {
    let [values, _]: &[[u8; 32]; 2] = bytemuck::cast_ref(step.values);
    let bytes = _mm256_xor_si256(load_words(bytes), _mm256_set1_epi8(flip.cast_signed()));
    // |byte| × (value with the byte's sign): values are at most 127 in size, so no pair saturates: 2 × 128 × 127 < 32,768.
    let values = _mm256_sign_epi8(load_words(values), bytes);
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(bytes), values);
    _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn add_scaled(total: __m256, a: __m256, b: __m256, c: __m256) -> __m256 {
    _mm256_add_ps(total, _mm256_mul_ps(_mm256_mul_ps(a, b), c))
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn load_words(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the array has the load's 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

impl Lanes for Avx2 {
    const CENTRED: bool = false;

    type F = __m256;
    type Stored = [f32; LANES];
    type Nibbles = [__m256; 8];
    type Bytes = [__m256; 4];
    type Table = __m256i;
    type Eight = __m256;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: invariant 1.
        unsafe { enter(self, kernel) }
    }

    #[inline(always)]
    fn load(self, values: &Self::Stored) -> Self::F {
        self.load_eight(values)
    }

    #[inline(always)]
    fn store(self, lanes: Self::F, to: &mut Self::Stored) {
        // SAFETY: invariant 1; the array has the store's 32 bytes.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), lanes) }
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: invariant 1.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn add_segment(
        self,
        total: Self::F,
        sum: Self::F,
        centres: &[[f32; LANES]],
        segment: usize,
        [low, high]: [f32; 2],
    ) -> Self::F {
        let (centre, scales) = (self.load_eight(&centres[segment]), self.splat_halves(low, high));
        // SAFETY: invariant 1.
        self.mul_add(unsafe { _mm256_sub_ps(sum, centre) }, scales, total)
    }

    #[inline(always)]
    fn sum(self, lanes: Self::F) -> f32 {
        self.total(lanes)
    }

    #[inline(always)]
    fn table(self, bytes: &[u8; 16]) -> Self::Table {
        // SAFETY: invariant 1; the array has the load's 16 bytes.
        let half = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        // SAFETY: invariant 1.
        unsafe { _mm256_broadcastsi128_si256(half) }
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 32], table: Self::Table) -> Self::Nibbles {
        // SAFETY: invariant 1; the array has the load's 32 bytes.
        let bytes = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
        // SAFETY: invariant 1.
        unsafe { nibbles(bytes, table) }
    }

    #[inline(always)]
    fn integer_nibbles(self, bytes: &[u8; 32]) -> Self::Nibbles {
        // SAFETY: invariant 1; the array has the load's 32 bytes.
        let bytes = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
        // SAFETY: invariant 1.
        unsafe { integer_nibbles(bytes) }
    }

    #[inline(always)]
    fn signed_bytes(self, bytes: &[u8; 32]) -> Self::Bytes {
        // SAFETY: invariant 1.
        unsafe { signed_bytes(bytes.as_chunks().0) }
    }

    #[inline(always)]
    fn unsigned_bytes(self, bytes: &[u8; 32]) -> Self::Bytes {
        // SAFETY: invariant 1.
        unsafe { unsigned_bytes(bytes.as_chunks().0) }
    }

    #[inline(always)]
    fn splat_eight(self, value: f32) -> Self::Eight {
        // SAFETY: invariant 1.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn splat_halves(self, low: f32, high: f32) -> Self::Eight {
        // SAFETY: invariant 1.
        unsafe { splat_halves(low, high) }
    }

    #[inline(always)]
    fn load_eight(self, values: &[f32; LANES]) -> Self::Eight {
        // SAFETY: invariant 1; the array has the load's 32 bytes.
        unsafe { _mm256_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn dot_nibbles(self, bytes: &[u8; 32], table: Self::Table, step: &Int8Step<'_>) -> Self::Eight {
        // SAFETY: invariant 1.
        unsafe { dot_nibbles(bytes, table, step) }
    }

    #[inline(always)]
    fn dot_bytes(self, bytes: &[u8; 32], flip: u8, step: &Int8Step<'_>) -> Self::Eight {
        // SAFETY: invariant 1.
        unsafe { dot_bytes(bytes, flip, step) }
    }

    #[inline(always)]
    fn add_scaled(self, total: Self::Eight, a: Self::Eight, b: Self::Eight, c: Self::Eight) -> Self::Eight {
        // SAFETY: invariant 1.
        unsafe { add_scaled(total, a, b, c) }
    }

    #[inline(always)]
    fn total(self, lanes: Self::Eight) -> f32 {
        let mut eight = [0.0; LANES];
        self.store(lanes, &mut eight);
        sum_of_eight(&eight)
    }

    #[inline(always)]
    fn prefetch(self, bytes: &[u8], offset: usize) {
        let line = bytes.as_ptr().wrapping_add(offset).cast();
        // SAFETY: a prefetch of any address is allowed; it neither reads nor faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) }
    }
}
