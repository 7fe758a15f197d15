//! What the kernels ask of an instruction set: eight f32 lanes.
//!
//! The kernels are written once over this trait. A lane of a sum only ever meets the same lane of its terms, and lanes
//! are added up in the one order of [`Lanes::sum`], so the order of additions is the kernels' and not the machine's.

/// Number of lanes.
pub(super) const LANES: usize = 8;

/// An instruction set: a token that exists only where the machine has it.
pub(super) trait Lanes: Copy + Send + Sync {
    /// Eight f32.
    type F: Copy;

    /// Runs `work` in a function compiled for the instruction set, so that everything marked for inlining within it
    /// is too.
    fn run<R>(self, work: impl FnOnce() -> R) -> R;

    /// Eight times `value`.
    fn splat(self, value: f32) -> Self::F;
    /// The values in order.
    fn load(self, values: &[f32; LANES]) -> Self::F;
    /// The lanes in order.
    fn store(self, lanes: Self::F, to: &mut [f32; LANES]);
    /// a + b.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// a × b + c, rounded once where the instruction set can, else twice.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    /// The sum of the lanes: ((0+4)+(2+6)) + ((1+5)+(3+7)).
    #[inline(always)]
    fn sum(self, lanes: Self::F) -> f32 {
        let mut v = [0.0; LANES];
        self.store(lanes, &mut v);
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
}
