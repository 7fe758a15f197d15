//! The slots of one layer, without their bytes.

use crate::{
    ids::{ExpertId, ExpertKey, LayerId},
    policy::{Evictable, PolicyLayer},
};

#[derive(Clone, Copy, Debug, Default)]
struct Expert {
    resident: bool,
    leased: bool,
    last_use: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Slots {
    layer: LayerId,
    experts: Vec<Expert>,
    slots: u32,
    resident: u32,
    uses: u64,
}

impl Slots {
    pub(super) fn new(layer: PolicyLayer) -> Self {
        let experts = vec![Expert::default(); layer.experts as usize];
        Self { layer: layer.layer, experts, slots: layer.resident_slots, resident: 0, uses: 0 }
    }

    /// Leases an expert; whether it was resident.
    pub(super) fn lease(&mut self, expert: ExpertId) -> bool {
        self.uses += 1;
        let leased = &mut self.experts[expert.index()];
        leased.leased = true;
        leased.last_use = self.uses;
        leased.resident
    }

    pub(super) fn release(&mut self, experts: &[ExpertId]) {
        for expert in experts {
            self.experts[expert.index()].leased = false;
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.resident >= self.slots
    }

    pub(super) fn keep(&mut self, expert: ExpertId) {
        self.experts[expert.index()].resident = true;
        self.resident += 1;
    }

    pub(super) fn evict(&mut self, key: ExpertKey) {
        self.experts[key.expert.index()].resident = false;
        self.resident -= 1;
    }

    pub(super) fn may_evict(&self, key: ExpertKey) -> bool {
        let expert = self.experts.get(key.expert.index());
        key.layer == self.layer && expert.is_some_and(|expert| expert.resident && !expert.leased)
    }

    /// The least recently used expert that may be evicted.
    pub(super) fn coldest(&self) -> Option<ExpertKey> {
        let mut coldest = None;
        self.visit(&mut |key| {
            let last_use = self.experts[key.expert.index()].last_use;
            if coldest.is_none_or(|(_, least)| last_use < least) {
                coldest = Some((key, last_use));
            }
            true
        });
        coldest.map(|(key, _)| key)
    }
}

impl Evictable for Slots {
    fn layer(&self) -> LayerId {
        self.layer
    }

    fn contains(&self, key: ExpertKey) -> bool {
        self.may_evict(key)
    }

    fn visit(&self, visit: &mut dyn FnMut(ExpertKey) -> bool) {
        let keys = (0..).map(|expert| ExpertKey::new(self.layer, ExpertId(expert)));
        let evictable = keys.zip(&self.experts).filter(|(_, expert)| expert.resident && !expert.leased);
        let _ = evictable.map(|(key, _)| key).all(visit);
    }
}
