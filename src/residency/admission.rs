//! Admission: a request for experts is granted whole or not at all, and waits holding nothing.

use std::time::{Duration, Instant};

use super::{
    cancel::CancelToken,
    error::LeaseError,
    lease::{Entry, Lease, Status},
    manager::{Inner, LayerPlace},
    state::State,
    table::{Place, Role, SlotState},
};
use crate::{
    ids::{ExpertId, ExpertKey, SlotRef},
    sync::{Arc, MutexGuard, lock, wait},
};

/// Whom a request is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A caller.
    Demand,
    /// The loading of pinned experts.
    Preload,
    /// A caller who has not asked yet.
    Ahead,
}

/// A request that has been checked.
struct Request<'a> {
    place: LayerPlace,
    experts: &'a [ExpertId],
    purpose: Purpose,
}

impl Inner {
    /// Admits a request; blocks until that is possible.
    pub(super) fn admit(
        self: &Arc<Self>,
        place: LayerPlace,
        experts: &[ExpertId],
        token: Option<&CancelToken>,
        purpose: Purpose,
    ) -> Result<Lease, LeaseError> {
        if let Some(token) = token {
            self.watch(token);
        }
        let request = Request { place, experts, purpose };
        let mut state = lock(&self.core.state);
        if state.closed {
            return Err(LeaseError::Closed);
        }
        if token.is_some_and(CancelToken::is_cancelled) {
            return Err(LeaseError::Cancelled);
        }
        request.validate(&mut state)?;
        if !request.possible(&state, None) {
            let blocked;
            (state, blocked) = self.wait_for_slots(state, &request, token)?;
            state.telemetry.blocked(blocked);
        }
        Ok(self.grant(&mut state, &request, token))
    }

    /// Admits a request if that is possible without waiting and without overtaking a request that waits.
    pub(super) fn try_admit(
        self: &Arc<Self>,
        place: LayerPlace,
        experts: &[ExpertId],
        purpose: Purpose,
    ) -> Result<Option<Lease>, LeaseError> {
        let request = Request { place, experts, purpose };
        let mut state = lock(&self.core.state);
        if state.closed {
            return Err(LeaseError::Closed);
        }
        request.validate(&mut state)?;
        Ok(request.possible(&state, None).then(|| self.grant(&mut state, &request, None)))
    }

    /// Waits in line until the request is possible. On success the caller grants it under the same lock.
    fn wait_for_slots<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        request: &Request<'_>,
        token: Option<&CancelToken>,
    ) -> Result<(MutexGuard<'a, State>, Duration), LeaseError> {
        let began = Instant::now();
        let tier = request.place.tier.index();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.tiers[tier].waiting.push_back(ticket);
        let outcome = loop {
            state = wait(&self.core.admission, state);
            if state.closed {
                break Err(LeaseError::Closed);
            }
            if token.is_some_and(CancelToken::is_cancelled) {
                break Err(LeaseError::Cancelled);
            }
            if let Err(error) = request.check_size(&state) {
                break Err(error); // slots have leaked meanwhile
            }
            if request.possible(&state, Some(ticket)) {
                break Ok(());
            }
        };
        state.tiers[tier].waiting.retain(|&waiting| waiting != ticket);
        self.core.slots_freed(&state.tiers[tier]); // the next in line may be possible too
        outcome.map(|()| (state, began.elapsed()))
    }

    fn grant(
        self: &Arc<Self>,
        state: &mut State,
        request: &Request<'_>,
        token: Option<&CancelToken>,
    ) -> Lease {
        let LayerPlace { layer, tier, position, .. } = request.place;
        let record = state.take_record(tier);
        let State { tiers, records, telemetry, .. } = state;
        let tier_state = &mut tiers[tier.index()];
        let table = &mut tier_state.table;
        let mut entries = std::mem::take(&mut records[record].entries);
        if request.purpose == Purpose::Demand {
            tier_state.advisor.requested(layer, &mut telemetry.policy);
        }
        for (at, &expert) in request.experts.iter().enumerate() {
            let place = Place { layer: position, expert };
            let known = table.find(place);
            let slot = table.lease(place);
            let hit = table.state(slot) == SlotState::Ready;
            let (status, right) = if hit {
                (Status::Hit, Some(self.core.banks[tier.index()].share(slot)))
            } else {
                records[record].waits.push((slot, at));
                (Status::Waiting, None)
            };
            let slot = SlotRef { slot, generation: table.generation(slot) };
            entries.push(Entry { expert, slot, status, right, error: None });
            if request.purpose != Purpose::Demand {
                continue;
            }
            let joined = !hit
                && known
                    .is_some_and(|slot| table.leases(slot) > 1 || table.state(slot) == SlotState::Loading);
            telemetry.requests.hits += u64::from(hit);
            telemetry.requests.joined += u64::from(joined);
            telemetry.requests.misses += u64::from(!hit && !joined);
            if table.role(slot.slot) != Role::Pinned {
                tier_state.advisor.accessed(ExpertKey::new(layer, expert), hit, &mut telemetry.policy);
            }
        }
        telemetry.requests.requests += u64::from(request.purpose == Purpose::Demand);
        let wake = Arc::clone(&records[record].wake);
        Lease::new(Arc::clone(self), request.place, record, wake, entries, token.cloned(), request.purpose)
    }
}

impl Request<'_> {
    fn validate(&self, state: &mut State) -> Result<(), LeaseError> {
        let LayerPlace { layer, experts, .. } = self.place;
        if self.experts.is_empty() {
            return Err(LeaseError::Empty { layer });
        }
        state.marks.next_request();
        for (second, &expert) in self.experts.iter().enumerate() {
            if expert.0 >= experts {
                return Err(LeaseError::UnknownExpert { layer, expert, experts });
            }
            if let Some(first) = state.marks.mark(expert.index(), second) {
                return Err(LeaseError::Duplicate { layer, expert, first, second });
            }
        }
        self.check_size(state)
    }

    /// Whether the request could ever be granted.
    fn check_size(&self, state: &State) -> Result<(), LeaseError> {
        let tier = &state.tiers[self.place.tier.index()];
        if self.experts.len() <= (tier.working_slots - tier.leaked_working) as usize {
            return Ok(());
        }
        Err(LeaseError::TooMany {
            layer: self.place.layer,
            experts: self.experts.len(),
            working_slots: tier.working_slots,
            leaked_slots: tier.leaked_working,
        })
    }

    /// Whether the request can be granted now, with the ticket it waits with, if it does.
    ///
    /// A request that needs no working slot overtakes those that wait: it cannot make them wait longer. Every other one
    /// waits for its turn; so a large request is not starved by small ones.
    fn possible(&self, state: &State, ticket: Option<u64>) -> bool {
        let tier = &state.tiers[self.place.tier.index()];
        let (mut needed, mut working) = (0, false);
        for &expert in self.experts {
            match tier.table.find(Place { layer: self.place.position, expert }) {
                None => needed += 1,
                Some(slot) => working |= tier.table.role(slot) == Role::Working,
            }
        }
        let first_in_line = tier.waiting.front().copied() == ticket;
        needed <= tier.table.free_slots() && (first_in_line || (needed == 0 && !working))
    }
}
