//! Which expert is in which slot of a tier, and who holds it.
//!
//! ```text
//!          reserve            start            landed            last lease gone
//!   idle ──────────▶ reserved ─────▶ loading ─────────▶ ready ─────────────────────▶ idle (working) or kept (resident)
//!    ▲                  │ abandoned     │ failed, unclaimed
//!    └──────────────────┴───────────────┘
//! ```
//! A pinned slot goes back to reserved instead of idle: it keeps its expert's name.

use super::plan::TierPlan;
use crate::{
    ids::{ExpertId, ExpertKey, Generation, LayerId, SlotId},
    policy::Evictable,
};

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// No expert.
    Idle,
    /// An expert is to be read into it, and the read has not been asked for.
    Reserved,
    /// The read has been asked for.
    Loading,
    /// The expert's bytes.
    Ready,
}

/// What a slot is for. Roles are counts, not places: an expert changes role without moving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Serves a miss, or waits to.
    Working,
    /// Keeps an expert between requests.
    Resident,
    /// Keeps a pinned expert for ever.
    Pinned,
    /// Taken out of use by memory pressure.
    Disabled,
}

#[derive(Clone, Debug)]
struct Slot {
    key: Option<Place>,
    state: SlotState,
    role: Role,
    leases: u32,
    leaked: bool,
    /// Whether it has been filled since its memory was given back: it occupies memory.
    filled: bool,
    generation: Generation,
    last_use: u64,
}

/// An expert, by the position of its layer in the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) layer: usize,
    pub(super) expert: ExpertId,
}

/// The slots of one layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerSlots {
    pub(super) layer: LayerId,
    pub(super) experts: u32,
    /// Resident slots of the plan.
    pub(super) planned: u32,
    /// Resident slots that memory pressure allows.
    pub(super) allowed: u32,
    /// Resident experts now.
    pub(super) resident: u32,
    first: usize,
}

/// # Invariants
/// 1. `index` and the slots agree: an expert is in one slot at most, and a slot is named by its own expert alone.
/// 2. A slot is idle if and only if it has no expert; idle slots are working (and in `free`, once) or disabled (and in
///    `disabled`, once), and have no leases.
/// 3. A working slot without leases is idle, or is loading for nobody.
/// 4. Resident slots are ready, and `resident` counts them for each layer; no layer has more than `planned`.
/// 5. Each layer has as many pinned slots as the plan says; they keep their experts until they are swapped for others.
/// 6. `disabled` ≤ Σ over layers of planned − max(allowed, resident): so when no lease is held and no read under way,
///    at least `working` slots are free, and a request for that many is admitted.
#[derive(Debug)]
pub(super) struct SlotTable {
    slots: Vec<Slot>,
    layers: Vec<LayerSlots>,
    index: Vec<Option<SlotId>>,
    free: Vec<SlotId>,
    disabled: Vec<SlotId>,
    working: u32,
    filled: u32,
    uses: u64,
}

impl SlotTable {
    pub(super) fn new(plan: &TierPlan) -> Self {
        let mut first = 0;
        let layers: Vec<_> = plan
            .layers()
            .iter()
            .map(|layer| {
                let slots = LayerSlots {
                    layer: layer.layer(),
                    experts: layer.experts(),
                    planned: layer.resident_slots(),
                    allowed: layer.resident_slots(),
                    resident: 0,
                    first,
                };
                first += layer.experts() as usize;
                slots
            })
            .collect();
        let idle = Slot {
            key: None,
            state: SlotState::Idle,
            role: Role::Working,
            leases: 0,
            leaked: false,
            filled: false,
            generation: Generation(0),
            last_use: 0,
        };
        let mut table = Self {
            slots: vec![idle; plan.slots() as usize],
            layers,
            index: vec![None; first],
            free: (0..plan.slots()).rev().map(SlotId).collect(),
            disabled: Vec::with_capacity(plan.resident_slots() as usize),
            working: plan.working_slots(),
            filled: 0,
            uses: 0,
        };
        for (layer, pinned) in plan.layers().iter().map(super::plan::LayerPlan::pinned).enumerate() {
            for &expert in pinned {
                let slot = table.take(Place { layer, expert });
                table.slots[slot.index()].role = Role::Pinned;
            }
        }
        table
    }

