//! Least frequently used, counting experts that are not resident too.

use super::{CachePolicy, Evictable, ExpertNumbering, PolicyScope, Verdict, residents::Residents};
use crate::ids::{ExpertKey, LayerId};

/// Gives up the expert that was asked for least often; of two equal ones, the one asked for longer ago. Never bypasses.
///
/// Counts are *ghost* counts: an expert keeps its own when it is evicted. [`Frequency::decayed`] halves all counts of a
/// layer every so many requests for it, so that old popularity fades.
#[derive(Clone, Debug)]
pub struct Frequency {
    numbering: ExpertNumbering,
    residents: Residents,
    experts: Box<[Counted]>,
    /// Requests for each layer.
    requests: Box<[u64]>,
    accesses: u64,
    half_life_requests: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    /// As of `era`.
    count: f64,
    /// How often the layer's counts had been halved.
    era: u64,
    last_access: u64,
}

impl Frequency {
    /// Counts that do not fade.
    #[must_use]
    pub fn new(scope: &PolicyScope<'_>) -> Self {
        Self::decayed(scope, u64::MAX)
    }

    /// Counts that are halved every `half_life_requests` requests for the layer (decoding: tokens). 0 is taken as 1.
    /// Allocates 28 bytes for each expert.
    #[must_use]
    pub fn decayed(scope: &PolicyScope<'_>, half_life_requests: u64) -> Self {
        let numbering = ExpertNumbering::new(scope);
        Self {
            residents: Residents::new(scope, &numbering),
            experts: vec![Counted::default(); numbering.len()].into(),
            requests: vec![0; scope.layers.len()].into(),
            accesses: 0,
            half_life_requests: half_life_requests.max(1),
            numbering,
        }
    }

    /// [`Frequency::new`] as a factory for a manager.
    #[must_use]
    pub fn boxed(scope: &PolicyScope<'_>) -> Box<dyn CachePolicy> {
        Box::new(Self::new(scope))
    }

    /// [`Frequency::decayed`] with counts halved every 32 requests, as a factory for a manager.
    #[must_use]
    pub fn boxed_decayed(scope: &PolicyScope<'_>) -> Box<dyn CachePolicy> {
        Box::new(Self::decayed(scope, 32))
    }

    /// How often the counts of a layer have been halved. The request under way is the last one counted.
    fn era(&self, layer: usize) -> u64 {
        self.requests[layer].saturating_sub(1) / self.half_life_requests
    }

    fn place(&self, key: ExpertKey) -> Option<(usize, usize)> {
        self.numbering.place(key)
    }
}

impl Counted {
    fn count(&self, era: u64) -> f64 {
        let halvings = i32::try_from(era - self.era).unwrap_or(i32::MAX);
        if halvings == 0 { self.count } else { self.count * 0.5f64.powi(halvings) }
    }
}

impl CachePolicy for Frequency {
    fn requested(&mut self, layer: LayerId) {
        if let Some(layer) = self.numbering.layer(layer) {
            self.requests[layer] += 1;
        }
    }

    fn accessed(&mut self, key: ExpertKey, _hit: bool) {
        self.accesses += 1;
        if let Some((layer, number)) = self.place(key) {
            let era = self.era(layer);
            let expert = &mut self.experts[number];
            *expert = Counted { count: expert.count(era) + 1.0, era, last_access: self.accesses };
        }
    }

    fn inserted(&mut self, key: ExpertKey) {
        if let Some((layer, number)) = self.place(key) {
            self.residents.insert(layer, number);
        }
    }

    fn removed(&mut self, key: ExpertKey) {
        if let Some((layer, number)) = self.place(key) {
            self.residents.remove(layer, number);
        }
    }

    fn victim(&mut self, _incoming: Option<ExpertKey>, evictable: &dyn Evictable) -> Verdict {
        let Some(layer) = self.numbering.layer(evictable.layer()) else {
            return Verdict::Bypass;
        };
        let era = self.era(layer);
        let mut coldest: Option<(f64, u64, ExpertKey)> = None;
        for &number in self.residents.of(layer) {
            let expert = &self.experts[number as usize];
            let count = expert.count(era);
            let colder = coldest.is_none_or(|(least, last, _)| {
                count < least || (count == least && expert.last_access < last)
            });
            if !colder {
                continue;
            }
            let key = self.numbering.key_in(layer, number as usize);
            if evictable.contains(key) {
                coldest = Some((count, expert.last_access, key));
            }
        }
        coldest.map_or(Verdict::Bypass, |(_, _, key)| Verdict::Evict(key))
    }
}
