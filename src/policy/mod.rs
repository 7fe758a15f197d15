//! Which expert to give up for another. Policies are pure: no clock, no lock, no input or output, no randomness that
//! is not seeded; the same sequence of calls gives the same answers, live and in replay.

mod echo;
mod frequency;
mod lru;
mod residents;
mod s3_fifo;

use std::{fmt, ops::Range};

pub use echo::Echo;
pub use frequency::Frequency;
pub use lru::Lru;
pub use s3_fifo::S3Fifo;

use crate::ids::{ExpertId, ExpertKey, LayerId, TierId};

/// A layer as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyLayer {
    /// The layer.
    pub layer: LayerId,
    /// How many experts it has.
    pub experts: u32,
    /// How many of them may be resident at once.
    pub resident_slots: u32,
}

/// What one policy object decides about: the layers of one tier, ascending. Everything it will ever need to remember
/// can be allocated from this.
#[derive(Clone, Copy, Debug)]
pub struct PolicyScope<'a> {
    /// The tier.
    pub tier: TierId,
    /// Its layers, ascending.
    pub layers: &'a [PolicyLayer],
}

/// The experts that may be evicted for one decision: those of one layer that are resident, unleased and not pinned.
pub trait Evictable {
    /// The layer they belong to.
    fn layer(&self) -> LayerId;

    /// Whether `key` is one of them.
    fn contains(&self, key: ExpertKey) -> bool;

    /// Calls `visit` with each of them, ascending by key, until it returns `false`.
    fn visit(&self, visit: &mut dyn FnMut(ExpertKey) -> bool);
}

/// What a policy answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Give this expert up.
    Evict(ExpertKey),
    /// Keep all of them; do not keep the incoming one. No answer where there is no incoming one.
    Bypass,
}

/// Decides which resident expert gives way.
///
/// The slot table calls the methods in this order. For a request: `requested` for its layer, then `accessed` for each
/// expert, in rank order, when the request is admitted. When its lease ends, for each expert that was read for it, in
/// rank order: if its layer has room, `inserted`; otherwise `victim`, and if that evicts, `removed` for the victim and
/// `inserted` for the newcomer. The experts of the request are not evictable until all of that is done: neither its hits
/// nor what was just inserted. So of more misses than a layer has room for, the first in rank order are kept. Pinned
/// experts are never mentioned.
///
/// Every answer is checked. A victim that is not evictable, a `Bypass` where nothing is incoming, or a panic is counted
/// in telemetry as a violation, and the table gives up its least recently used expert instead; after a panic the
/// policy is not asked again. So a policy cannot break the table, and needs no `unsafe`.
///
/// Methods are called under the table's lock: they must be quick, should not allocate, and must not call the manager.
pub trait CachePolicy: Send + fmt::Debug {
    /// A request for experts of `layer` is admitted; `accessed` follows for each of them. Does nothing by default.
    fn requested(&mut self, layer: LayerId) {
        let _ = layer;
    }

    /// A request names `key`. `hit`: its bytes were in memory.
    fn accessed(&mut self, key: ExpertKey, hit: bool);

    /// `key` became resident.
    fn inserted(&mut self, key: ExpertKey);

    /// `key` is resident no more.
    fn removed(&mut self, key: ExpertKey);

    /// Which expert of `evictable` (at least one) gives way to `incoming`; `None`: under memory pressure, to nothing.
    fn victim(&mut self, incoming: Option<ExpertKey>, evictable: &dyn Evictable) -> Verdict;
}

/// Numbers the experts of a scope from 0, for policies that keep an array.
#[derive(Clone, Debug)]
pub struct ExpertNumbering {
    layers: Vec<(LayerId, u32, usize)>,
    len: usize,
}

impl ExpertNumbering {
    /// The numbering of `scope`: by layer, then by expert.
    #[must_use]
    pub fn new(scope: &PolicyScope<'_>) -> Self {
        let mut len = 0;
        let layers = scope
            .layers
            .iter()
            .map(|layer| {
                let first = len;
                len += layer.experts as usize;
                (layer.layer, layer.experts, first)
            })
            .collect();
        Self { layers, len }
    }

    /// How many experts there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The position of `layer` among the layers of the scope.
    fn layer(&self, layer: LayerId) -> Option<usize> {
        self.layers.binary_search_by_key(&layer, |&(layer, ..)| layer).ok()
    }

    /// The position of a key's layer among the layers of the scope, and its number.
    fn place(&self, key: ExpertKey) -> Option<(usize, usize)> {
        let at = self.layer(key.layer)?;
        let (_, experts, first) = self.layers[at];
        (key.expert.0 < experts).then(|| (at, first + key.expert.index()))
    }

    /// The expert with number `number`, which is one of the layer at a position.
    fn key_in(&self, position: usize, number: usize) -> ExpertKey {
        let (layer, _, first) = self.layers[position];
        ExpertKey::new(layer, ExpertId(u32::try_from(number - first).unwrap_or(u32::MAX)))
    }

    /// The experts of the layer at a position, as numbers.
    fn range(&self, position: usize) -> Range<usize> {
        let (_, experts, first) = self.layers[position];
        first..first + experts as usize
    }

    /// The number of `key`; `None` if it is not in the scope.
    #[must_use]
    pub fn number(&self, key: ExpertKey) -> Option<usize> {
        self.place(key).map(|(_, number)| number)
    }

    /// The expert with number `number`; `None` beyond the last.
    #[must_use]
    pub fn key(&self, number: usize) -> Option<ExpertKey> {
        let at = self.layers.partition_point(|&(_, _, first)| first <= number).checked_sub(1)?;
        let (layer, experts, first) = self.layers[at];
        let expert = u32::try_from(number - first).ok().filter(|&expert| expert < experts)?;
        Some(ExpertKey::new(layer, ExpertId(expert)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_and_lead_back_to_their_experts() {
        let layer = |layer, experts| PolicyLayer { layer: LayerId(layer), experts, resident_slots: 1 };
        let layers = [layer(3, 2), layer(7, 3), layer(u32::MAX, 1)];
        let numbering = ExpertNumbering::new(&PolicyScope { tier: TierId(0), layers: &layers });
        assert_eq!(numbering.len(), 6);
        for number in 0..6 {
            let key = numbering.key(number).unwrap();
            assert_eq!(numbering.number(key), Some(number));
        }
        assert_eq!(numbering.key(2), Some(ExpertKey::new(LayerId(7), ExpertId(0))));
        assert_eq!(numbering.key(6), None);
        for foreign in [(3, 2), (4, 0), (7, 3), (u32::MAX, u32::MAX)] {
            assert_eq!(numbering.number(ExpertKey::new(LayerId(foreign.0), ExpertId(foreign.1))), None);
        }
    }
}
