//! The index arrays of a dispatch, checked before any kernel sees them.

use crate::{
    ids::SlotId,
    routing::{BatchPlan, ExpertUse},
};

/// The most tiles, rows or columns of blocks that one dispatch may have (CUDA's limit for a grid's y and z).
pub(crate) const MAX_TILES: usize = 65_535;

/// The most ranks of one row in `down_compose`.
pub(crate) const MAX_RANKS: usize = 64;

/// Work that no kernel may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WorkError {
    /// A slot that the bank does not have.
    #[error("{slot} of a bank of {slots} slots")]
    Slot {
        /// The slot.
        slot: SlotId,
        /// How many there are.
        slots: u32,
    },
    /// A row that the input does not have.
    #[error("row {row} of an input of {rows} rows")]
    Row {
        /// The row.
        row: u32,
        /// How many there are.
        rows: usize,
    },
    /// More than one dispatch may take.
    #[error("{count} {what}, more than the {limit} of one dispatch")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A pair of the plan that no dispatch computed.
    #[error("pair {pair} was not computed")]
    Missing {
        /// Its position in the plan.
        pair: usize,
    },
    /// A pair that the plan does not have, or has had already.
    #[error("pair {pair} was computed twice, or is beyond the plan's {pairs} pairs")]
    Pair {
        /// The position given.
        pair: u32,
        /// How many the plan has.
        pairs: usize,
    },
}

/// `values`, at least 8 of them: MLX compiles a kernel anew for each of its inputs that has fewer.
pub(crate) fn padded<T: Copy + Default>(values: &[T]) -> Vec<T> {
    let mut values = values.to_vec();
    values.resize(values.len().max(8), T::default());
    values
}

/// The pairs of one dispatch, in tiles of pairs that share a slot.
///
/// # Invariants
/// 1. Each tile `[slot, first pair, count]` names a slot of the bank, and `first pair + count` is at most the number of
///    pairs; count is at least 1.
/// 2. The tiles' ranges of pairs are consecutive and cover all pairs: every output row is written once.
/// 3. Every input row named is one that the input has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tiles {
    /// `[tiles × 3]`: slot, first pair, count.
    pub(crate) tiles: Vec<u32>,
    /// `[pairs]`: the input row of each pair.
    pub(crate) rows: Vec<u32>,
    /// `[pairs]`: the weight of each pair.
    pub(crate) weights: Vec<f32>,
    /// `[pairs]`: the plan's number of each pair.
    pub(crate) pairs: Vec<u32>,
}

impl Tiles {
    /// Tiles of at most `per_tile` pairs of `jobs`, in order, for an input of `rows` rows and a bank of `slots` slots.
    ///
    /// # Errors
    /// A slot or row out of range, or more than one dispatch takes.
    pub(crate) fn new<'a>(
        jobs: impl IntoIterator<Item = (SlotId, &'a [ExpertUse])>,
        per_tile: usize,
        slots: u32,
        rows: usize,
    ) -> Result<Self, WorkError> {
        let mut work = Self::default();
        for (slot, uses) in jobs {
            if slot.0 >= slots {
                return Err(WorkError::Slot { slot, slots });
            }
            for tile in uses.chunks(per_tile.max(1)) {
                work.tiles.extend([slot.0, count_u32(work.rows.len()), count_u32(tile.len())]);
                for each in tile {
                    if each.row as usize >= rows {
                        return Err(WorkError::Row { row: each.row, rows });
                    }
                    work.rows.push(each.row);
                    work.weights.push(each.weight);
                    work.pairs.push(each.pair);
                }
            }
        }
        at_most("tiles", work.count(), MAX_TILES)?;
        Ok(work)
    }

    /// How many tiles there are.
    pub(crate) const fn count(&self) -> usize {
        self.tiles.len() / 3
    }
}

/// The rows of `down_compose`: which slot and which row of `inner` each term of a row takes.
///
/// # Invariants
/// 1. `offsets` has one entry more than there are rows, begins with 0, does not fall, and ends with the number of terms.
/// 2. Every slot is one of the bank's, every row of `inner` one that the dispatch before it wrote.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Terms {
    /// `[rows + 1]`: where each row's terms begin.
    pub(crate) offsets: Vec<u32>,
    /// `[terms × 2]`: slot, row of `inner`.
    pub(crate) terms: Vec<u32>,
    /// `[terms]`: weights.
    pub(crate) weights: Vec<f32>,
    /// The most terms of a row.
    pub(crate) ranks: usize,
}

impl Terms {
    /// The terms of `plan`, whose pairs `tiles` computes all.
    ///
    /// # Errors
    /// If they are not exactly the plan's pairs, or more than one dispatch takes.
    pub(crate) fn new(plan: &BatchPlan, tiles: &Tiles) -> Result<Self, WorkError> {
        let mut slots = vec![0; tiles.rows.len()];
        for tile in tiles.tiles.chunks_exact(3) {
            slots[tile[1] as usize..(tile[1] + tile[2]) as usize].fill(tile[0]);
        }
        let compose = ComposeTerms::new(plan, &[&tiles.pairs])?;
        let ranks = (0..plan.rows()).map(|row| plan.row(row).len()).max().unwrap_or(0);
        at_most("ranks of a row", ranks, MAX_RANKS)?;
        Ok(Self {
            offsets: compose.offsets,
            terms: compose.terms.iter().flat_map(|&inner| [slots[inner as usize], inner]).collect(),
            weights: plan.routes().weights().to_vec(),
            ranks,
        })
    }
}

/// The rows of `compose`: which weighted row each term is.
///
/// # Invariants
/// 1. As [`Terms`]' first.
/// 2. Every term is a row of the concatenated parts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ComposeTerms {
    /// `[rows + 1]`: where each row's terms begin.
    pub(crate) offsets: Vec<u32>,
    /// `[terms]`: rows of the parts, one part after the other.
    pub(crate) terms: Vec<u32>,
}

impl ComposeTerms {
    /// The terms of `plan`, whose pairs `parts` name in the order in which they were computed.
    ///
    /// # Errors
    /// If the parts are not exactly the plan's pairs, or there are more rows than one dispatch takes.
    pub(crate) fn new(plan: &BatchPlan, parts: &[&[u32]]) -> Result<Self, WorkError> {
        at_most("rows", plan.rows(), MAX_TILES)?;
        let pairs = plan.pairs();
        let mut terms = vec![u32::MAX; pairs];
        for (position, &pair) in parts.iter().flat_map(|part| part.iter()).enumerate() {
            match terms.get_mut(pair as usize) {
                Some(term) if *term == u32::MAX => *term = count_u32(position),
                _ => return Err(WorkError::Pair { pair, pairs }),
            }
        }
        if let Some(pair) = terms.iter().position(|&term| term == u32::MAX) {
            return Err(WorkError::Missing { pair });
        }
        Ok(Self { offsets: plan.routes().offsets().to_vec(), terms })
    }
}

const fn at_most(what: &'static str, count: usize, limit: usize) -> Result<(), WorkError> {
    if count > limit {
        return Err(WorkError::TooMany { what, count, limit });
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "a plan has at most MAX_PAIRS pairs, below u32::MAX")]
const fn count_u32(count: usize) -> u32 {
    count as u32
}
