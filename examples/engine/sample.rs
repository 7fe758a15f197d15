//! The choice of the next token.

use std::cmp::Ordering;

/// How tokens are chosen.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// 0: always the best.
    temperature: f64,
    /// The best tokens that together have this probability are kept.
    top_p: f64,
    random: fastrand::Rng,
}

impl Sampler {
    pub fn greedy() -> Self {
        Self::new(0.0, 1.0, 0)
    }

    pub fn new(temperature: f64, top_p: f64, seed: u64) -> Self {
        Self { temperature, top_p, random: fastrand::Rng::with_seed(seed) }
    }

    /// The next id; of equal logits the lower one wins.
    pub fn choose(&mut self, logits: &[f32]) -> u32 {
        if self.temperature <= 0.0 {
            return best(logits);
        }
        let largest = f64::from(logits[best(logits) as usize]);
        let weight = |logit: f32| ((f64::from(logit) - largest) / self.temperature).exp();
        let mut weights: Vec<(u32, f64)> = (0..)
            .zip(logits.iter().map(|&logit| weight(logit)))
            .filter(|(_, weight)| *weight > 0.0)
            .collect();
        weights.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0)));
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        let mut kept = 0.0;
        let nucleus = weights.iter().position(|(_, weight)| {
            kept += weight;
            kept >= self.top_p * total
        });
        weights.truncate(nucleus.map_or(weights.len(), |last| last + 1));
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        let mut left = self.random.f64() * total;
        let chosen = weights.iter().find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        chosen.or(weights.last()).map_or(0, |(id, _)| *id)
    }
}

/// The id of the largest logit, the lowest of equals.
pub fn best(logits: &[f32]) -> u32 {
    let better =
        |best: (u32, f32), (id, &logit): (u32, &f32)| if logit > best.1 { (id, logit) } else { best };
    (0..).zip(logits).fold((0, f32::NEG_INFINITY), better).0
}
