//! From a router's logits to routes.

use std::cmp::Ordering;

use super::routes::{RouteError, Routes};

/// How a model turns its router's logits into chosen experts and weights, in f32.
///
/// Every kind chooses the `top_k` best experts, best first; of equal ones the lower id wins. NaN ranks below every number,
/// and what is computed from it (a softmax's sum, the sum of chosen scores) is NaN: the row's weights then are NaN,
/// never a panic, and never a choice that differs between two calls.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Router {
    /// Softmax over all experts; the chosen ones' probabilities are the weights (Qwen3-MoE renormalises, OLMoE does not).
    ///
    /// Softmax is monotone, so experts are chosen by logit.
    SoftmaxTopK {
        /// Experts per row.
        top_k: u32,
        /// Whether the weights are divided by their sum (`norm_topk_prob`).
        renormalise: bool,
    },
    /// The best logits are chosen; the weights are the softmax over those alone (Mixtral, gpt-oss).
    TopKSoftmax {
        /// Experts per row.
        top_k: u32,
    },
    /// Sigmoid scores with a correction bias and groups ("noaux_tc": GLM-4.5 and later, DeepSeek-V3).
    NoAuxTc(NoAuxTc),
}

/// Options of [`Router::NoAuxTc`].
///
/// score = sigmoid(logit); experts are chosen by score + correction. With more than one group (contiguous runs of
/// experts), a group's worth is the sum of its two best score + correction; the experts of all but the best
/// `groups_kept` groups count as 0 in the choice, as DeepSeek's and mlx-lm's code has it, so that a kept expert below 0
/// loses to a dropped one. weight = score (without correction) / (sum of the chosen scores + 1e-20) × `scale`.
#[derive(Clone, Debug, PartialEq)]
pub struct NoAuxTc {
    /// Experts per row (`num_experts_per_tok`). Default 8.
    pub top_k: u32,
    /// Added to the scores in the choice only (`e_score_correction_bias`), one per expert. Default empty: no correction.
    pub correction: Vec<f32>,
    /// Number of groups (`n_group`); must divide the number of experts. Default 1.
    pub groups: u32,
    /// Groups whose experts may be chosen (`topk_group`). Default 1; no effect with one group.
    pub groups_kept: u32,
    /// Whether the weights are divided by their sum (`norm_topk_prob`). Default true; no effect if `top_k` is 1.
    pub renormalise: bool,
    /// What every weight is multiplied with (`routed_scaling_factor`). Default 1.
    pub scale: f32,
}

impl Default for NoAuxTc {
    fn default() -> Self {
        Self { top_k: 8, correction: Vec::new(), groups: 1, groups_kept: 1, renormalise: true, scale: 1.0 }
    }
}

impl Router {
    /// Experts per row.
    #[must_use]
    pub const fn top_k(&self) -> u32 {
        match self {
            Self::SoftmaxTopK { top_k, .. } | Self::TopKSoftmax { top_k } => *top_k,
            Self::NoAuxTc(options) => options.top_k,
        }
    }

    /// Routes `rows` rows by `logits`, `[rows, experts]` row-major, the router's own bias already added.
    ///
    /// # Errors
    /// Logits that are not whole rows, `top_k` of 0 or more than there are experts, groups that do not divide them, a
    /// correction of another length, or as [`Routes::from_top_k`].
    pub fn route(&self, logits: &[f32], rows: usize) -> Result<Routes, RouterError> {
        if rows == 0 {
            return Err(RouteError::ZeroRows.into());
        }
        let experts = logits.len() / rows;
        if !logits.len().is_multiple_of(rows) || experts == 0 {
            return Err(RouterError::Logits { logits: logits.len(), rows });
        }
        let experts_in_layer = u32::try_from(experts).unwrap_or(u32::MAX);
        self.check(experts_in_layer)?;
        let ranks = self.top_k() as usize;
        let (mut chosen, mut weights) = (Vec::new(), Vec::new());
        let mut order = Order::default();
        for row in logits.chunks_exact(experts) {
            match self {
                Self::SoftmaxTopK { renormalise, .. } => {
                    let best = order.best(row, ranks);
                    softmax(best, row, row, &mut weights);
                    if *renormalise {
                        divide_by_sum(&mut weights, ranks, 0.0);
                    }
                }
                Self::TopKSoftmax { .. } => {
                    let best = order.best(row, ranks);
                    let logits: Vec<f32> = best.iter().map(|&expert| row[expert as usize]).collect();
                    softmax(best, row, &logits, &mut weights);
                }
                Self::NoAuxTc(options) => options.route_row(row, &mut order, &mut weights),
            }
            chosen.extend_from_slice(&order.0[..ranks]);
        }
        Ok(Routes::from_top_k(rows, ranks, &chosen, &weights, experts_in_layer)?)
    }

