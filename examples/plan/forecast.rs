//! Hits to expect of a model, from a trace that may be of another one.

use streamed_experts::{
    Echo, ExpertSource, HitCounts, Lru, ReplaySlots, ResidencyPlan, Trace, belady, replay,
};

/// Steps in which the share of resident experts is searched.
const STEPS: u32 = 32;

pub struct Forecast<'a> {
    trace: &'a Trace,
    /// Experts of each layer of the model.
    experts: Vec<u32>,
    record_bytes: Vec<u64>,
    slot_bytes: Vec<u64>,
}

impl<'a> Forecast<'a> {
    pub fn new(source: &dyn ExpertSource, trace: &'a Trace) -> Self {
        let layers = source.layers();
        let layout = |layer: &streamed_experts::SparseLayer| &source.tiers()[layer.tier.index()].layout;
        Self {
            trace,
            experts: layers.iter().map(|layer| layer.experts).collect(),
            record_bytes: layers.iter().map(|layer| layout(layer).record_bytes()).collect(),
            slot_bytes: layers.iter().map(|layer| layout(layer).slot_bytes()).collect(),
        }
    }

    /// Whether the trace may be of this model.
    pub fn same_shape(&self) -> bool {
        let layers = self.trace.layers();
        layers.len() == self.experts.len()
            && layers.iter().zip(&self.experts).all(|(layer, &experts)| {
                // The last experts of a layer may not occur in a trace.
                layer.experts <= experts && u64::from(layer.experts) * 10 >= u64::from(experts) * 9
            })
    }

    /// Slots for the trace's layers: as many as the model's, or the same share of the experts.
    fn slots(&self, plan: &ResidencyPlan) -> ReplaySlots {
        let mut planned: Vec<_> = plan.tiers().iter().flat_map(|tier| tier.layers()).collect();
        planned.sort_by_key(|layer| layer.layer());
        let same = self.same_shape();
        let slots = self.trace.layers().iter().zip(planned.iter().cycle()).map(|(layer, planned)| {
            let kept = u64::from(planned.resident_slots()) + planned.pinned().len() as u64;
            let scaled =
                if same { kept } else { kept * u64::from(layer.experts) / u64::from(planned.experts()) };
            u32::try_from(scaled).unwrap_or(u32::MAX)
        });
        ReplaySlots::Layers(slots.collect())
    }

    pub fn hits(&self, plan: &ResidencyPlan) -> HitCounts {
        replay(self.trace, &self.slots(plan), Echo::boxed).total
    }

    pub fn lru(&self, plan: &ResidencyPlan) -> HitCounts {
        replay(self.trace, &self.slots(plan), Lru::boxed).total
    }

    pub fn optimum(&self, plan: &ResidencyPlan) -> HitCounts {
        belady(self.trace, &self.slots(plan), 0)
    }

    /// Experts that a token of the model misses in all its layers at a hit rate.
    pub fn misses(&self, rate: f64) -> f64 {
        let layers = self.trace.layers().len() as f64;
        let per_layer = self.trace.accesses() as f64 / self.trace.forwards() as f64 / layers;
        (1.0 - rate) * per_layer * self.experts.len() as f64
    }

    /// Bytes read for an expert, mean over the layers.
    pub fn expert_bytes(&self) -> f64 {
        self.record_bytes.iter().map(|&bytes| bytes as f64).sum::<f64>() / self.record_bytes.len() as f64
    }

    /// Slots for every expert.
    pub fn all_bytes(&self) -> f64 {
        self.experts
            .iter()
            .zip(&self.slot_bytes)
            .map(|(&experts, &bytes)| f64::from(experts) * bytes as f64)
            .sum()
    }

    /// The share of the experts that must be resident for a hit rate.
    pub fn share_for(&self, rate: f64) -> Option<f64> {
        let slots = |step: u32| {
            let layers = self.trace.layers().iter();
            ReplaySlots::Layers(
                layers.map(|layer| layer.experts.saturating_mul(step).div_ceil(STEPS)).collect(),
            )
        };
        let reaches = |&step: &u32| replay(self.trace, &slots(step), Echo::boxed).total.rate() >= rate;
        (0..=STEPS).find(reaches).map(|step| f64::from(step) / f64::from(STEPS))
    }
}
