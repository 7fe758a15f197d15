//! NEON, which every aarch64 processor has. A vector is two registers.
//!
//! # Soundness
//! *Type*: vectors of f32 and of integers are plain bits. *Initialisation*: every load is from a reference to an array
//! of the load's size. *Lifetime*: nothing is kept. *Bounds*: as initialisation. *Threads*: NEON belongs to the base of
//! the targets this file is compiled for, so the intrinsics may be executed everywhere.
#![allow(unsafe_code)]

use std::arch::aarch64::*;

use super::super::{
    lanes::{EIGHTS, Kernel, LANES, Lanes, sum_of_eight},
    plan::Int8Step,
};

/// The token of NEON.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Neon;

/// Sixteen bytes of `bytes`, from byte `16 × half` on.
#[inline(always)]
fn load_half(bytes: &[u8; 32], half: usize) -> uint8x16_t {
    let bytes = &bytes.as_chunks::<16>().0[half];
    // SAFETY: the chunk has the load's 16 bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// The words of sixteen looked-up bytes: columns in the first and in the second half of them.
#[target_feature(enable = "neon")]
#[inline]
fn words(looked_up: uint8x16_t) -> [uint32x4_t; 2] {
    let exponent = vdupq_n_u8(0x40);
    [
        vreinterpretq_u32_u8(vzip1q_u8(looked_up, exponent)),
        vreinterpretq_u32_u8(vzip2q_u8(looked_up, exponent)),
    ]
}

/// One half of [`Lanes::nibbles`]: the four lanes of each vector that come from these sixteen bytes.
#[target_feature(enable = "neon")]
#[inline]
fn nibbles(bytes: uint8x16_t, table: uint8x16_t) -> [float32x4_t; 8] {
    let low = words(vqtbl1q_u8(table, vandq_u8(bytes, vdupq_n_u8(15))));
    let high = words(vqtbl1q_u8(table, vshrq_n_u8::<4>(bytes)));
    let upper = |w: uint32x4_t| vreinterpretq_f32_u32(w);
    let lower = |w: uint32x4_t| vreinterpretq_f32_u32(vshlq_n_u32::<16>(w));
    [
        upper(low[0]),
        lower(low[0]),
        upper(high[0]),
        lower(high[0]),
        upper(low[1]),
        lower(low[1]),
        upper(high[1]),
        lower(high[1]),
    ]
}

#[target_feature(enable = "neon")]
#[inline]
fn signed(bytes: int8x8_t) -> [float32x4_t; 2] {
    let wide = vmovl_s8(bytes);
    [vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide)))]
}

#[target_feature(enable = "neon")]
#[inline]
fn unsigned(bytes: uint8x8_t) -> [float32x4_t; 2] {
    let wide = vmovl_u8(bytes);
    [vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(wide)))]
}

/// Lanes 4 × half to 4 × half + 3 of [`Lanes::dot_nibbles`].
#[target_feature(enable = "neon")]
#[inline]
fn dot_nibbles(bytes: &[u8; 32], table: uint8x16_t, step: &Int8Step<'_>, half: usize) -> float32x4_t {
    let [even, odd]: &[[u8; 32]; 2] = bytemuck::cast_ref(step.values);
    let bytes = load_half(bytes, half);
    // Looked-up bytes are at most 24, so they are signed as well, and no sum of 16 bits overflows.
    let low = vreinterpretq_s8_u8(vqtbl1q_u8(table, vandq_u8(bytes, vdupq_n_u8(15))));
    let high = vreinterpretq_s8_u8(vqtbl1q_u8(table, vshrq_n_u8::<4>(bytes)));
    let even = vreinterpretq_s8_u8(load_half(even, half));
    let odd = vreinterpretq_s8_u8(load_half(odd, half));
    let first = vmlal_s8(vmull_s8(vget_low_s8(low), vget_low_s8(even)), vget_low_s8(high), vget_low_s8(odd));
    let second =
        vmlal_s8(vmull_s8(vget_high_s8(low), vget_high_s8(even)), vget_high_s8(high), vget_high_s8(odd));
    let sums = vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second));
    let centres = load_half(bytemuck::cast_ref(step.centres), half);
    vcvtq_f32_s32(vaddq_s32(sums, vreinterpretq_s32_u8(centres)))
}

/// Lanes 4 × half to 4 × half + 3 of [`Lanes::dot_bytes`].
#[target_feature(enable = "neon")]
#[inline]
fn dot_bytes(bytes: &[u8; 32], flip: u8, step: &Int8Step<'_>, half: usize) -> float32x4_t {
    let [values, _]: &[[u8; 32]; 2] = bytemuck::cast_ref(step.values);
    let bytes = vreinterpretq_s8_u8(veorq_u8(load_half(bytes, half), vdupq_n_u8(flip)));
    let values = vreinterpretq_s8_u8(load_half(values, half));
    let first = vmull_s8(vget_low_s8(bytes), vget_low_s8(values));
    let second = vmull_s8(vget_high_s8(bytes), vget_high_s8(values));
    vcvtq_f32_s32(vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second)))
}