    /// Free slot → reserved for `place`, unleased.
    fn take(&mut self, place: Place) -> SlotId {
        let slot = self.free.pop().expect("the caller counted the free slots");
        *self.cell(place) = Some(slot);
        let taken = &mut self.slots[slot.index()];
        taken.key = Some(place);
        taken.state = SlotState::Reserved;
        taken.generation = Generation(taken.generation.0.wrapping_add(1));
        slot
    }

    fn cell(&mut self, place: Place) -> &mut Option<SlotId> {
        &mut self.index[self.layers[place.layer].first + place.expert.index()]
    }

    /// The slot that has or will have an expert.
    pub(super) fn find(&self, place: Place) -> Option<SlotId> {
        self.index[self.layers[place.layer].first + place.expert.index()]
    }

    pub(super) fn state(&self, slot: SlotId) -> SlotState {
        self.slots[slot.index()].state
    }

    pub(super) fn role(&self, slot: SlotId) -> Role {
        self.slots[slot.index()].role
    }

    pub(super) fn generation(&self, slot: SlotId) -> Generation {
        self.slots[slot.index()].generation
    }

    pub(super) fn leases(&self, slot: SlotId) -> u32 {
        self.slots[slot.index()].leases
    }

    /// The expert of a slot that is not idle.
    pub(super) fn key(&self, slot: SlotId) -> Option<ExpertKey> {
        let place = self.slots[slot.index()].key?;
        Some(ExpertKey::new(self.layers[place.layer].layer, place.expert))
    }

    pub(super) fn free_slots(&self) -> usize {
        self.free.len()
    }

    pub(super) fn disabled_slots(&self) -> usize {
        self.disabled.len()
    }

    pub(super) fn layers(&self) -> &[LayerSlots] {
        &self.layers
    }

    /// Leases the slot of an expert, which is taken from the free ones (there is one, as the caller counted) if the
    /// expert has none.
    pub(super) fn lease(&mut self, place: Place) -> SlotId {
        let slot = self.find(place).unwrap_or_else(|| self.take(place));
        self.uses += 1;
        let leased = &mut self.slots[slot.index()];
        leased.leases += 1;
        leased.last_use = self.uses;
        slot
    }

    /// Ends one lease of a slot, without any other effect.
    pub(super) fn unlease(&mut self, slot: SlotId) {
        let slot = &mut self.slots[slot.index()];
        debug_assert!(slot.leases > 0);
        slot.leases -= 1;
    }

    /// Keeps one lease of a slot for ever. Whether the slot was not leaked before.
    pub(super) fn leak(&mut self, slot: SlotId) -> bool {
        !std::mem::replace(&mut self.slots[slot.index()].leaked, true)
    }

    /// Reserved → loading.
    pub(super) fn start(&mut self, slot: SlotId) {
        debug_assert_eq!(self.state(slot), SlotState::Reserved);
        let started = &mut self.slots[slot.index()];
        started.state = SlotState::Loading;
        self.filled += u32::from(!std::mem::replace(&mut started.filled, true));
    }

    /// Notes that the memory of a disabled slot was given back.
    pub(super) fn released(&mut self, slot: SlotId) {
        let released = &mut self.slots[slot.index()];
        debug_assert_eq!(released.role, Role::Disabled);
        self.filled -= u32::from(std::mem::replace(&mut released.filled, false));
    }

    /// How many slots occupy memory: those filled since their memory was last given back.
    pub(super) fn filled_slots(&self) -> u32 {
        self.filled
    }

    /// How many of them are out of use.
    pub(super) fn unreleased_slots(&self) -> usize {
        self.disabled.iter().filter(|slot| self.slots[slot.index()].filled).count()
    }

    /// Loading → ready.
    pub(super) fn landed(&mut self, slot: SlotId) {
        debug_assert_eq!(self.state(slot), SlotState::Loading);
        self.slots[slot.index()].state = SlotState::Ready;
    }

