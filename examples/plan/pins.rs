//! `--pin`: what a usage ledger says to pin.

use std::path::Path;

use streamed_experts::{ExpertKey, LayerPlan, PinOptions, ResidencyPlan, UsageLedger, plan_pins};

use crate::common::Failure;

fn layers(plan: &ResidencyPlan) -> impl Iterator<Item = &LayerPlan> {
    plan.tiers().iter().flat_map(|tier| tier.layers())
}

/// The experts to pin, in a plan without pins.
pub fn from_ledger(path: &Path, plan: &ResidencyPlan) -> Result<Vec<ExpertKey>, Failure> {
    if !path.exists() {
        return Err(format!("{}: there is no such ledger", path.display()).into());
    }
    let shapes = layers(plan).map(|layer| (layer.layer(), layer.experts()));
    let (ledger, damaged) = UsageLedger::open(path, shapes)?;
    if let Some(damaged) = damaged {
        return Err(damaged.into());
    }
    let slots = layers(plan).map(|layer| (layer.layer(), layer.resident_slots())).collect();
    Ok(plan_pins(&ledger, &slots, &PinOptions::default()))
}

/// Says which experts are pinned.
pub fn name(plan: &ResidencyPlan) {
    let mut pinned: Vec<_> = layers(plan).filter(|layer| !layer.pinned().is_empty()).collect();
    pinned.sort_by_key(|layer| layer.layer());
    if pinned.is_empty() {
        println!(
            "pinned experts           none: the ledger has too little evidence, or no expert stands out"
        );
    }
    for layer in pinned {
        let experts: Vec<_> = layer.pinned().iter().map(ToString::to_string).collect();
        println!("pinned in {:<14} {}", layer.layer().to_string(), experts.join(" "));
    }
}