#[target_feature(enable = "neon")]
#[inline]
fn add_scaled(total: float32x4_t, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
    vaddq_f32(total, vmulq_f32(vmulq_f32(a, b), c))
}

impl Lanes for Neon {
    const CENTRED: bool = false;

    type F = [float32x4_t; 2];
    type Stored = [f32; LANES];
    type Nibbles = [Self::F; 8];
    type Bytes = [Self::F; 4];
    type Table = uint8x16_t;
    type Eight = Self::F;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn load(self, values: &Self::Stored) -> Self::F {
        self.load_eight(values)
    }

    #[inline(always)]
    fn store(self, lanes: Self::F, to: &mut Self::Stored) {
        for (half, to) in lanes.into_iter().zip(to.as_chunks_mut::<4>().0) {
            // SAFETY: the chunk has the store's 16 bytes.
            unsafe { vst1q_f32(to.as_mut_ptr(), half) };
        }
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: NEON is in the target's base.
        [0, 1].map(|half| unsafe { vfmaq_f32(c[half], a[half], b[half]) })
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
        let centre = self.load_eight(&centres[segment]);
        // SAFETY: NEON is in the target's base.
        let centred = [0, 1].map(|half| unsafe { vsubq_f32(sum[half], centre[half]) });
        self.mul_add(centred, self.splat_halves(low, high), total)
    }

    #[inline(always)]
    fn sum(self, lanes: Self::F) -> f32 {
        self.total(lanes)
    }

    #[inline(always)]
    fn table(self, bytes: &[u8; 16]) -> Self::Table {
        // SAFETY: the array has the load's 16 bytes.
        unsafe { vld1q_u8(bytes.as_ptr()) }
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 32], table: Self::Table) -> Self::Nibbles {
        // SAFETY: NEON is in the target's base.
        let halves = [0, 1].map(|half| unsafe { nibbles(load_half(bytes, half), table) });
        std::array::from_fn(|vector| [halves[0][vector], halves[1][vector]])
    }

    #[inline(always)]
    fn integer_nibbles(self, bytes: &[u8; 32]) -> Self::Nibbles {
        self.nibbles(bytes, self.table(&EIGHTS))
    }

    #[inline(always)]
    fn signed_bytes(self, bytes: &[u8; 32]) -> Self::Bytes {
        let vectors = bytes.as_chunks::<8>().0;
        std::array::from_fn(|vector| {
            // SAFETY: the chunk has the load's 8 bytes.
            let bytes = unsafe { vld1_s8(vectors[vector].as_ptr().cast()) };
            // SAFETY: NEON is in the target's base.
            unsafe { signed(bytes) }
        })
    }

    #[inline(always)]
    fn unsigned_bytes(self, bytes: &[u8; 32]) -> Self::Bytes {
        let vectors = bytes.as_chunks::<8>().0;
        std::array::from_fn(|vector| {
            // SAFETY: the chunk has the load's 8 bytes.
            let bytes = unsafe { vld1_u8(vectors[vector].as_ptr()) };
            // SAFETY: NEON is in the target's base.
            unsafe { unsigned(bytes) }
        })
    }

    #[inline(always)]
    fn splat_eight(self, value: f32) -> Self::Eight {
        // SAFETY: NEON is in the target's base.
        [unsafe { vdupq_n_f32(value) }; 2]
    }

    #[inline(always)]
    fn splat_halves(self, low: f32, high: f32) -> Self::Eight {
        // SAFETY: NEON is in the target's base.
        [low, high].map(|value| unsafe { vdupq_n_f32(value) })
    }

    #[inline(always)]
    fn load_eight(self, values: &[f32; LANES]) -> Self::Eight {
        let halves = values.as_chunks::<4>().0;
        // SAFETY: each chunk has the load's 16 bytes.
        [0, 1].map(|half| unsafe { vld1q_f32(halves[half].as_ptr()) })
    }

    #[inline(always)]
    fn dot_nibbles(self, bytes: &[u8; 32], table: Self::Table, step: &Int8Step<'_>) -> Self::Eight {
        // SAFETY: NEON is in the target's base.
        [0, 1].map(|half| unsafe { dot_nibbles(bytes, table, step, half) })
    }

    #[inline(always)]
    fn dot_bytes(self, bytes: &[u8; 32], flip: u8, step: &Int8Step<'_>) -> Self::Eight {
        // SAFETY: NEON is in the target's base.
        [0, 1].map(|half| unsafe { dot_bytes(bytes, flip, step, half) })
    }

    #[inline(always)]
    fn add_scaled(self, total: Self::Eight, a: Self::Eight, b: Self::Eight, c: Self::Eight) -> Self::Eight {
        // SAFETY: NEON is in the target's base.
        [0, 1].map(|half| unsafe { add_scaled(total[half], a[half], b[half], c[half]) })
    }

    #[inline(always)]
    fn total(self, lanes: Self::Eight) -> f32 {
        let mut eight = [0.0; LANES];
        self.store(lanes, &mut eight);
        sum_of_eight(&eight)
    }

    #[inline(always)]
    fn prefetch(self, _: &[u8], _: usize) {}
}