    /// Whatever it holds → nothing, with all its leases: after a failed read, or when the last lease has gone.
    pub(super) fn vacate(&mut self, slot: SlotId) {
        let vacated = &mut self.slots[slot.index()];
        vacated.leases = 0;
        match vacated.role {
            Role::Pinned => {
                vacated.state = SlotState::Reserved;
                vacated.generation = Generation(vacated.generation.0.wrapping_add(1));
            }
            Role::Disabled => {}
            Role::Working | Role::Resident => {
                let resident = vacated.role == Role::Resident;
                vacated.role = Role::Working;
                vacated.state = SlotState::Idle;
                let place = vacated.key.take();
                self.free.push(slot);
                if let Some(place) = place {
                    *self.cell(place) = None;
                    self.layers[place.layer].resident -= u32::from(resident);
                }
            }
        }
    }

    /// Working → resident. The expert stays where it is.
    pub(super) fn promote(&mut self, slot: SlotId) {
        let promoted = &mut self.slots[slot.index()];
        debug_assert!(promoted.role == Role::Working && promoted.state == SlotState::Ready);
        promoted.role = Role::Resident;
        if let Some(place) = promoted.key {
            self.layers[place.layer].resident += 1;
        }
    }

    /// Resident → pinned, and a pinned expert of the same layer → resident, or → nothing if it has never been read. Both
    /// stay where they are, leased or not. Whether the second is resident now; `None` and no change unless the one is
    /// resident, the other pinned, and no read of it under way.
    pub(super) fn swap_pin(&mut self, pinned: Place, resident: Place) -> Option<bool> {
        let (old, new) = (self.find(pinned)?, self.find(resident)?);
        let roles = (self.role(old), self.role(new));
        let unread = self.state(old) == SlotState::Reserved && self.leases(old) == 0;
        let settled = self.state(old) == SlotState::Ready || unread;
        if pinned.layer != resident.layer || roles != (Role::Pinned, Role::Resident) || !settled {
            return None;
        }
        self.slots[new.index()].role = Role::Pinned;
        self.slots[old.index()].role = Role::Resident;
        if unread {
            self.vacate(old);
        }
        Some(!unread)
    }

