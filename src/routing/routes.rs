//! Which experts each row goes to, with which weights.

use std::ops::Range;

use crate::ids::ExpertId;

/// No layer has more experts than this: a larger number is a damaged configuration, not a model.
pub(crate) const MAX_EXPERTS_IN_LAYER: u32 = 1 << 16;

/// No batch has more (row, rank) pairs than this.
pub(crate) const MAX_PAIRS: usize = 1 << 30;

/// The experts of each row (token) with their weights, in rank order, of one layer and one forward.
///
/// Rank order is the order in which the weighted rows are added up, so it is part of the result. Rows may differ in how
/// many experts they have; a row without any is allowed, but needs a shared expert's row: that is its output.
///
/// Weights are passed through as they are, NaN and infinities included: a router that computes NaN gets NaN rows.
///
/// # Invariants
/// 1. There is at least one row; `offsets` has one more entry than there are rows, starts at 0 and never falls.
/// 2. `experts` and `weights` have the last offset as their length, at most `MAX_PAIRS`.
/// 3. No row has an expert twice, and every expert is below `experts_in_layer`, at most `MAX_EXPERTS_IN_LAYER`.
#[derive(Clone, Debug, PartialEq)]
pub struct Routes {
    offsets: Vec<u32>,
    experts: Vec<ExpertId>,
    weights: Vec<f32>,
    experts_in_layer: u32,
}

impl Routes {
    /// Routes from flat `[rows, ranks]` arrays, row-major, as a router's top-k gives them.
    ///
    /// # Errors
    /// [`RouteError::Lengths`] if `experts` or `weights` has not `rows × ranks` entries; otherwise as
    /// [`Routes::from_ragged`].
    pub fn from_top_k(
        rows: usize,
        ranks: usize,
        experts: &[u32],
        weights: &[f32],
        experts_in_layer: u32,
    ) -> Result<Self, RouteError> {
        let pairs = rows.checked_mul(ranks);
        if pairs != Some(experts.len()) || experts.len() != weights.len() {
            return Err(RouteError::Lengths { rows, ranks, experts: experts.len(), weights: weights.len() });
        }
        let mut routes = Self::with_capacity(rows, experts.len(), experts_in_layer)?;
        for row in 0..rows {
            let range = row * ranks..(row + 1) * ranks;
            routes.experts.extend(experts[range.clone()].iter().map(|&expert| ExpertId(expert)));
            routes.weights.extend_from_slice(&weights[range]);
            routes.end_row();
        }
        routes.checked()
    }

    /// Routes from rows that may differ in length: per row its experts and weights in rank order.
    ///
    /// # Errors
    /// No rows, more pairs or experts than any model has, an expert that the layer does not have, or the same expert
    /// twice in one row.
    pub fn from_ragged<R: AsRef<[(ExpertId, f32)]>>(
        rows: &[R],
        experts_in_layer: u32,
    ) -> Result<Self, RouteError> {
        let pairs = rows.iter().map(|row| row.as_ref().len()).fold(0, usize::saturating_add);
        let mut routes = Self::with_capacity(rows.len(), pairs, experts_in_layer)?;
        for row in rows {
            for &(expert, weight) in row.as_ref() {
                routes.experts.push(expert);
                routes.weights.push(weight);
            }
            routes.end_row();
        }
        routes.checked()
    }

