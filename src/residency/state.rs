//! Everything that changes, behind one lock.

use std::collections::VecDeque;

use super::{
    advisor::Advisor,
    cancel::Wake,
    lease::Entry,
    plan::ResidencyPlan,
    table::{Role, SlotState, SlotTable},
    telemetry::{SlotCounts, Telemetry},
};
use crate::{
    ids::{SlotId, TierId},
    memory::LatchedBank,
    store::{Landing, Load, LoadError, LoadSink},
    sync::{Arc, Condvar, Mutex, lock},
};

/// Leases whose buffers are allocated at open. More at once allocate theirs when they are first made.
const PREPARED_LEASES: usize = 8;

/// What readers and waiters share. Reader threads own it, so it must not own them.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) banks: Arc<[LatchedBank]>,
    pub(super) state: Mutex<State>,
    /// Signalled when a request that waits for slots may go on.
    pub(super) admission: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) tiers: Vec<TierState>,
    pub(super) records: Vec<Record>,
    pub(super) idle_records: Vec<usize>,
    pub(super) marks: Marks,
    pub(super) next_ticket: u64,
    pub(super) telemetry: Telemetry,
    pub(super) leases: u64,
    pub(super) closed: bool,
    largest_request: usize,
}

#[derive(Debug)]
pub(super) struct TierState {
    pub(super) table: SlotTable,
    pub(super) advisor: Advisor,
    /// Tickets of the requests that wait, in order of arrival.
    pub(super) waiting: VecDeque<u64>,
    pub(super) slot_bytes: u64,
    pub(super) working_slots: u32,
    pub(super) leaked_working: u32,
    pub(super) leaked: u32,
}

/// What the readers tell a lease.
#[derive(Debug)]
pub(super) struct Record {
    tier: TierId,
    /// Slots that have not landed, with their position in the request.
    pub(super) waits: Vec<(SlotId, usize)>,
    /// What has landed and has not been told, in order of landing.
    pub(super) landed: VecDeque<(usize, Result<(), LoadError>)>,
    pub(super) wake: Arc<Condvar>,
    /// A spare buffer for the lease.
    pub(super) entries: Vec<Entry>,
}

/// Finds an expert that is named twice in a request, without clearing anything between requests.
#[derive(Debug)]
pub(super) struct Marks {
    seen: Vec<(u64, usize)>,
    request: u64,
}

impl Marks {
    pub(super) fn next_request(&mut self) {
        self.request += 1;
    }

    /// Where `expert` was named before in this request.
    pub(super) fn mark(&mut self, expert: usize, position: usize) -> Option<usize> {
        let (request, before) = std::mem::replace(&mut self.seen[expert], (self.request, position));
        (request == self.request).then_some(before)
    }
}

impl State {
    pub(super) fn new(plan: &ResidencyPlan, advisors: Vec<Advisor>) -> Self {
        let tiers: Vec<_> = plan
            .tiers()
            .iter()
            .zip(advisors)
            .map(|(tier, advisor)| TierState {
                table: SlotTable::new(tier),
                advisor,
                waiting: VecDeque::new(),
                slot_bytes: tier.slot_bytes(),
                working_slots: tier.working_slots(),
                leaked_working: 0,
                leaked: 0,
            })
            .collect();
        let largest_request = tiers.iter().map(|tier| tier.working_slots).max().unwrap_or(0) as usize;
        let most = plan.tiers().iter().flat_map(|tier| tier.layers()).map(|layer| layer.experts()).max();
        let mut state = Self {
            tiers,
            records: Vec::with_capacity(PREPARED_LEASES),
            idle_records: Vec::with_capacity(PREPARED_LEASES),
            marks: Marks { seen: vec![(0, 0); most.unwrap_or(0) as usize], request: 0 },
            next_ticket: 0,
            telemetry: Telemetry::new(),
            leases: 0,
            closed: false,
            largest_request,
        };
        for _ in 0..PREPARED_LEASES {
            let record = state.new_record();
            state.idle_records.push(record);
        }
        state
    }

    fn new_record(&mut self) -> usize {
        self.records.push(Record {
            tier: TierId(0),
            waits: Vec::with_capacity(self.largest_request),
            landed: VecDeque::with_capacity(self.largest_request),
            wake: Arc::new(Condvar::new()),
            entries: Vec::with_capacity(self.largest_request),
        });
        self.records.len() - 1
    }

    /// A record for a lease of `tier`, with empty buffers.
    pub(super) fn take_record(&mut self, tier: TierId) -> usize {
        let record = match self.idle_records.pop() {
            Some(record) => record,
            None => self.new_record(),
        };
        self.records[record].tier = tier;
        self.leases += 1;
        record
    }

    /// Takes a lease's record and buffer back.
    pub(super) fn return_record(&mut self, record: usize, mut entries: Vec<Entry>) {
        entries.clear();
        self.records[record].waits.clear();
        self.records[record].landed.clear();
        self.records[record].entries = entries;
        self.idle_records.push(record);
        self.leases -= 1;
    }