    /// The pinned experts of a layer, ascending.
    pub(super) fn pinned(&self, layer: usize) -> impl Iterator<Item = ExpertId> + '_ {
        let LayerSlots { first, experts, .. } = self.layers[layer];
        let slots = (0..).map(ExpertId).zip(&self.index[first..first + experts as usize]);
        slots.filter(|(_, slot)| slot.is_some_and(|slot| self.role(slot) == Role::Pinned)).map(|(id, _)| id)
    }

    /// Sets how many residents memory pressure leaves a layer.
    pub(super) fn allow(&mut self, layer: usize, allowed: u32) {
        let layer = &mut self.layers[layer];
        layer.allowed = allowed.min(layer.planned);
    }

    /// How many slots may be disabled now.
    pub(super) fn disable_target(&self) -> usize {
        self.layers.iter().map(|layer| (layer.planned - layer.allowed.max(layer.resident)) as usize).sum()
    }

    /// Takes a free slot out of use; `None` if there is none, or none may be taken.
    ///
    /// The slot is the one freed last: one that has memory to give back, if any has.
    pub(super) fn disable(&mut self) -> Option<SlotId> {
        if self.disabled.len() >= self.disable_target() {
            return None;
        }
        let slot = self.free.pop()?;
        self.slots[slot.index()].role = Role::Disabled;
        self.disabled.push(slot);
        Some(slot)
    }

    /// Takes a disabled slot back into use; `None` if no more are disabled than should be.
    pub(super) fn enable(&mut self) -> Option<SlotId> {
        if self.disabled.len() <= self.disable_target() {
            return None;
        }
        let slot = self.disabled.pop()?;
        self.slots[slot.index()].role = Role::Working;
        self.free.push(slot);
        Some(slot)
    }

    /// The evictable experts of one layer.
    pub(super) fn evictable(&self, layer: usize) -> LayerResidents<'_> {
        LayerResidents { table: self, layer }
    }

    /// The least recently used evictable expert of a layer.
    pub(super) fn coldest(&self, layer: usize) -> Option<SlotId> {
        self.residents(layer)
            .filter(|&slot| self.leases(slot) == 0)
            .min_by_key(|slot| self.slots[slot.index()].last_use)
    }

    /// The slots of a layer's resident experts, ascending by expert.
    fn residents(&self, layer: usize) -> impl Iterator<Item = SlotId> + '_ {
        let LayerSlots { first, experts, .. } = self.layers[layer];
        self.index[first..first + experts as usize]
            .iter()
            .flatten()
            .copied()
            .filter(|&slot| self.role(slot) == Role::Resident)
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// If one does not hold.
    pub(super) fn check(&self) {
        let named = self.index.iter().flatten().count();
        assert_eq!(
            named,
            self.slots.iter().filter(|slot| slot.key.is_some()).count(),
            "1: as many names as experts"
        );
        for (number, slot) in (0..).map(SlotId).zip(&self.slots) {
            assert!(
                slot.key.is_none_or(|place| self.find(place) == Some(number)),
                "1: {number} is named by its expert"
            );
            assert_eq!(slot.key.is_none(), slot.state == SlotState::Idle, "2: {number}");
            if slot.state == SlotState::Idle {
                let list = if slot.role == Role::Disabled { &self.disabled } else { &self.free };
                assert!(matches!(slot.role, Role::Working | Role::Disabled), "2: {number}");
                assert_eq!(
                    (list.iter().filter(|&&listed| listed == number).count(), slot.leases),
                    (1, 0),
                    "2: {number}"
                );
            } else if slot.role == Role::Working && slot.leases == 0 {
                assert_eq!(slot.state, SlotState::Loading, "3: {number}");
            }
            assert!(slot.role != Role::Resident || slot.state == SlotState::Ready, "4: {number}");
        }
        let idle = self.slots.iter().filter(|slot| slot.state == SlotState::Idle).count();
        assert_eq!(idle, self.free.len() + self.disabled.len(), "2: nothing else is listed");
        for (position, layer) in self.layers.iter().enumerate() {
            assert_eq!(self.residents(position).count(), layer.resident as usize, "4: {}", layer.layer);
            assert!(layer.resident <= layer.planned && layer.allowed <= layer.planned, "4: {}", layer.layer);
        }
        let filled = self.slots.iter().filter(|slot| slot.filled).count();
        assert_eq!(filled, self.filled as usize, "as many filled slots as counted");
        assert!(self.disabled.len() <= self.disable_target(), "6: {} disabled", self.disabled.len());
        let held = self.slots.iter().filter(|slot| slot.role == Role::Working && slot.key.is_some()).count();
        assert!(self.free.len() + held >= self.working as usize, "6: {} free, {held} held", self.free.len());
    }
}

/// The resident, unleased experts of one layer.
#[derive(Clone, Copy)]
pub(super) struct LayerResidents<'a> {
    table: &'a SlotTable,
    layer: usize,
}

impl LayerResidents<'_> {
    pub(super) fn slot(&self, key: ExpertKey) -> Option<SlotId> {
        let layer = &self.table.layers[self.layer];
        if key.layer != layer.layer || key.expert.0 >= layer.experts {
            return None;
        }
        let slot = self.table.find(Place { layer: self.layer, expert: key.expert })?;
        (self.table.role(slot) == Role::Resident && self.table.leases(slot) == 0).then_some(slot)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.residents(self.layer).all(|slot| self.table.leases(slot) > 0)
    }
}

impl Evictable for LayerResidents<'_> {
    fn layer(&self) -> LayerId {
        self.table.layers[self.layer].layer
    }

    fn contains(&self, key: ExpertKey) -> bool {
        self.slot(key).is_some()
    }

    fn visit(&self, visit: &mut dyn FnMut(ExpertKey) -> bool) {
        let unleased = self.table.residents(self.layer).filter(|&slot| self.table.leases(slot) == 0);
        let _ = unleased.filter_map(|slot| self.table.key(slot)).all(visit);
    }
}
