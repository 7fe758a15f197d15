//! Which experts a later layer will probably want.

use super::router::{Router, RouterError};
use crate::ids::ExpertId;

/// The norm and the router of a later layer, to be asked before that layer's input is known: with the residual stream as
/// it is now. The stream changes little from layer to layer, so most of the answer is right (70 to 72 % of the next
/// layer's experts in what has been published); it is meant for
/// [`read_ahead`](crate::StreamedExpertExecutor::read_ahead).
///
/// All in f32: row ÷ √(mean of its squares + epsilon) × norm, then the router's product, then [`Router::route`].
#[derive(Clone, Debug, PartialEq)]
pub struct LookAhead {
    norm: Vec<f32>,
    epsilon: f32,
    weight: Vec<f32>,
    bias: Vec<f32>,
    router: Router,
}

/// A look ahead that makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LookAheadError {
    /// Weights that are not `[experts, hidden]`, the norm's length being hidden.
    #[error("a router of {weights} weights is not [experts, {hidden}], with {biases} biases or none")]
    Weights {
        /// Values of the router's weight.
        weights: usize,
        /// Length of the norm.
        hidden: usize,
        /// Values of the router's bias.
        biases: usize,
    },
    /// Rows that are not `[rows, hidden]`.
    #[error("{values} values are not whole rows of {hidden}, at least one")]
    Rows {
        /// Values given.
        values: usize,
        /// Length of a row.
        hidden: usize,
    },
    /// Logits that the router refuses.
    #[error(transparent)]
    Router(#[from] RouterError),
}

impl LookAhead {
    /// From a layer's norm before its experts `[hidden]` with its epsilon, and its router's weight `[experts, hidden]`,
    /// bias `[experts]` (empty: none) and kind.
    ///
    /// # Errors
    /// Weights or biases of another length.
    pub fn new(
        norm: Vec<f32>,
        epsilon: f32,
        weight: Vec<f32>,
        bias: Vec<f32>,
        router: Router,
    ) -> Result<Self, LookAheadError> {
        let (hidden, weights, biases) = (norm.len(), weight.len(), bias.len());
        let whole = hidden > 0 && weights > 0 && weights.is_multiple_of(hidden);
        if !whole || (biases > 0 && biases != weights / hidden) {
            return Err(LookAheadError::Weights { weights, hidden, biases });
        }
        Ok(Self { norm, epsilon, weight, bias, router })
    }

    /// The experts that rows of the residual stream, `[rows, hidden]`, would be routed to, at most `most`: the first choice
    /// of every row, then the second, and so on, each expert once.
    ///
    /// # Errors
    /// Values that are not whole rows; as [`Router::route`].
    pub fn experts(&self, residual: &[f32], most: usize) -> Result<Vec<ExpertId>, LookAheadError> {
        let hidden = self.norm.len();
        if residual.is_empty() || !residual.len().is_multiple_of(hidden) {
            return Err(LookAheadError::Rows { values: residual.len(), hidden });
        }
        let rows = residual.len() / hidden;
        let mut logits = Vec::with_capacity(rows * self.weight.len() / hidden);
        let mut normed = vec![0.0; hidden];
        for row in residual.chunks_exact(hidden) {
            self.normalise(row, &mut normed);
            let products = self.weight.chunks_exact(hidden).map(|weight| dot(weight, &normed));
            let biases = self.bias.iter().copied().chain(std::iter::repeat(0.0));
            logits.extend(products.zip(biases).map(|(product, bias)| product + bias));
        }
        let routes = self.router.route(&logits, rows)?;
        let mut experts = Vec::new();
        for rank in 0..self.router.top_k() as usize {
            for row in 0..rows {
                let expert = routes.experts()[routes.row_pairs(row).start + rank];
                if experts.len() < most && !experts.contains(&expert) {
                    experts.push(expert);
                }
            }
        }
        Ok(experts)
    }