    /// Bytes of the slots that occupy memory.
    pub(super) fn filled_bytes(&self) -> u64 {
        self.tiers.iter().map(|tier| u64::from(tier.table.filled_slots()) * tier.slot_bytes).sum()
    }

    pub(super) fn slot_counts(&self) -> SlotCounts {
        let mut counts = SlotCounts { leases: self.leases, ..SlotCounts::default() };
        for tier in &self.tiers {
            let resident = tier.table.layers().iter().map(|layer| u64::from(layer.resident)).sum::<u64>();
            counts.resident += resident;
            counts.resident_bytes += resident * tier.slot_bytes;
            counts.disabled += tier.table.disabled_slots() as u64;
            counts.unreleased += tier.table.unreleased_slots() as u64;
            counts.leaked += u64::from(tier.leaked);
        }
        counts
    }

    /// Tells every lease that waits for `slot` how its load ended.
    fn tell(&mut self, tier: TierId, slot: SlotId, result: &Result<(), LoadError>) {
        for record in self.records.iter_mut().filter(|record| record.tier == tier) {
            if let Some(at) = record.waits.iter().position(|&(waited, _)| waited == slot) {
                let (_, position) = record.waits.swap_remove(at);
                record.landed.push_back((position, result.clone()));
                record.wake.notify_all();
            }
        }
    }
}

impl Core {
    /// Lets requests that wait for slots of a tier look again.
    pub(super) fn slots_freed(&self, tier: &TierState) {
        if !tier.waiting.is_empty() {
            self.admission.notify_all();
        }
    }
}

impl LoadSink for Core {
    fn landed(&self, landing: Landing) {
        let mut state = lock(&self.state);
        let (tier, slot) = (landing.load.tier, landing.load.slot.slot);
        let table = &mut state.tiers[tier.index()].table;
        debug_assert_eq!(table.generation(slot), landing.load.slot.generation);
        let (pinned, claimed) = (table.role(slot) == Role::Pinned, table.leases(slot) > 0);
        if landing.result.is_ok() && (claimed || pinned) {
            table.landed(slot);
        } else {
            table.vacate(slot);
        }
        debug_assert!(claimed || pinned || table.state(slot) == SlotState::Idle);
        state.telemetry.landed(&landing, pinned, claimed || pinned);
        state.tell(tier, slot, &landing.result);
        self.slots_freed(&state.tiers[tier.index()]);
    }

    fn lost(&self, load: Load, error: LoadError) {
        let mut state = lock(&self.state);
        let (tier, slot) = (load.tier, load.slot.slot);
        let table = &mut state.tiers[tier.index()].table;
        // The read is over, and the latch keeps readers out of a slot that is filled: so it may be used again.
        if table.generation(slot) == load.slot.generation && table.state(slot) != SlotState::Idle {
            table.vacate(slot);
        }
        state.tell(tier, slot, &Err(error));
        self.slots_freed(&state.tiers[tier.index()]);
    }
}

impl Wake for Core {
    fn wake_all(&self) {
        let state = lock(&self.state);
        self.admission.notify_all();
        for record in &state.records {
            record.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{ExpertId, ExpertKey, LayerId},
        policy::Lru,
        residency::{Budget, ManagerOptions, ResidencyManager},
        sources::ExpertSource,
    };

    #[test]
    fn a_load_whose_landing_broke_is_told_to_its_waiters_and_read_anew() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen3_moe-affine4-g64-bf16");
        let source: Arc<dyn ExpertSource> = crate::sources::open_source(path).unwrap().into();
        let slots = 4 * source.tiers()[0].layout.slot_bytes();
        let plan = ResidencyPlan::new(&*source, &Budget { working_slots: 2, ..Budget::new(slots) }).unwrap();
        let banks = plan.anonymous_banks().unwrap();
        let manager =
            ResidencyManager::new(source, plan, banks, Lru::boxed, &ManagerOptions::default()).unwrap();
        let (layer, expert, core) = (LayerId(0), ExpertId(3), &manager.inner.core);
        let mut lease = manager.admit(layer, &[expert]).unwrap();
        let (tier, slot) = (lease.tier(), lease.slot(0));
        lock(&core.state).tiers[tier.index()].table.start(slot.slot); // as if a reader had it
        let key = ExpertKey::new(layer, expert);
        core.lost(Load { key, tier, slot }, LoadError::Panicked { key, message: "broken".into() });
        let error = lease.wait_all().unwrap_err();
        assert!(matches!(error.errors(), [LoadError::Panicked { .. }]), "{error}");
        drop(lease);
        manager.check_invariants();
        manager.lease_with(layer, &[expert, ExpertId(4)], |_| {}).unwrap().release().unwrap();
        manager.check_invariants();
    }
}
