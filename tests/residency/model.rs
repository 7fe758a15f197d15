//! The manager beside a model that is too simple to be wrong, under any sequence of operations.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    sync::{Arc, Mutex},
};

use proptest::prelude::*;
use streamed_experts::{
    CloseError, ExpertId, ExpertKey, LayerId, Lease, LeaseError, LoadError, ReadPriority,
};

use crate::doubles::{Read, TestSource, key, manager, residents};

const EXPERTS: u32 = 10;
const LAYERS: u32 = 2;
const WORKING: usize = 4;
const RESIDENT: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    /// Leases experts, if that is possible at once, and reads them; those at these positions cannot be read.
    Lease(u32, Vec<u32>, Vec<usize>),
    /// Leases experts, if that is possible at once, and gives them up unread, as a request that is cancelled does.
    Abandon(u32, Vec<u32>),
    /// Reads experts that nobody has asked for, and holds them.
    Ahead(u32, Vec<u32>),
    /// Releases the nth lease that is held.
    Release(usize),
    /// Limits residents to so many slots, or not at all.
    Limit(Option<u64>),
    /// Tries to close while something is held.
    Close,
}

/// Experts that are held, by whom they were asked for, without those that could not be read.
struct Held {
    layer: u32,
    ids: Vec<u32>,
    lease: Lease,
    ahead: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ids = || {
        let all = Just((0..EXPERTS).collect::<Vec<_>>()).prop_shuffle();
        (0..LAYERS, all, 1..=WORKING).prop_map(|(layer, mut ids, len)| {
            ids.truncate(len);
            (layer, ids)
        })
    };
    let broken = prop_oneof![4 => Just(Vec::new()), 1 => proptest::collection::vec(0..WORKING, 1..3)];
    let step = prop_oneof![
        6 => (ids(), broken).prop_map(|((layer, ids), broken)| Step::Lease(layer, ids, broken)),
        1 => ids().prop_map(|(layer, ids)| Step::Abandon(layer, ids)),
        2 => ids().prop_map(|(layer, ids)| Step::Ahead(layer, ids)),
        6 => (0..4_usize).prop_map(Step::Release),
        1 => proptest::option::of(0..7_u64).prop_map(Step::Limit),
        1 => Just(Step::Close),
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

    fn access(&mut self, layer: u32, ids: &[u32]) {
        for &expert in ids {
            self.clock += 1;
            self.last_access.insert((layer, expert), self.clock);
        }
    }

    fn hold(&mut self, layer: u32, ids: &[u32]) {
        for &expert in ids {
            *self.leases.entry((layer, expert)).or_default() += 1;
        }
    }

    fn let_go(&mut self, layer: u32, ids: &[u32]) {
        for &expert in ids {
            *self.leases.get_mut(&(layer, expert)).unwrap() -= 1;
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
        self.let_go(layer, ids);
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
        let broken: Arc<Mutex<HashSet<ExpertKey>>> = Arc::default();
        let reader = Arc::clone(&broken);
        let source = Arc::new(TestSource::new(&[EXPERTS; LAYERS as usize]).behaving(move |key| {
            if reader.lock().unwrap().contains(&key) { Read::Fail(io::ErrorKind::Other) } else { Read::Full }
        }));
        let manager = manager(&source, source.plan(RESIDENT as u64, WORKING as u32), 3);
        let mut model = Model { allowed: [RESIDENT; LAYERS as usize], ..Model::default() };
        let mut held: Vec<Held> = Vec::new();
        for step in steps {
            match step {
                Step::Lease(layer, mut ids, unreadable) => {
                    let request: Vec<_> = ids.iter().copied().map(ExpertId).collect();
                    let Some(mut lease) = manager.try_admit(LayerId(layer), &request).unwrap() else {
                        prop_assert!(!held.is_empty(), "with nothing leased, every request is possible");
                        continue;
                    };
                    let hits: Vec<_> = (0..ids.len()).filter(|&at| model.in_memory(layer, ids[at])).collect();
                    prop_assert_eq!(lease.hits().collect::<Vec<_>>(), hits);
                    model.access(layer, &ids);
                    let fail = |at: &usize| unreadable.contains(at) && !model.in_memory(layer, ids[*at]);
                    let failing: Vec<_> = (0..ids.len()).filter(fail).map(|at| key(layer, ids[at])).collect();
                    *broken.lock().unwrap() = failing.iter().copied().collect();
                    let told: Vec<_> = lease.wait_all().err().map_or(Vec::new(), |errors| {
                        let keys = errors.errors().iter().map(|error| match error {
                            LoadError::Read { key, .. } => *key,
                            other => panic!("{other}"),
                        });
                        keys.collect()
                    });
                    prop_assert_eq!(&told, &failing);
                    broken.lock().unwrap().clear();
                    ids.retain(|&expert| !failing.contains(&key(layer, expert)));
                    model.hold(layer, &ids);
                    held.push(Held { layer, ids, lease, ahead: false });
                }
                Step::Abandon(layer, ids) => {
                    let request: Vec<_> = ids.iter().copied().map(ExpertId).collect();
                    if let Some(lease) = manager.try_admit(LayerId(layer), &request).unwrap() {
                        model.access(layer, &ids);
                        drop(lease);
                    }
                }
                Step::Ahead(layer, ids) => {
                    let request: Vec<_> = ids.iter().copied().map(ExpertId).collect();
                    let begun = manager.begin(LayerId(layer), &request, ReadPriority::Prefetch).unwrap();
                    if let Some(mut lease) = begun {
                        lease.wait_all().unwrap();
                        model.hold(layer, &ids);
                        held.push(Held { layer, ids, lease, ahead: true });
                    }
                }
                Step::Release(at) if !held.is_empty() => {
                    let Held { layer, ids, lease, ahead } = held.remove(at % held.len());
                    lease.release().unwrap();
                    if ahead {
                        model.let_go(layer, &ids);
                    } else {
                        model.release(layer, &ids);
                    }
                }
                Step::Release(_) => {}
                Step::Limit(slots) => {
                    manager.set_resident_limit_bytes(slots.map(|slots| slots * source.slot_bytes()));
                    manager.safe_point().unwrap();
                    model.limit(slots);
                }
                Step::Close => {
                    if !held.is_empty() {
                        let refused = matches!(manager.close(), Err(CloseError::Leased { .. }));
                        prop_assert!(refused, "closed while {} leases are held", held.len());
                    }
                }
            }
            manager.check_invariants();
            for Held { layer, ids, lease, .. } in &held {
                for position in (0..lease.len()).filter(|&at| ids.contains(&lease.expert(at).0)) {
                    let key = key(*layer, lease.expert(position).0);
                    prop_assert!(source.is(key, lease.bytes(position).unwrap()), "{} of {}", lease.slot(position), key);
                }
            }
            for layer in 0..LAYERS {
                prop_assert_eq!(residents(&manager, layer), model.residents(layer));
            }
        }
        drop(held);
        manager.check_invariants();
        manager.close().unwrap();
        prop_assert!(matches!(manager.admit(LayerId(0), &[ExpertId(0)]), Err(LeaseError::Closed)));
    }
}
