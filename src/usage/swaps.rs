//! Which pinned experts have become worse than resident ones.

use std::collections::BTreeMap;

use super::ledger::UsageLedger;
use crate::ids::{ExpertId, ExpertKey, LayerId};

/// When a resident expert takes the place of a pinned one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwapOptions {
    /// The most swaps at once, in all layers together: those that gain most heat. Default 4.
    pub most: usize,
    /// How many times the pinned expert's heat the other one's must be, so that two alike do not take turns. At least 1
    /// counts. Default 2.
    pub ratio: f64,
    /// The heat that it must have at least. Default 64.
    pub min_heat: f64,
}

impl Default for SwapOptions {
    fn default() -> Self {
        Self { most: 4, ratio: 2.0, min_heat: 64.0 }
    }
}

/// Two experts of one layer that change roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinSwap {
    /// Their layer.
    pub layer: LayerId,
    /// Pinned so far.
    pub pinned: ExpertId,
    /// Resident so far.
    pub resident: ExpertId,
}

/// The swaps to make, the one that gains most heat first. In each layer the hottest of `resident` meets the coldest of
/// `pinned`, and so on. Pure: the same ledger gives the same swaps. Options that are no numbers swap nothing.
#[must_use]
pub fn plan_swaps(
    ledger: &UsageLedger,
    pinned: &[ExpertKey],
    resident: &[ExpertKey],
    options: &SwapOptions,
) -> Vec<PinSwap> {
    let by_layer = |keys: &[ExpertKey]| {
        let mut layers: BTreeMap<LayerId, Vec<(f64, ExpertId)>> = BTreeMap::new();
        for &key in keys {
            layers.entry(key.layer).or_default().push((ledger.heat(key), key.expert));
        }
        for experts in layers.values_mut() {
            experts.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        }
        layers
    };
    let (pinned, mut resident) = (by_layer(pinned), by_layer(resident));
    let mut swaps = Vec::new();
    for (layer, coldest_first) in pinned {
        let Some(candidates) = resident.remove(&layer) else { continue };
        for ((cold, pinned), (hot, resident)) in coldest_first.into_iter().zip(candidates.into_iter().rev()) {
            if hot >= options.min_heat && hot > cold && hot >= options.ratio * cold {
                swaps.push((hot - cold, PinSwap { layer, pinned, resident }));
            }
        }
    }
    swaps.sort_by(|a, b| b.0.total_cmp(&a.0)); // stable: of equal gains the lower layer comes first
    swaps.into_iter().take(options.most).map(|(_, swap)| swap).collect()
}
