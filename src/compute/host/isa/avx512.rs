//! AVX-512 with VNNI: sixteen lanes, and nibbles looked up as floats.
//!
//! # Soundness
//! *Type*: vectors of f32 and of integers are plain bits. *Initialisation*: every load is from a reference to an array
//! of the load's size. *Lifetime*: nothing is kept. *Bounds*: as initialisation. *Threads*: the token is a proof about the
//! machine, the same for every thread: [`Avx512::detect`] makes it only where the processor has the features and the
//! system saves their registers (invariant 1), so the intrinsics may be executed wherever a token is at hand.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{
    super::{
        lanes::{EIGHTS, Kernel, LANES, Lanes},
        plan::Int8Step,
    },
    avx2::Avx2,
};

/// The token of AVX-512 F, BW, VL, DQ and VNNI.
///
/// # Invariants
/// 1. A value exists only on machines where all of them were detected.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Avx512(Avx2);

impl Avx512 {
    /// The token, where the machine has the instruction set.
    pub(in super::super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni");
        Avx2::detect().filter(|_| has).map(Self)
    }
}

/// A table of sixteen bytes: as they are, and as the floats (b − 64) / 64.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Table {
    bytes: __m256i,
    floats: __m512,
}

/// Everything inlined into this is compiled for the instruction set.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn enter<K: Kernel>(token: Avx512, kernel: K) -> K::Output {
    kernel.run(token)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load_bytes(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the array has the load's 16 bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn float_table(bytes: &[u8; 16]) -> __m512 {
    let centred = _mm512_sub_epi32(_mm512_cvtepu8_epi32(load_bytes(bytes)), _mm512_set1_epi32(64));
    _mm512_mul_ps(_mm512_cvtepi32_ps(centred), _mm512_set1_ps(1.0 / 64.0))
}

/// The look-up reads the four lowest bits of a lane alone, so nothing needs to be cleared.
#[target_feature(enable = "avx512f")]
#[inline]
fn nibbles(halves: &[[u8; 16]], table: __m512) -> [__m512; 4] {
    let mut floats = [_mm512_setzero_ps(); 4];
    for (floats, bytes) in floats.as_chunks_mut::<2>().0.iter_mut().zip(halves) {
        let words = _mm512_cvtepu8_epi32(load_bytes(bytes));
        floats[0] = _mm512_permutexvar_ps(words, table);
        floats[1] = _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(words), table);
    }
    floats
}

#[target_feature(enable = "avx512f")]
#[inline]
fn signed_bytes(halves: &[[u8; 16]]) -> [__m512; 2] {
    let mut floats = [_mm512_setzero_ps(); 2];
    for (floats, bytes) in floats.iter_mut().zip(halves) {
        *floats = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(bytes)));
    }
    floats
}

#[target_feature(enable = "avx512f")]
#[inline]
fn unsigned_bytes(halves: &[[u8; 16]]) -> [__m512; 2] {
    let mut floats = [_mm512_setzero_ps(); 2];
    for (floats, bytes) in floats.iter_mut().zip(halves) {
        let words = _mm512_cvtepu8_epi32(load_bytes(bytes));
        *floats = _mm512_cvtepi32_ps(_mm512_sub_epi32(words, _mm512_set1_epi32(128)));
    }
    floats
}

#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
fn load_words<T: bytemuck::Pod>(words: &T) -> __m256i {
    let bytes: &[u8; 32] = bytemuck::cast_ref(words);
    // SAFETY: the array has the load's 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512vl,avx512vnni")]
#[inline]
fn dot_nibbles(bytes: &[u8; 32], table: __m256i, step: &Int8Step<'_>) -> __m256 {
    let [even, odd]: &[[i8; 32]; 2] = bytemuck::cast_ref(step.values);
    let (bytes, mask) = (load_words(bytes), _mm256_set1_epi8(15));
    let low = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, mask));
    let high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask));
    let sums = _mm256_dpbusd_epi32(load_words(step.centres), low, load_words(even));
    _mm256_cvtepi32_ps(_mm256_dpbusd_epi32(sums, high, load_words(odd)))
}

