//! Whether reading ahead is worth it: what was foreseen, beside what was needed.

use crate::{
    ids::{ExpertId, ExpertKey, LayerId},
    residency::ResidencyManager,
    routing::BatchPlan,
};

/// What became of the experts that [`StreamedExpertExecutor::read_ahead`](crate::StreamedExpertExecutor::read_ahead) was
/// told of, those in memory not counted. A layer's count when it is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForesightCounts {
    /// Foreseen and needed.
    pub right: u64,
    /// Foreseen and not needed.
    pub wrong: u64,
    /// Needed, not in memory, and not foreseen, in layers for which something was foreseen.
    pub missed: u64,
    /// Times that it was switched off.
    pub switched_off: u64,
    /// Whether experts are read ahead now; if not, what is foreseen is only judged.
    pub on: bool,
}

impl ForesightCounts {
    /// The share of the foreseen that was needed; 1 if nothing was foreseen.
    #[must_use]
    pub fn precision(&self) -> f64 {
        share(self.right, self.right + self.wrong)
    }

    /// The share of the needed that was foreseen; 1 if nothing was needed.
    #[must_use]
    pub fn recall(&self) -> f64 {
        share(self.right, self.right + self.missed)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

/// What is foreseen of the layer in hand, and of the next.
pub(super) const LAYERS_AHEAD: usize = 2;

/// One executor's foresight.
#[derive(Debug, Default)]
pub(super) struct Foresight {
    /// What was foreseen of layers that are not executed yet, the oldest first.
    foreseen: Vec<(LayerId, Vec<ExpertId>)>,
    judge: Judge,
    counts: ForesightCounts,
}

impl Foresight {
    pub(super) const fn counts(&self) -> ForesightCounts {
        ForesightCounts { on: self.judge.on, ..self.counts }
    }

    /// Forgets what is foreseen, unjudged.
    pub(super) fn forget(&mut self) {
        self.foreseen.clear();
    }

    /// Remembers what is foreseen of a layer; whether it should be read.
    pub(super) fn foresee(
        &mut self,
        manager: &ResidencyManager,
        layer: LayerId,
        experts: &[ExpertId],
    ) -> bool {
        self.foreseen.retain(|(foreseen, _)| *foreseen != layer);
        if self.foreseen.len() == LAYERS_AHEAD {
            self.foreseen.remove(0);
        }
        let absent = |expert: &ExpertId| !manager.is_resident(ExpertKey::new(layer, *expert));
        self.foreseen.push((layer, experts.iter().copied().filter(absent).collect()));
        self.judge.on
    }

    /// Compares what was foreseen with what a layer needs, before any of that is read for it.
    pub(super) fn judge(&mut self, manager: &ResidencyManager, layer: LayerId, plan: &BatchPlan) {
        let Some(at) = self.foreseen.iter().position(|(foreseen, _)| *foreseen == layer) else { return };
        let (_, experts) = self.foreseen.remove(at);
        let (mut right, mut missed) = (0, 0);
        for job in plan.jobs() {
            if experts.contains(&job.expert) {
                right += 1;
            } else {
                missed += u64::from(!manager.is_resident(ExpertKey::new(layer, job.expert)));
            }
        }
        let wrong = experts.len() as u64 - right;
        self.counts.right += right;
        self.counts.wrong += wrong;
        self.counts.missed += missed;
        self.counts.switched_off += u64::from(self.judge.learn(right, wrong));
    }
}

/// Decides from the latest judgements alone, without a clock: the same ones give the same decisions.
#[derive(Clone, Copy, Debug)]
struct Judge {
    right: u64,
    all: u64,
    on: bool,
}

/// No decision with fewer judgements.
const LEAST: u64 = 32;
/// With so many all are halved, so that old ones fade.
const MOST: u64 = 256;

impl Default for Judge {
    fn default() -> Self {
        Self { right: 0, all: 0, on: true }
    }
}

impl Judge {
    /// Off where less than a quarter was right, on again where at least half would have been. Whether it was switched off.
    fn learn(&mut self, right: u64, wrong: u64) -> bool {
        self.right += right;
        self.all += right + wrong;
        let before = self.on;
        if self.all >= LEAST {
            self.on = if self.on { 4 * self.right >= self.all } else { 2 * self.right >= self.all };
        }
        while self.all >= MOST {
            self.right /= 2;
            self.all /= 2;
        }
        before && !self.on
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// How many judgements of one kind, eight at a time, it takes to change its mind.
    fn until(judge: &mut Judge, on: bool, right: u64) -> Option<u64> {
        (1..=100).find(|_| {
            judge.learn(right, 8 - right);
            judge.on == on
        })
    }

    #[test]
    fn it_is_switched_off_where_it_is_wrong_and_on_where_it_would_be_right() {
        let mut judge = Judge::default();
        assert_eq!(until(&mut judge, false, 0), Some(4), "not before there is evidence");
        assert_eq!(until(&mut judge, true, 3), None, "off and on are not the same threshold");
        let again = until(&mut judge, true, 8).unwrap();
        assert!(again <= 40, "{again}");
        assert_eq!(until(&mut judge, false, 2), None, "a quarter is enough to stay");
        assert!(until(&mut judge, false, 1).is_some());
    }

    #[test]
    fn shares_of_nothing_are_whole() {
        let counts = ForesightCounts { right: 3, wrong: 1, missed: 9, ..ForesightCounts::default() };
        assert_eq!((counts.precision(), counts.recall()), (0.75, 0.25));
        let none = ForesightCounts::default();
        assert_eq!((none.precision(), none.recall()), (1.0, 1.0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_never_swings_on_steady_evidence(right in 0..9_u64) {
            let mut judge = Judge::default();
            let mut switched = 0;
            for _ in 0..500 {
                let before = judge.on;
                judge.learn(right, 8 - right);
                switched += u32::from(before != judge.on);
            }
            prop_assert!(switched <= 1);
        }
    }
}
