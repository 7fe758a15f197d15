//! What the kernels ask of an instruction set.
//!
//! The kernels are written once over this trait. A lane of a sum only ever meets the same lane of its terms, and lanes
//! are added up in the one order of [`Lanes::sum`], so the order of additions is the kernels' and not the machine's.

use bytemuck::Pod;

use super::plan::Int8Step;

/// Lanes of a vector of eight.
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
///
/// Products of f32 are summed in its widest vectors, [`Lanes::F`]; integers, and the sums of groups, in eight lanes
/// everywhere.
pub(super) trait Lanes: Copy + Send + Sync {
    /// Whether unpacked weights are centred, a zero weight being 0. If so, nibbles lie as [`paired_column`] says; if
    /// not, as [`spread_column`] says.
    const CENTRED: bool;

    /// Eight f32, or sixteen.
    type F: Copy;
    /// Those in memory.
    type Stored: Pod;
    /// A block of nibbles, unpacked.
    type Nibbles: Copy + AsRef<[Self::F]>;
    /// Half a block of bytes, unpacked.
    type Bytes: Copy + AsRef<[Self::F]>;
    /// A table of sixteen bytes.
    type Table: Copy;
    /// Eight f32.
    type Eight: Copy;

    /// Runs `kernel` in a function compiled for the instruction set.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;

    /// The values in order.
    fn load(self, values: &Self::Stored) -> Self::F;
    /// The lanes in order.
    fn store(self, lanes: Self::F, to: &mut Self::Stored);
    /// a × b + c, rounded once where the instruction set can, else twice.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// total + (sum − centre) × scale. The centre is `centres[segment]`, unless weights are centred: then it is none. The
    /// scales are those of the lower and of the upper half of the lanes.
    fn add_segment(
        self,
        total: Self::F,
        sum: Self::F,
        centres: &[[f32; LANES]],
        segment: usize,
        scales: [f32; 2],
    ) -> Self::F;
    /// The sum of the lanes: of sixteen, the upper half is first added to the lower; then as [`sum_of_eight`].
    fn sum(self, lanes: Self::F) -> f32;

    /// A table to look nibbles up in.
    fn table(self, bytes: &[u8; 16]) -> Self::Table;
    /// A block of nibbles, looked up and made floats: centred, (b − 64) / 64 of the byte b, else as [`spread_column`]
    /// says.
    fn nibbles(self, bytes: &[u8; 32], table: Self::Table) -> Self::Nibbles;
    /// [`Lanes::nibbles`] with the table of [`EIGHTS`].
    fn integer_nibbles(self, bytes: &[u8; 32]) -> Self::Nibbles;
    /// Two's complement bytes, in order.
    fn signed_bytes(self, bytes: &[u8; 32]) -> Self::Bytes;
    /// Unsigned bytes, in order; centred, 128 less.
    fn unsigned_bytes(self, bytes: &[u8; 32]) -> Self::Bytes;

    /// Eight times `value`.
    fn splat_eight(self, value: f32) -> Self::Eight;
    /// Four times `low`, four times `high`.
    fn splat_halves(self, low: f32, high: f32) -> Self::Eight;
    /// The values in order.
    fn load_eight(self, values: &[f32; LANES]) -> Self::Eight;
    /// Per lane l, Σ over columns 8 l to 8 l + 7 of a block of looked-up nibble × value, plus the centre: exact.
    fn dot_nibbles(self, bytes: &[u8; 32], table: Self::Table, step: &Int8Step<'_>) -> Self::Eight;
    /// Per lane l, Σ over columns 4 l to 4 l + 3 of (byte ^ flip) × value, both signed: exact.
    fn dot_bytes(self, bytes: &[u8; 32], flip: u8, step: &Int8Step<'_>) -> Self::Eight;
    /// total + (a × b) × c, each operation rounded.
    fn add_scaled(self, total: Self::Eight, a: Self::Eight, b: Self::Eight, c: Self::Eight) -> Self::Eight;
    /// The sum of the lanes, as [`sum_of_eight`].
    fn total(self, lanes: Self::Eight) -> f32;

    /// Asks for the cache line at `bytes[offset]`, which may lie beyond the slice.
    fn prefetch(self, bytes: &[u8], offset: usize);
}

/// ((0+4)+(2+6)) + ((1+5)+(3+7)).
#[inline(always)]
pub(super) fn sum_of_eight(v: &[f32; LANES]) -> f32 {
    ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
}

/// Vectors of an instruction set.
#[inline(always)]
pub(super) fn vectors<L: Lanes, T: Pod>(values: &T) -> &[L::Stored] {
    bytemuck::cast_slice(std::slice::from_ref(values))
}

/// The column, within its block, that lane `lane` of the 16 lanes of vector `vector` stands for where nibbles are
/// centred.
///
/// Sixteen bytes become sixteen 32-bit lanes, whose low nibbles (even columns), then high nibbles (odd columns), look up
/// a float.
pub(super) const fn paired_column(vector: usize, lane: usize) -> usize {
    32 * (vector / 2) + 2 * lane + vector % 2
}

/// The column, within its block, that lane `lane` of the 8 lanes of vector `vector` of [`Lanes::nibbles`] stands for
/// where nibbles are not centred.
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
pub(super) const fn spread_column(vector: usize, lane: usize) -> usize {
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
            let column = spread_column(vector, lane);
            let bits = match vector % 2 {
                0 => looked_up(column) << 16 | looked_up(column - 2),
                _ => looked_up(column) << 16,
            };
            f32::from_bits(bits)
        })
    })
}
