//! Least recently used.

use super::{CachePolicy, Evictable, ExpertNumbering, PolicyScope, Verdict};
use crate::ids::ExpertKey;

/// Gives up the expert whose last request is longest ago; of two never requested, the lower key. Never bypasses.
#[derive(Clone, Debug)]
pub struct Lru {
    numbering: ExpertNumbering,
    last_access: Box<[u64]>,
    accesses: u64,
}

impl Lru {
    /// A policy for `scope`. Allocates 8 bytes for each expert.
    #[must_use]
    pub fn new(scope: &PolicyScope<'_>) -> Self {
        let numbering = ExpertNumbering::new(scope);
        Self { last_access: vec![0; numbering.len()].into(), numbering, accesses: 0 }
    }

    /// [`Lru::new`] as a factory for a manager.
    #[must_use]
    pub fn boxed(scope: &PolicyScope<'_>) -> Box<dyn CachePolicy> {
        Box::new(Self::new(scope))
    }

    fn last_access(&self, key: ExpertKey) -> u64 {
        self.numbering.number(key).map_or(0, |number| self.last_access[number])
    }
}

impl CachePolicy for Lru {
    fn accessed(&mut self, key: ExpertKey, _hit: bool) {
        self.accesses += 1;
        if let Some(number) = self.numbering.number(key) {
            self.last_access[number] = self.accesses;
        }
    }

    fn inserted(&mut self, _key: ExpertKey) {}

    fn removed(&mut self, _key: ExpertKey) {}

    fn victim(&mut self, _incoming: Option<ExpertKey>, evictable: &dyn Evictable) -> Verdict {
        let mut coldest = None;
        evictable.visit(&mut |key| {
            let last = self.last_access(key);
            if coldest.is_none_or(|(coldest, _)| last < coldest) {
                coldest = Some((last, key));
            }
            true
        });
        coldest.map_or(Verdict::Bypass, |(_, key)| Verdict::Evict(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{ExpertId, LayerId, TierId},
        policy::PolicyLayer,
    };

    struct Set(Vec<ExpertKey>);

    impl Evictable for Set {
        fn layer(&self) -> LayerId {
            LayerId(0)
        }

        fn contains(&self, key: ExpertKey) -> bool {
            self.0.contains(&key)
        }

        fn visit(&self, visit: &mut dyn FnMut(ExpertKey) -> bool) {
            let _ = self.0.iter().all(|&key| visit(key));
        }
    }

    #[test]
    fn the_expert_whose_last_request_is_longest_ago_gives_way() {
        let key = |expert| ExpertKey::new(LayerId(0), ExpertId(expert));
        let layers = [PolicyLayer { layer: LayerId(0), experts: 8, resident_slots: 3 }];
        let mut lru = Lru::new(&PolicyScope { tier: TierId(0), layers: &layers });
        for expert in [1, 2, 3, 1] {
            lru.accessed(key(expert), false);
        }
        let victim = |lru: &mut Lru, set: &[u32]| {
            lru.victim(Some(key(7)), &Set(set.iter().map(|&expert| key(expert)).collect()))
        };
        assert_eq!(victim(&mut lru, &[1, 2, 3]), Verdict::Evict(key(2)));
        assert_eq!(victim(&mut lru, &[1, 3]), Verdict::Evict(key(3)), "only what is evictable counts");
        assert_eq!(victim(&mut lru, &[4, 5, 1]), Verdict::Evict(key(4)), "never requested, lower key");
    }
}
