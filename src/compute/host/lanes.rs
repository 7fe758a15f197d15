//! What the kernels ask of an instruction set.
//!
//! The kernels are written once over this trait. A lane of a sum only ever meets the same lane of its terms, and lanes
//! are added up in the one order of [`Lanes::sum`], so the order of additions is the kernels' and not the machine's.

use super::plan::Int8Step;

/// Number of lanes of a vector.
pub(super) const LANES: usize = 8;

/// Columns that input rows are padded to a multiple of: 32 bytes of nibbles, or twice 32 bytes.
pub(super) const BLOCK: usize = 64;

/// Weight bytes that are unpacked at once.
pub(super) const UNIT_BYTES: usize = 32;

/// Work that is compiled once per instruction set.
///
/// `run` and all that it calls on the way to the lanes must be `#[inline(always)]`: what is not inlined into
/// [`Lanes::run`] is compiled without the instruction set. A closure cannot be so marked: keep the lanes out of closures.
pub(super) trait Kernel {
    /// What it answers.
    type Output;

    /// Does the work.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// An instruction set: a token that exists only where the machine has it.
pub(super) trait Lanes: Copy + Send + Sync {
    /// Eight f32.
    type F: Copy;
    /// A table of sixteen bytes.
    type Table: Copy;

    /// Runs `kernel` in a function compiled for the instruction set.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;

    /// Eight times `value`.
    fn splat(self, value: f32) -> Self::F;
    /// Four times `low`, four times `high`.
    fn splat_halves(self, low: f32, high: f32) -> Self::F;
    /// The values in order.
    fn load(self, values: &[f32; LANES]) -> Self::F;
    /// The lanes in order.
    fn store(self, lanes: Self::F, to: &mut [f32; LANES]);
    /// a − b.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// a × b + c, rounded once where the instruction set can, else twice.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    /// A table to look nibbles up in.
    fn table(self, bytes: &[u8; 16]) -> Self::Table;
    /// A block of nibbles, looked up and made floats, in the order and form that [`nibble_column`] describes.
    fn nibbles(self, bytes: &[u8; 32], table: Self::Table) -> [Self::F; 8];
    /// [`Lanes::nibbles`] with the table of [`EIGHTS`].
    fn integer_nibbles(self, bytes: &[u8; 32]) -> [Self::F; 8];
    /// Two's complement bytes, in order.
    fn signed_bytes(self, bytes: &[u8; 32]) -> [Self::F; 4];
    /// Unsigned bytes, in order.
    fn unsigned_bytes(self, bytes: &[u8; 32]) -> [Self::F; 4];

    /// Per lane l, Σ over columns 8 l to 8 l + 7 of a block of looked-up nibble × value, plus the centre: exact.
    fn dot_nibbles(self, bytes: &[u8; 32], table: Self::Table, step: &Int8Step<'_>) -> Self::F;
    /// Per lane l, Σ over columns 2 l, 2 l + 1, 16 + 2 l and 17 + 2 l of (byte ^ flip) × value, both signed: exact.
    fn dot_bytes(self, bytes: &[u8; 32], flip: u8, step: &Int8Step<'_>) -> Self::F;
    /// total + (a × b) × c, each operation rounded.
    fn add_scaled(self, total: Self::F, a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    /// Asks for the cache line at `bytes[offset]`, which may lie beyond the slice.
    fn prefetch(self, bytes: &[u8], offset: usize);

    /// The sum of the lanes: ((0+4)+(2+6)) + ((1+5)+(3+7)).
    #[inline(always)]
    fn sum(self, lanes: Self::F) -> f32 {
        let mut v = [0.0; LANES];
        self.store(lanes, &mut v);
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
}

/// The column, within its block, that lane `lane` of vector `vector` of [`Lanes::nibbles`] stands for.
///
/// A block's 32 bytes are two halves of 16. Within each, a table turns low nibbles (even columns), then high nibbles
/// (odd columns), into bytes b below 128, and each b becomes the 16 bits `0x4000 | b`: the upper half of the float
/// 2 + b/64. Two neighbours make a 32-bit word. Its upper neighbour is read as a float without clearing the lower one,
/// which adds 2^-8 + 2^-16 × b/64 of the lower one to it; the lower neighbour is shifted up, which is exact. So, per word:
///
/// - even vectors: 2 + b(upper)/64 + 2^-8 + 2^-16 × b(lower)/64,
/// - odd vectors: 2 + b(lower)/64.
///
/// The excess is linear in the lower weight, so packing takes it out of that weight's input, [`SPILL`] × the upper input,
/// and no instruction is spent on clearing.
pub(super) const fn nibble_column(vector: usize, lane: usize) -> usize {
    let (half, word) = (lane / 4, lane % 4);
    let (part, high_nibble, upper) = (vector / 4, vector / 2 % 2, 1 - vector % 2);
    32 * half + 16 * part + 4 * word + 2 * upper + high_nibble
}

/// The table of a nibble n itself: 8 n. Without the centre, 64, an eighth of the float is n − 8.
pub(super) const EIGHTS: [u8; 16] = [0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120];

/// What of a lower neighbour's byte spills into its upper neighbour's float.
pub(super) const SPILL: f32 = 1.0 / 65_536.0;

/// The floats of a block of nibbles that all look up the byte 64: [`Lanes::nibbles`] of zero weights.
pub(super) const NIBBLE_CENTRE: [f32; 8] = {
    const UPPER: f32 = 3.0 + 1.0 / 256.0 + SPILL;
    [UPPER, 3.0, UPPER, 3.0, UPPER, 3.0, UPPER, 3.0]
};

/// The bytes that the two nibbles of each byte look up, as floats: the plain form of [`Lanes::nibbles`].
pub(super) fn plain_nibbles(bytes: &[u8; 32], table: &[u8; 16]) -> [[f32; LANES]; 8] {
    let looked_up = |column: usize| {
        let nibble = bytes[column / 2] >> (4 * (column % 2)) & 15;
        0x4000 | u32::from(table[usize::from(nibble)])
    };
    std::array::from_fn(|vector| {
        std::array::from_fn(|lane| {
            let column = nibble_column(vector, lane);
            let bits = match vector % 2 {
                0 => looked_up(column) << 16 | looked_up(column - 2),
                _ => looked_up(column) << 16,
            };
            f32::from_bits(bits)
        })
    })
}