    /// How many rows (tokens) there are. At least 1.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// How many (row, rank) pairs there are.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.experts.len()
    }

    /// How many experts the layer has.
    #[must_use]
    pub const fn experts_in_layer(&self) -> u32 {
        self.experts_in_layer
    }

    /// The experts of all pairs, row-major in (row, rank).
    #[must_use]
    pub fn experts(&self) -> &[ExpertId] {
        &self.experts
    }

    /// The weights of all pairs, row-major in (row, rank).
    #[must_use]
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Where each row's pairs begin, and after the last row where they end: `[rows + 1]`.
    #[must_use]
    pub fn offsets(&self) -> &[u32] {
        &self.offsets
    }

    /// The pairs of `row`, as positions in [`Routes::experts`] and [`Routes::weights`].
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row_pairs(&self, row: usize) -> Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }

    /// The experts of `row` with their weights, in rank order.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> impl ExactSizeIterator<Item = (ExpertId, f32)> + '_ {
        self.row_pairs(row).map(|pair| (self.experts[pair], self.weights[pair]))
    }

    fn with_capacity(rows: usize, pairs: usize, experts_in_layer: u32) -> Result<Self, RouteError> {
        if rows == 0 {
            return Err(RouteError::ZeroRows);
        }
        if pairs > MAX_PAIRS || rows > MAX_PAIRS {
            return Err(RouteError::TooManyPairs { rows, pairs, limit: MAX_PAIRS });
        }
        if experts_in_layer > MAX_EXPERTS_IN_LAYER {
            return Err(RouteError::TooManyExperts { experts_in_layer, limit: MAX_EXPERTS_IN_LAYER });
        }
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Ok(Self {
            offsets,
            experts: Vec::with_capacity(pairs),
            weights: Vec::with_capacity(pairs),
            experts_in_layer,
        })
    }

    #[expect(clippy::cast_possible_truncation, reason = "with_capacity() bounded the pairs by MAX_PAIRS")]
    fn end_row(&mut self) {
        self.offsets.push(self.experts.len() as u32);
    }

    /// Establishes invariant 3.
    fn checked(self) -> Result<Self, RouteError> {
        let mut last_row = vec![usize::MAX; self.experts_in_layer as usize];
        for row in 0..self.rows() {
            let pairs = self.row_pairs(row);
            for (rank, &expert) in self.experts[pairs.clone()].iter().enumerate() {
                let Some(last) = last_row.get_mut(expert.index()) else {
                    let experts_in_layer = self.experts_in_layer;
                    return Err(RouteError::NoSuchExpert { row, rank, expert, experts_in_layer });
                };
                if *last == row {
                    let first_rank = self.experts[pairs].iter().take_while(|&&e| e != expert).count();
                    return Err(RouteError::DuplicateExpert { row, rank, first_rank, expert });
                }
                *last = row;
            }
        }
        Ok(self)
    }
}

/// Routes that no layer could compute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// A batch without tokens.
    #[error("routes have no rows: a forward needs at least one token")]
    ZeroRows,
    /// Flat arrays that are not `[rows, ranks]`.
    #[error(
        "{rows} rows of {ranks} ranks need as many experts and weights, but {experts} experts and {weights} weights were given"
    )]
    Lengths {
        /// Rows asked for.
        rows: usize,
        /// Ranks per row asked for.
        ranks: usize,
        /// Length of the experts.
        experts: usize,
        /// Length of the weights.
        weights: usize,
    },
    /// An expert that the layer does not have.
    #[error("row {row} rank {rank} is routed to {expert}, but the layer has {experts_in_layer} experts")]
    NoSuchExpert {
        /// The row.
        row: usize,
        /// The rank within the row.
        rank: usize,
        /// The expert named.
        expert: ExpertId,
        /// Experts of the layer.
        experts_in_layer: u32,
    },
    /// One expert twice in one row.
    #[error("row {row} is routed to {expert} twice, at ranks {first_rank} and {rank}")]
    DuplicateExpert {
        /// The row.
        row: usize,
        /// The second rank with this expert.
        rank: usize,
        /// The first rank with this expert.
        first_rank: usize,
        /// The expert.
        expert: ExpertId,
    },
    /// A batch larger than any forward.
    #[error("{rows} rows with {pairs} (row, rank) pairs are more than the limit of {limit}")]
    TooManyPairs {
        /// Rows given.
        rows: usize,
        /// Pairs given.
        pairs: usize,
        /// The most of either.
        limit: usize,
    },
    /// A layer wider than any model's.
    #[error("a layer of {experts_in_layer} experts is beyond the limit of {limit}")]
    TooManyExperts {
        /// Experts given.
        experts_in_layer: u32,
        /// The most a layer may have.
        limit: u32,
    },
}
