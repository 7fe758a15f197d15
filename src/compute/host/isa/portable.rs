//! Plain Rust: arrays that the compiler vectorises as it can.

use super::super::lanes::{LANES, Lanes};

/// The token of the portable path: every machine has it.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Portable;

impl Lanes for Portable {
    type F = [f32; LANES];

    #[inline(always)]
    fn run<R>(self, work: impl FnOnce() -> R) -> R {
        work()
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
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
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
}
