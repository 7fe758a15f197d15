//! A policy whose every answer is checked.

use std::panic::AssertUnwindSafe;

use super::{table::SlotTable, telemetry::PolicyCounts};
use crate::{
    ids::{ExpertKey, LayerId, SlotId},
    policy::{CachePolicy, Verdict},
};

/// Asks a policy; does without it once it has panicked.
#[derive(Debug)]
pub(super) struct Advisor {
    policy: Option<Box<dyn CachePolicy>>,
}

impl Advisor {
    pub(super) fn new(policy: Box<dyn CachePolicy>) -> Self {
        Self { policy: Some(policy) }
    }

    pub(super) fn requested(&mut self, layer: LayerId, counts: &mut PolicyCounts) {
        self.ask(counts, |policy| policy.requested(layer));
    }

    pub(super) fn accessed(&mut self, key: ExpertKey, hit: bool, counts: &mut PolicyCounts) {
        self.ask(counts, |policy| policy.accessed(key, hit));
    }

    pub(super) fn inserted(&mut self, key: ExpertKey, counts: &mut PolicyCounts) {
        self.ask(counts, |policy| policy.inserted(key));
    }

    pub(super) fn removed(&mut self, key: ExpertKey, counts: &mut PolicyCounts) {
        self.ask(counts, |policy| policy.removed(key));
    }

    /// The slot whose expert gives way to `incoming`; `None` if none may or none should.
    pub(super) fn victim(
        &mut self,
        table: &SlotTable,
        layer: usize,
        incoming: Option<ExpertKey>,
        counts: &mut PolicyCounts,
    ) -> Option<SlotId> {
        let evictable = table.evictable(layer);
        if evictable.is_empty() {
            return None;
        }
        let answer = self.ask(counts, |policy| policy.victim(incoming, &evictable));
        match answer {
            Some(Verdict::Bypass) if incoming.is_some() => None,
            Some(Verdict::Evict(key)) if evictable.slot(key).is_some() => evictable.slot(key),
            Some(_) => {
                counts.violations += 1;
                table.coldest(layer)
            }
            None => table.coldest(layer),
        }
    }

    /// Calls the policy, unless it has panicked before. A panic is a violation; the policy is forgotten, not dropped,
    /// since its destructor may be as broken.
    fn ask<T>(
        &mut self,
        counts: &mut PolicyCounts,
        call: impl FnOnce(&mut dyn CachePolicy) -> T,
    ) -> Option<T> {
        let policy = self.policy.as_mut()?;
        let answer = std::panic::catch_unwind(AssertUnwindSafe(|| call(&mut **policy))).ok();
        if answer.is_none() {
            counts.violations += 1;
            std::mem::forget(self.policy.take());
        }
        answer
    }
}