    fn normalise(&self, row: &[f32], normed: &mut [f32]) {
        #[expect(clippy::cast_precision_loss, reason = "a width")]
        let mean = dot(row, row) / row.len() as f32;
        let scale = 1.0 / (mean + self.epsilon).sqrt();
        for ((normed, value), norm) in normed.iter_mut().zip(row).zip(&self.norm) {
            *normed = value * scale * norm;
        }
    }
}

/// Σ a × b, in eight sums that are added up at the end.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    let (a_whole, b_whole) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a_whole.remainder().iter().zip(b_whole.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_whole.zip(b_whole) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOFTMAX: Router = Router::SoftmaxTopK { top_k: 2, renormalise: true };

    #[test]
    fn experts_are_those_of_the_normed_rows_by_rank() {
        // Expert n looks at column n; the norm makes column 3 count little, the bias expert 1 little.
        let weight: Vec<f32> = (0..16).map(|at| f32::from(u8::from(at / 4 == at % 4))).collect();
        let norm = vec![1.0, 1.0, 1.0, 0.01];
        let bias = vec![0.0, -10.0, 0.0, 0.0];
        let ahead = LookAhead::new(norm, 1e-6, weight, bias, SOFTMAX).unwrap();
        let rows = [[3.0, 5.0, 2.0, 4.0], [1.0, 0.0, 7.0, 9.0]].concat();
        assert_eq!(ahead.experts(&rows, 8).unwrap(), [ExpertId(0), ExpertId(2)]);
        let rows = [[3.0, 5.0, -2.0, 4.0], [-1.0, 0.0, 7.0, 9.0]].concat();
        assert_eq!(ahead.experts(&rows, 8).unwrap(), [ExpertId(0), ExpertId(2), ExpertId(3)]);
        assert_eq!(ahead.experts(&rows, 1).unwrap(), [ExpertId(0)]);
    }

    #[test]
    fn it_agrees_with_f64_at_odd_widths() {
        let mut random = fastrand::Rng::with_seed(3);
        let (hidden, experts) = (67, 12);
        let mut values = |n: usize| (0..n).map(|_| random.f32() * 2.0 - 1.0).collect::<Vec<_>>();
        let (norm, weight, rows) = (values(hidden), values(hidden * experts), values(5 * hidden));
        let ahead = LookAhead::new(norm.clone(), 1e-5, weight.clone(), Vec::new(), SOFTMAX).unwrap();
        for row in rows.chunks(hidden) {
            let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / hidden as f64;
            let scale = 1.0 / (mean + 1e-5).sqrt();
            let logit = |expert: usize| -> f64 {
                let columns = row.iter().zip(&norm).zip(&weight[expert * hidden..]);
                columns.map(|((&x, &n), &w)| f64::from(x) * scale * f64::from(n) * f64::from(w)).sum()
            };
            let mut order: Vec<_> = (0..experts).collect();
            order.sort_by(|&a, &b| logit(b).total_cmp(&logit(a)));
            let chosen = ahead.experts(row, 2).unwrap();
            assert_eq!(chosen.iter().map(|e| e.index()).collect::<Vec<_>>(), order[..2]);
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let new = |norm, weight, bias| {
            LookAhead::new(vec![1.0; norm], 0.0, vec![1.0; weight], vec![0.0; bias], SOFTMAX)
        };
        for (norm, weight, bias) in [(0, 8, 0), (4, 0, 0), (4, 9, 0), (4, 8, 3)] {
            assert!(matches!(new(norm, weight, bias), Err(LookAheadError::Weights { .. })));
        }
        let ahead = new(4, 8, 2).unwrap();
        for values in [0, 5] {
            let error = ahead.experts(&vec![1.0; values], 9).unwrap_err();
            assert_eq!(error, LookAheadError::Rows { values, hidden: 4 });
        }
        let few = new(4, 4, 0).unwrap().experts(&[1.0; 4], 9).unwrap_err();
        assert!(matches!(few, LookAheadError::Router(RouterError::TopK { .. })), "{few}");
    }
}
