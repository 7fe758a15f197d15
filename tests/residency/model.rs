//! The manager beside a model that is too simple to be wrong, under any sequence of operations.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use proptest::prelude::*;
use streamed_experts::{ExpertId, LayerId, Lease};

use crate::doubles::{TestSource, manager, residents, verify};

const EXPERTS: u32 = 10;
const LAYERS: u32 = 2;
const WORKING: usize = 4;
const RESIDENT: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    /// Leases experts, if that is possible at once, and reads them.
    Lease(u32, Vec<u32>),
    /// Releases the nth lease that is held.
    Release(usize),
    /// Limits residents to so many slots, or not at all.
    Limit(Option<u64>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ids = Just((0..EXPERTS).collect::<Vec<_>>()).prop_shuffle();
    let request = (0..LAYERS, ids, 1..=WORKING).prop_map(|(layer, mut ids, len)| {
        ids.truncate(len);
        Step::Lease(layer, ids)
    });
    let step = prop_oneof![
        6 => request,
        5 => (0..4_usize).prop_map(Step::Release),
        1 => proptest::option::of(0..7_u64).prop_map(Step::Limit),
    ];
    proptest::collection::vec(step, 1..60)
}

/// What the policy and the table should do, in the least code.
#[derive(Default)]
struct Model {
    clock: u64,
    last_access: HashMap<(u32, u32), u64>,
    resident: BTreeMap<u32, Vec<u32>>,
    leases: HashMap<(u32, u32), usize>,
    allowed: [usize; LAYERS as usize],
}

impl Model {
    fn leased(&self, layer: u32, expert: u32) -> usize {
        self.leases.get(&(layer, expert)).copied().unwrap_or(0)
    }

    fn is_resident(&self, layer: u32, expert: u32) -> bool {
        self.resident.get(&layer).is_some_and(|resident| resident.contains(&expert))
    }

    fn in_memory(&self, layer: u32, expert: u32) -> bool {
        self.is_resident(layer, expert) || self.leased(layer, expert) > 0
    }

    fn lease(&mut self, layer: u32, ids: &[u32]) {
        for &expert in ids {
            self.clock += 1;
            self.last_access.insert((layer, expert), self.clock);
            *self.leases.entry((layer, expert)).or_default() += 1;
        }
    }

    fn coldest(&self, layer: u32) -> Option<u32> {
        let unleased =
            self.resident.get(&layer)?.iter().copied().filter(|&expert| self.leased(layer, expert) == 0);
        unleased.min_by_key(|&expert| self.last_access[&(layer, expert)])
    }

    fn evict(&mut self, layer: u32, expert: u32) {
        self.resident.get_mut(&layer).unwrap().retain(|&resident| resident != expert);
    }

    fn release(&mut self, layer: u32, ids: &[u32]) {
        let candidates: Vec<_> = ids
            .iter()
            .copied()
            .filter(|&expert| !self.is_resident(layer, expert) && self.leased(layer, expert) == 1)
            .collect();
        for &expert in &candidates {
            if self.resident.entry(layer).or_default().len() >= self.allowed[layer as usize] {
                let Some(victim) = self.coldest(layer) else { continue };
                self.evict(layer, victim);
            }
            self.resident.get_mut(&layer).unwrap().push(expert);
        }
        for &expert in ids {
            *self.leases.get_mut(&(layer, expert)).unwrap() -= 1;
        }
    }

    fn limit(&mut self, slots: Option<u64>) {
        let slots = slots.map_or(usize::MAX, |slots| usize::try_from(slots).unwrap());
        let layers = LAYERS as usize;
        for (layer, allowed) in self.allowed.iter_mut().enumerate() {
            *allowed = (slots / layers + usize::from(layer < slots % layers)).min(RESIDENT);
        }
        for layer in 0..LAYERS {
            while self.resident.get(&layer).map_or(0, Vec::len) > self.allowed[layer as usize] {
                let Some(victim) = self.coldest(layer) else { break };
                self.evict(layer, victim);
            }
        }
    }

    fn residents(&self, layer: u32) -> Vec<u32> {
        let mut resident = self.resident.get(&layer).cloned().unwrap_or_default();
        resident.sort_unstable();
        resident
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hits_and_residents_are_those_of_the_model(steps in steps()) {
        let source = Arc::new(TestSource::new(&[EXPERTS; LAYERS as usize]));
        let manager = manager(&source, source.plan(RESIDENT as u64, WORKING as u32), 3);
        let mut model = Model { allowed: [RESIDENT; LAYERS as usize], ..Model::default() };
        let mut held: Vec<(u32, Vec<u32>, Lease)> = Vec::new();
        for step in steps {
            match step {
                Step::Lease(layer, ids) => {
                    let request: Vec<_> = ids.iter().copied().map(ExpertId).collect();
                    let Some(mut lease) = manager.try_admit(LayerId(layer), &request).unwrap() else {
                        prop_assert!(!held.is_empty(), "with nothing leased, every request is possible");
                        continue;
                    };
                    let hits: Vec<_> = (0..ids.len()).filter(|&at| model.in_memory(layer, ids[at])).collect();
                    prop_assert_eq!(lease.hits().collect::<Vec<_>>(), hits);
                    model.lease(layer, &ids);
                    lease.wait_all().unwrap();
                    held.push((layer, ids, lease));
                }
                Step::Release(at) if !held.is_empty() => {
                    let (layer, ids, lease) = held.remove(at % held.len());
                    verify(&source, &lease);
                    lease.release().unwrap();
                    model.release(layer, &ids);
                }
                Step::Release(_) => {}
                Step::Limit(slots) => {
                    manager.set_resident_limit_bytes(slots.map(|slots| slots * source.slot_bytes()));
                    manager.safe_point().unwrap();
                    model.limit(slots);
                }
            }
            manager.check_invariants();
            held.iter().for_each(|(_, _, lease)| verify(&source, lease));
            for layer in 0..LAYERS {
                prop_assert_eq!(residents(&manager, layer), model.residents(layer));
            }
        }
    }
}
