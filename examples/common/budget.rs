//! Budgets from what a source needs.

use streamed_experts::ExpertSource;

/// The budget that keeps every expert of `source` resident beside `working` slots for each tier.
pub fn everything(source: &dyn ExpertSource, working: u32) -> u64 {
    let slots = |tier: usize| {
        let layers = source.layers().iter().filter(|layer| layer.tier.index() == tier);
        let (total, most) =
            layers.fold((0, 0), |(sum, most), layer| (sum + layer.experts, most.max(layer.experts)));
        u64::from(total + most.min(working))
    };
    source.tiers().iter().enumerate().map(|(tier, shape)| shape.layout.slot_bytes() * slots(tier)).sum()
}
