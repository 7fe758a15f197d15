//! What becomes of the slots of a lease when it ends.

use super::{
    admission::Purpose,
    lease::{Entry, Lease, Status},
    manager::Inner,
    state::{State, TierState},
    table::{Role, SlotState},
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
        for entry in entries.iter().filter(|_| !leak && self.purpose != Purpose::Ahead) {
            tier.keep(self.place.position, entry, &mut telemetry.policy);
        }
        for entry in &entries {
            let slot = entry.slot.slot;
            let wanted = tier.table.leases(slot) > 1 || tier.table.role(slot) != Role::Working;
            let taken_back = self.inner.let_go(tier, self.place.tier, entry, telemetry);
            if self.purpose == Purpose::Ahead && entry.status != Status::Hit {
                let wasted = !wanted && !taken_back;
                telemetry.ahead.used += u64::from(wanted);
                telemetry.ahead.cancelled += u64::from(taken_back);
                telemetry.ahead.wasted += u64::from(wasted);
                telemetry.ahead.wasted_bytes += if wasted { tier.slot_bytes } else { 0 };
            }
        }
        self.inner.core.slots_freed(tier);
        state.return_record(self.record, entries);
        untold
    }
}

impl Inner {
    /// Ends the lease of one expert. What was read for nobody else and is not kept makes room; a read that nobody waits
    /// for any more is taken back. Whether one was.
    fn let_go(&self, tier: &mut TierState, id: TierId, entry: &Entry, telemetry: &mut Telemetry) -> bool {
        let (table, slot) = (&mut tier.table, entry.slot.slot);
        debug_assert_eq!(table.generation(slot), entry.slot.generation);
        let last = table.leases(slot) == 1;
        let (role, state) = (table.role(slot), table.state(slot));
        table.unlease(slot);
        let abandoned = match state {
            SlotState::Reserved | SlotState::Ready => last && role == Role::Working,
            SlotState::Loading => last && self.pool.cancel(id, entry.slot),
            SlotState::Idle => false,
        };
        if abandoned {
            let cancelled = u64::from(state == SlotState::Loading);
            telemetry.reads(role == Role::Pinned).cancelled += cancelled;
            table.vacate(slot);
        }
        abandoned && matches!(state, SlotState::Reserved | SlotState::Loading)
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

    /// Makes an expert that was read, and that nobody else holds, resident, if its layer has room or the policy makes
    /// room. Every expert of the lease is still held, so none of them gives way to another.
    fn keep(&mut self, layer: usize, entry: &Entry, counts: &mut PolicyCounts) {
        let Self { table, advisor, .. } = self;
        let slot = entry.slot.slot;
        let read_for_us = table.role(slot) == Role::Working && table.state(slot) == SlotState::Ready;
        let Some(key) = table.key(slot).filter(|_| read_for_us && table.leases(slot) == 1) else { return };
        let slots = table.layers()[layer];
        if slots.resident >= slots.allowed {
            let Some(victim) = advisor.victim(table, layer, Some(key), counts) else {
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
}
