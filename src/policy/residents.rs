//! The resident experts of each layer, as a policy that must look at all of them keeps them.

use super::{ExpertNumbering, PolicyScope};

const ABSENT: u32 = u32::MAX;

/// Experts by number, listed by layer. Listing, unlisting and asking take constant time and allocate nothing.
///
/// # Invariants
/// 1. `place[number]` is where `number` stands in its layer's list, or `ABSENT`.
#[derive(Clone, Debug)]
pub(super) struct Residents {
    lists: Box<[Vec<u32>]>,
    place: Box<[u32]>,
}

impl Residents {
    pub(super) fn new(scope: &PolicyScope<'_>, numbering: &ExpertNumbering) -> Self {
        let lists =
            scope.layers.iter().map(|layer| Vec::with_capacity(layer.resident_slots as usize)).collect();
        Self { lists, place: vec![ABSENT; numbering.len()].into() }
    }

    /// The residents of the layer at a position, in no particular order.
    pub(super) fn of(&self, layer: usize) -> &[u32] {
        &self.lists[layer]
    }

    pub(super) fn contains(&self, number: usize) -> bool {
        self.place[number] != ABSENT
    }

    /// Lists an expert, at the end.
    pub(super) fn insert(&mut self, layer: usize, number: usize) {
        if !self.contains(number)
            && let (Ok(place), Ok(listed)) = (u32::try_from(self.lists[layer].len()), u32::try_from(number))
        {
            self.place[number] = place;
            self.lists[layer].push(listed);
        }
    }

    /// Unlists an expert; the last one takes its place, which is returned.
    pub(super) fn remove(&mut self, layer: usize, number: usize) -> Option<usize> {
        let place = std::mem::replace(&mut self.place[number], ABSENT);
        if place == ABSENT {
            return None;
        }
        self.lists[layer].swap_remove(place as usize);
        if let Some(&moved) = self.lists[layer].get(place as usize) {
            self.place[moved as usize] = place;
        }
        Some(place as usize)
    }
}
