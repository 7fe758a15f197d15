//! Which experts a ledger says to pin.

use std::collections::BTreeMap;

use super::ledger::UsageLedger;
use crate::ids::{ExpertKey, LayerId};

/// When an expert is worth a slot for ever.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PinOptions {
    /// Uses that a layer must have in all before any of its experts is pinned. Default 4096.
    pub min_layer_uses: u64,
    /// Uses that an expert itself must have. Default 64.
    pub min_expert_uses: u64,
    /// How many times its even share of the layer's heat an expert must surely have: the lower end of its confidence
    /// interval is compared. Default 2.
    pub min_share: f64,
    /// Standard errors from the estimate to that end. Default 3.
    pub confidence: f64,
    /// The most of the slots that a layer could keep that may be pinned, 0 to 1. Default 0.25.
    pub slot_share: f64,
}

impl Default for PinOptions {
    fn default() -> Self {
        Self { min_layer_uses: 4096, min_expert_uses: 64, min_share: 2.0, confidence: 3.0, slot_share: 0.25 }
    }
}

/// The experts to pin, hottest first within each layer, layers ascending. `slots`: how many experts each layer could keep
/// between requests, as pinned and resident ones; layers without an entry get no pins.
///
/// An expert is pinned if its share `p` of its layer's heat, less `confidence × √(p (1 − p) / n)`, is at least
/// `min_share / experts`: `n` is the layer's heat, so old evidence counts for less. Pure: the same ledger gives the same
/// pins. Options that are no numbers pin nothing.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "shares")]
pub fn plan_pins(
    ledger: &UsageLedger,
    slots: &BTreeMap<LayerId, u32>,
    options: &PinOptions,
) -> Vec<ExpertKey> {
    let mut layers: BTreeMap<LayerId, Vec<(f64, u64, ExpertKey)>> = BTreeMap::new();
    for (key, uses, heat) in ledger.experts() {
        layers.entry(key.layer).or_default().push((heat, uses, key));
    }
    let mut pins = Vec::new();
    for (layer, mut experts) in layers {
        let uses = experts.iter().fold(0, |sum: u64, &(_, uses, _)| sum.saturating_add(uses));
        let heat: f64 = experts.iter().map(|(heat, ..)| heat).sum();
        let slots = f64::from(slots.get(&layer).copied().unwrap_or(0));
        // A float that is cast saturates, and NaN becomes 0.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates as it should")]
        let most = (slots * options.slot_share.clamp(0.0, 1.0)) as usize;
        if uses < options.min_layer_uses || heat <= 0.0 {
            continue;
        }
        let even = 1.0 / experts.len() as f64;
        experts.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
        let sure = |heat_of: f64| {
            let share = heat_of / heat;
            share - options.confidence * (share * (1.0 - share).max(0.0) / heat).sqrt()
                >= options.min_share * even
        };
        let worthy = experts.iter().filter(|&&(heat, uses, _)| uses >= options.min_expert_uses && sure(heat));
        pins.extend(worthy.take(most).map(|&(.., key)| key));
    }
    pins
}
