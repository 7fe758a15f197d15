//! Plain Rust: arrays that the compiler vectorises as it can.

use super::super::{
    lanes::{EIGHTS, Kernel, LANES, Lanes, plain_nibbles, sum_of_eight},
    plan::Int8Step,
};

/// The token of the portable path: every machine has it.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Portable;

impl Lanes for Portable {
    const CENTRED: bool = false;

    type F = [f32; LANES];
    type Stored = [f32; LANES];
    type Nibbles = [[f32; LANES]; 8];
    type Bytes = [[f32; LANES]; 4];
    type Table = [u8; 16];
    type Eight = [f32; LANES];

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn load(self, values: &Self::Stored) -> Self::F {
        *values
    }

    #[inline(always)]
    fn store(self, lanes: Self::F, to: &mut Self::Stored) {
        *to = lanes;
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn add_segment(
        self,
        total: Self::F,
        sum: Self::F,
        centres: &[[f32; LANES]],
        segment: usize,
        scales: [f32; 2],
    ) -> Self::F {
        std::array::from_fn(|i| (sum[i] - centres[segment][i]) * scales[i / 4] + total[i])
    }

    #[inline(always)]
    fn sum(self, lanes: Self::F) -> f32 {
        sum_of_eight(&lanes)
    }

    #[inline(always)]
    fn table(self, bytes: &[u8; 16]) -> Self::Table {
        *bytes
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 32], table: Self::Table) -> Self::Nibbles {
        plain_nibbles(bytes, &table)
    }

    #[inline(always)]
    fn integer_nibbles(self, bytes: &[u8; 32]) -> Self::Nibbles {
        plain_nibbles(bytes, &EIGHTS)
    }

    #[inline(always)]
    fn signed_bytes(self, bytes: &[u8; 32]) -> Self::Bytes {
        let vectors = bytes.as_chunks::<LANES>().0;
        std::array::from_fn(|vector| vectors[vector].map(|b| f32::from(b.cast_signed())))
    }

    #[inline(always)]
    fn unsigned_bytes(self, bytes: &[u8; 32]) -> Self::Bytes {
        let vectors = bytes.as_chunks::<LANES>().0;
        std::array::from_fn(|vector| vectors[vector].map(f32::from))
    }

    #[inline(always)]
    fn splat_eight(self, value: f32) -> Self::Eight {
        [value; LANES]
    }

    #[inline(always)]
    fn splat_halves(self, low: f32, high: f32) -> Self::Eight {
        [low, low, low, low, high, high, high, high]
    }

    #[inline(always)]
    fn load_eight(self, values: &[f32; LANES]) -> Self::Eight {
        *values
    }

    #[inline(always)]
    fn dot_nibbles(self, bytes: &[u8; 32], table: Self::Table, step: &Int8Step<'_>) -> Self::Eight {
        let (even, odd) = step.values.split_at(32);
        std::array::from_fn(|lane| {
            let sum: i32 = (4 * lane..4 * lane + 4)
                .map(|i| {
                    let low = i32::from(table[usize::from(bytes[i] & 15)]);
                    let high = i32::from(table[usize::from(bytes[i] >> 4)]);
                    low * i32::from(even[i]) + high * i32::from(odd[i])
                })
                .sum();
            (sum + step.centres[lane]) as f32
        })
    }

    #[inline(always)]
    fn dot_bytes(self, bytes: &[u8; 32], flip: u8, step: &Int8Step<'_>) -> Self::Eight {
        std::array::from_fn(|lane| {
            let sum: i32 = (4 * lane..4 * lane + 4)
                .map(|i| i32::from((bytes[i] ^ flip).cast_signed()) * i32::from(step.values[i]))
                .sum();
            sum as f32
        })
    }

    #[inline(always)]
    fn add_scaled(self, total: Self::Eight, a: Self::Eight, b: Self::Eight, c: Self::Eight) -> Self::Eight {
        std::array::from_fn(|i| total[i] + (a[i] * b[i]) * c[i])
    }

    #[inline(always)]
    fn total(self, lanes: Self::Eight) -> f32 {
        sum_of_eight(&lanes)
    }

    #[inline(always)]
    fn prefetch(self, _: &[u8], _: usize) {}
}
