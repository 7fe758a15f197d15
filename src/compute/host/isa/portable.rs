//! Plain Rust: arrays that the compiler vectorises as it can.

use super::super::{
    lanes::{EIGHTS, Kernel, LANES, Lanes, plain_nibbles},
    plan::Int8Step,
};

/// The token of the portable path: every machine has it.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Portable;

impl Lanes for Portable {
    type F = [f32; LANES];
    type Table = [u8; 16];

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }

    #[inline(always)]
    fn splat_halves(self, low: f32, high: f32) -> Self::F {
        [low, low, low, low, high, high, high, high]
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::F {
        *values
    }

    #[inline(always)]
    fn store(self, lanes: Self::F, to: &mut [f32; LANES]) {
        *to = lanes;
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn table(self, bytes: &[u8; 16]) -> Self::Table {
        *bytes
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 32], table: Self::Table) -> [Self::F; 8] {
        plain_nibbles(bytes, &table)
    }

    #[inline(always)]
    fn integer_nibbles(self, bytes: &[u8; 32]) -> [Self::F; 8] {
        plain_nibbles(bytes, &EIGHTS)
    }

    #[inline(always)]
    fn signed_bytes(self, bytes: &[u8; 32]) -> [Self::F; 4] {
        let vectors = bytes.as_chunks::<LANES>().0;
        std::array::from_fn(|vector| vectors[vector].map(|b| f32::from(b.cast_signed())))
    }

    #[inline(always)]
    fn unsigned_bytes(self, bytes: &[u8; 32]) -> [Self::F; 4] {
        let vectors = bytes.as_chunks::<LANES>().0;
        std::array::from_fn(|vector| vectors[vector].map(f32::from))
    }

    #[inline(always)]
    fn dot_nibbles(self, bytes: &[u8; 32], table: Self::Table, step: &Int8Step<'_>) -> Self::F {
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
    fn dot_bytes(self, bytes: &[u8; 32], flip: u8, step: &Int8Step<'_>) -> Self::F {
        std::array::from_fn(|lane| {
            let sum: i32 = [2 * lane, 2 * lane + 1, 16 + 2 * lane, 17 + 2 * lane]
                .map(|i| i32::from((bytes[i] ^ flip).cast_signed()) * i32::from(step.values[i]))
                .into_iter()
                .sum();
            sum as f32
        })
    }

    #[inline(always)]
    fn add_scaled(self, total: Self::F, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| total[i] + (a[i] * b[i]) * c[i])
    }

    #[inline(always)]
    fn prefetch(self, _: &[u8], _: usize) {}
}
