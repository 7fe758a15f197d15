//! What becomes of the slots of a lease when it ends.

use super::{
    admission::Purpose,
    lease::{Entry, Lease, Status},
    manager::Inner,
    state::{State, TierState},
    table::{Place, Role, SlotState},
    telemetry::{PolicyCounts, Telemetry},
};
use crate::{ids::TierId, store::LoadError, sync::lock};

impl Lease {
    /// Ends the lease and returns the errors that were not told.
    pub(super) fn finish(&mut self, leak: bool) -> Vec<LoadError> {
        self.held = false;
        let bank = &self.inner.core.banks[self.place.tier.index()];
        for right in self.entries.iter_mut().filter_map(|entry| entry.right.take()) {
            if !leak {
                bank.unshare(right);
            }
        }
        let mut entries = std::mem::take(&mut self.entries);
        let mut state = lock(&self.inner.core.state);
        let State { tiers, records, telemetry, .. } = &mut *state;
        let tier = &mut tiers[self.place.tier.index()];
        let mut untold = Vec::new();
        while let Some((position, result)) = records[self.record].landed.pop_front() {
            if let Err(error) = result {
                entries[position].status = Status::Failed;
                untold.push(error);
            }
        }
        let missed = entries.iter().any(|entry| entry.status != Status::Hit);
        if missed && self.purpose == Purpose::Demand {
            telemetry.waited(self.waited);
        }
        entries.retain(|entry| entry.status != Status::Failed);
        if leak {
            entries.retain(|entry| entry.status == Status::Waiting || !tier.leak(entry));
        }
        entries.retain(|entry| !self.inner.let_go(tier, self.place.tier, entry, telemetry));
        for entry in &entries {
            tier.keep(Place { layer: self.place.position, expert: entry.expert }, &mut telemetry.policy);
        }
        for entry in &entries {
            tier.end(entry);
        }
        self.inner.core.slots_freed(tier);
        state.return_record(self.record, entries);
        untold
    }
}

impl Inner {
    /// Ends the lease of one expert, unless it was read for this lease and nobody else holds it. Such an expert stays
    /// leased until it is decided whether it is kept. Whether the lease has ended.
    fn let_go(&self, tier: &mut TierState, id: TierId, entry: &Entry, telemetry: &mut Telemetry) -> bool {
        let (table, slot) = (&mut tier.table, entry.slot.slot);
        debug_assert_eq!(table.generation(slot), entry.slot.generation);
        let last = table.leases(slot) == 1;
        let (role, state) = (table.role(slot), table.state(slot));
        if state == SlotState::Ready && role == Role::Working && last {
            return false;
        }
        table.unlease(slot);
        let abandoned = match state {
            SlotState::Reserved => last && role == Role::Working,
            SlotState::Loading => last && self.pool.cancel(id, entry.slot),
            SlotState::Idle | SlotState::Ready => false,
        };
        if abandoned {
            let cancelled = u64::from(state == SlotState::Loading);
            telemetry.reads(role == Role::Pinned).cancelled += cancelled;
            table.vacate(slot);
        }
        true
    }
}

impl TierState {
    /// Keeps the slot of an entry for ever.
    fn leak(&mut self, entry: &Entry) -> bool {
        if self.table.leak(entry.slot.slot) {
            self.leaked += 1;
            self.leaked_working += u32::from(self.table.role(entry.slot.slot) == Role::Working);
        }
        true
    }

    /// Makes an expert that was read resident, if its layer has room or the policy makes room.
    fn keep(&mut self, place: Place, counts: &mut PolicyCounts) {
        let Self { table, advisor, .. } = self;
        let layer = table.layers()[place.layer];
        let Some((slot, key)) = table.find(place).and_then(|slot| Some((slot, table.key(slot)?))) else {
            return;
        };
        if layer.resident >= layer.allowed {
            let Some(victim) = advisor.victim(table, place.layer, Some(key), counts) else {
                counts.bypasses += 1;
                return;
            };
            if let Some(victim_key) = table.key(victim) {
                advisor.removed(victim_key, counts);
            }
            table.vacate(victim);
            counts.evictions += 1;
        }
        table.promote(slot);
        counts.promotions += 1;
        advisor.inserted(key, counts);
    }

    /// Ends the last lease of an expert that was read.
    fn end(&mut self, entry: &Entry) {
        let (table, slot) = (&mut self.table, entry.slot.slot);
        table.unlease(slot);
        if table.role(slot) == Role::Working {
            table.vacate(slot);
        }
    }
}