/// The bytes as unsigned ones, 128 more each, with the centre for that.
#[target_feature(enable = "avx512f,avx512vl,avx512vnni")]
#[inline]
fn dot_bytes(bytes: &[u8; 32], flip: u8, step: &Int8Step<'_>) -> __m256 {
    let [values, _]: &[[i8; 32]; 2] = bytemuck::cast_ref(step.values);
    let bytes = _mm256_xor_si256(load_words(bytes), _mm256_set1_epi8((flip ^ 0x80).cast_signed()));
    _mm256_cvtepi32_ps(_mm256_dpbusd_epi32(load_words(step.centres), bytes, load_words(values)))
}

#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn halves_added(lanes: __m512) -> __m256 {
    _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps::<1>(lanes))
}

impl Lanes for Avx512 {
    const CENTRED: bool = true;

    type F = __m512;
    type Stored = [f32; 2 * LANES];
    type Nibbles = [__m512; 4];
    type Bytes = [__m512; 2];
    type Table = Table;
    type Eight = __m256;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: invariant 1.
        unsafe { enter(self, kernel) }
    }

    #[inline(always)]
    fn load(self, values: &Self::Stored) -> Self::F {
        // SAFETY: invariant 1; the array has the load's 64 bytes.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, lanes: Self::F, to: &mut Self::Stored) {
        // SAFETY: invariant 1; the array has the store's 64 bytes.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), lanes) }
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: invariant 1.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn add_segment(
        self,
        total: Self::F,
        sum: Self::F,
        _: &[[f32; LANES]],
        _: usize,
        [low, high]: [f32; 2],
    ) -> Self::F {
        // SAFETY: invariant 1.
        let [low, high] = [unsafe { _mm512_set1_ps(low) }, unsafe { _mm512_set1_ps(high) }];
        // SAFETY: invariant 1.
        self.mul_add(sum, unsafe { _mm512_mask_blend_ps(0xff00, low, high) }, total)
    }

    #[inline(always)]
    fn sum(self, lanes: Self::F) -> f32 {
        // SAFETY: invariant 1.
        self.total(unsafe { halves_added(lanes) })
    }

    #[inline(always)]
    fn table(self, bytes: &[u8; 16]) -> Self::Table {
        // SAFETY: invariant 1.
        Table { bytes: self.0.table(bytes), floats: unsafe { float_table(bytes) } }
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 32], table: Self::Table) -> Self::Nibbles {
        // SAFETY: invariant 1.
        unsafe { nibbles(bytes.as_chunks().0, table.floats) }
    }

    #[inline(always)]
    fn integer_nibbles(self, bytes: &[u8; 32]) -> Self::Nibbles {
        self.nibbles(bytes, self.table(&EIGHTS))
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
        self.0.splat_eight(value)
    }

    #[inline(always)]
    fn splat_halves(self, low: f32, high: f32) -> Self::Eight {
        self.0.splat_halves(low, high)
    }

    #[inline(always)]
    fn load_eight(self, values: &[f32; LANES]) -> Self::Eight {
        self.0.load_eight(values)
    }

    #[inline(always)]
    fn dot_nibbles(self, bytes: &[u8; 32], table: Self::Table, step: &Int8Step<'_>) -> Self::Eight {
        // SAFETY: invariant 1.
        unsafe { dot_nibbles(bytes, table.bytes, step) }
    }

    #[inline(always)]
    fn dot_bytes(self, bytes: &[u8; 32], flip: u8, step: &Int8Step<'_>) -> Self::Eight {
        // SAFETY: invariant 1.
        unsafe { dot_bytes(bytes, flip, step) }
    }

    #[inline(always)]
    fn add_scaled(self, total: Self::Eight, a: Self::Eight, b: Self::Eight, c: Self::Eight) -> Self::Eight {
        self.0.add_scaled(total, a, b, c)
    }

    #[inline(always)]
    fn total(self, lanes: Self::Eight) -> f32 {
        self.0.total(lanes)
    }

    #[inline(always)]
    fn prefetch(self, bytes: &[u8], offset: usize) {
        self.0.prefetch(bytes, offset);
    }
}