    fn check(&self, experts: u32) -> Result<(), RouterError> {
        let top_k = self.top_k();
        if top_k == 0 || top_k > experts {
            return Err(RouterError::TopK { top_k, experts });
        }
        if let Self::NoAuxTc(NoAuxTc { correction, groups, groups_kept, .. }) = self {
            let (groups, groups_kept) = (*groups, *groups_kept);
            if groups == 0 || !experts.is_multiple_of(groups) || groups_kept == 0 || groups_kept > groups {
                return Err(RouterError::Groups { groups, groups_kept, experts });
            }
            if !correction.is_empty() && correction.len() != experts as usize {
                return Err(RouterError::Correction { correction: correction.len(), experts });
            }
        }
        Ok(())
    }
}

impl NoAuxTc {
    /// Leaves the chosen experts at the front of `order` and appends their weights.
    fn route_row(&self, logits: &[f32], order: &mut Order, weights: &mut Vec<f32>) {
        let ranks = self.top_k as usize;
        let scores: Vec<f32> = logits.iter().map(|&logit| 1.0 / (1.0 + (-logit).exp())).collect();
        let mut choice = scores.clone();
        for (score, correction) in choice.iter_mut().zip(&self.correction) {
            *score += correction;
        }
        if self.groups > 1 {
            self.drop_groups(&mut choice, order);
        }
        weights.extend(order.best(&choice, ranks).iter().map(|&expert| scores[expert as usize]));
        if self.renormalise && ranks > 1 {
            divide_by_sum(weights, ranks, 1e-20);
        }
        let first = weights.len() - ranks;
        for weight in &mut weights[first..] {
            *weight *= self.scale;
        }
    }

    /// Sets the scores of all but the best groups to 0; NaN stays, so that it stays below every number.
    fn drop_groups(&self, choice: &mut [f32], order: &mut Order) {
        let group_experts = choice.len() / self.groups as usize;
        let worth: Vec<f32> = choice
            .chunks_exact(group_experts)
            .map(|group| {
                let best = order.best(group, 2.min(group_experts));
                best.iter().map(|&expert| group[expert as usize]).sum()
            })
            .collect();
        order.best(&worth, self.groups_kept as usize);
        for &group in &order.0[self.groups_kept as usize..] {
            let first = group as usize * group_experts;
            for score in choice[first..first + group_experts].iter_mut().filter(|score| !score.is_nan()) {
                *score = 0.0;
            }
        }
    }
}

/// Indices under permutation, kept so that a batch allocates them once.
#[derive(Default)]
struct Order(Vec<u32>);

impl Order {
    /// The indices of the `count` best scores, best first; the other indices stay behind them, in no order.
    #[expect(clippy::cast_possible_truncation, reason = "check() took the number of experts as a u32")]
    fn best(&mut self, scores: &[f32], count: usize) -> &[u32] {
        debug_assert!(0 < count && count <= scores.len());
        self.0.clear();
        self.0.extend(0..scores.len() as u32);
        let better =
            |a: &u32, b: &u32| descending(scores[*a as usize], scores[*b as usize]).then_with(|| a.cmp(b));
        if count < self.0.len() {
            self.0.select_nth_unstable_by(count - 1, better);
        }
        self.0[..count].sort_unstable_by(better);
        &self.0[..count]
    }
}

/// Larger numbers first, NaN last; zeros of either sign are equal.
fn descending(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Appends the `chosen` experts' softmax weights, taken over the logits `among`.
fn softmax(chosen: &[u32], logits: &[f32], among: &[f32], weights: &mut Vec<f32>) {
    let largest = among.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = among.iter().map(|&logit| (logit - largest).exp()).sum();
    weights.extend(chosen.iter().map(|&expert| (logits[expert as usize] - largest).exp() / sum));
}

/// Divides the last `ranks` weights by their sum plus `epsilon`.
fn divide_by_sum(weights: &mut [f32], ranks: usize, epsilon: f32) {
    let first = weights.len() - ranks;
    let row = &mut weights[first..];
    let sum = row.iter().sum::<f32>() + epsilon;
    for weight in row {
        *weight /= sum;
    }
}

/// A router that does not fit its logits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouterError {
    /// Logits that are not `[rows, experts]`.
    #[error("{logits} logits are not {rows} rows of at least one expert")]
    Logits {
        /// Logits given.
        logits: usize,
        /// Rows asked for.
        rows: usize,
    },
    /// A choice of none, or of more than there are.
    #[error("top-k of {top_k} among {experts} experts")]
    TopK {
        /// Experts per row asked for.
        top_k: u32,
        /// Logits per row.
        experts: u32,
    },
    /// Groups that do not fit the experts.
    #[error("{groups} groups, {groups_kept} of them kept, do not fit {experts} experts")]
    Groups {
        /// Groups asked for.
        groups: u32,
        /// Groups to keep.
        groups_kept: u32,
        /// Logits per row.
        experts: u32,
    },
    /// A correction bias of another length.
    #[error("{correction} correction biases for {experts} experts")]
    Correction {
        /// Correction biases given.
        correction: usize,
        /// Logits per row.
        experts: u32,
    },
    /// Routes that could not be made.
    #[error(transparent)]
    Routes(#[from] RouteError),
}
