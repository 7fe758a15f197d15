//! How much of the resident part there is room for. Pure: samples in, a limit out.

use std::time::Duration;

use crate::memory::PressureLevel;

/// How a budget is made to hold while the rest of the process, or of the machine, takes more memory than was declared.
///
/// At safe points, `interval` apart at least, the system is asked what the process holds, what is left, and how pressed
/// it is. The resident part gives up at once what is missing:
/// * what the process holds besides filled slots, beyond what the budget leaves for it;
/// * what the machine (or the control group) lacks to have `reserve_bytes` available;
/// * under pressure, an eighth of what it has, or half if the pressure is critical; again after each `calm`.
///
/// It grows again when there has been room for `calm`, by an eighth of the plan's resident part at each look, so that it
/// does not swing. Pinned experts and working slots stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GovernorOptions {
    /// Least time between two looks: one takes some tenths of a millisecond. Default 100 ms.
    pub interval: Duration,
    /// How long there must have been room before the resident part grows. Default 2 s.
    pub calm: Duration,
    /// What the machine should have available (Linux). Default 256 MiB.
    pub reserve_bytes: u64,
}

impl Default for GovernorOptions {
    fn default() -> Self {
        Self { interval: Duration::from_millis(100), calm: Duration::from_secs(2), reserve_bytes: 256 << 20 }
    }
}

/// The parts of the plan that a governor knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct GovernedPlan {
    pub(super) budget_bytes: u64,
    /// Slots that stay: working, prefetch and pinned ones.
    pub(super) base_bytes: u64,
    pub(super) resident_bytes: u64,
}

/// What is known at one moment. A number that the system does not tell limits nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) footprint_bytes: Option<u64>,
    pub(super) available_bytes: Option<u64>,
    pub(super) pressure: PressureLevel,
    /// Slots that occupy memory.
    pub(super) filled_bytes: u64,
}

/// # Invariants
/// 1. The limit is at most the plan's resident part.
/// 2. After a look the limit is at most what the sample leaves room for.
/// 3. It grows only after every look for `calm` has found room and no pressure.
#[derive(Debug)]
pub(super) struct Governor {
    options: GovernorOptions,
    plan: GovernedPlan,
    limit_bytes: u64,
    room_since: Option<Duration>,
    pressed: Option<Duration>,
}

/// The parts of the plan's resident part in which the limit grows.
const STEPS: u64 = 8;
/// Room for less than this part more is no reason to grow.
const DEAD_BAND: u64 = 32;

impl Governor {
    pub(super) fn new(options: GovernorOptions, plan: GovernedPlan) -> Self {
        Self { options, plan, limit_bytes: plan.resident_bytes, room_since: None, pressed: None }
    }

    pub(super) fn interval(&self) -> Duration {
        self.options.interval
    }

    /// The limit of the resident part, `now` being the time since some beginning.
    pub(super) fn look(&mut self, now: Duration, sample: &Sample) -> u64 {
        let room = self.room(sample);
        let pressed = self.press(now, sample);
        self.limit_bytes = self.limit_bytes.min(room).min(pressed);
        let all = self.plan.resident_bytes;
        let worth_it = room == all || room - self.limit_bytes > all / DEAD_BAND;
        if sample.pressure > PressureLevel::Normal || self.limit_bytes == all || !worth_it {
            self.room_since = None;
        } else if now.saturating_sub(*self.room_since.get_or_insert(now)) >= self.options.calm {
            self.limit_bytes = room.min(self.limit_bytes + all.div_ceil(STEPS));
        }
        self.limit_bytes
    }

    /// What the resident part may take, by what is there: filled slots and room for more, less the slots that stay.
    fn room(&self, sample: &Sample) -> u64 {
        let GovernedPlan { budget_bytes, base_bytes, resident_bytes } = self.plan;
        let left = |all: u64, taken: u64| i128::from(all) - i128::from(taken);
        let within_budget = sample.footprint_bytes.map(|taken| left(budget_bytes, taken));
        let available = sample.available_bytes.map(|available| left(available, self.options.reserve_bytes));
        let Some(more) = within_budget.into_iter().chain(available).min() else { return resident_bytes };
        let room = i128::from(sample.filled_bytes) + more - i128::from(base_bytes);
        u64::try_from(room.max(0)).unwrap_or(u64::MAX).min(resident_bytes)
    }

    /// What pressure leaves of what the resident part takes now.
    fn press(&mut self, now: Duration, sample: &Sample) -> u64 {
        let parts = match sample.pressure {
            PressureLevel::Normal => return u64::MAX,
            PressureLevel::Warning => STEPS - 1,
            PressureLevel::Critical => STEPS / 2,
        };
        if self.pressed.is_some_and(|before| now.saturating_sub(before) < self.options.calm) {
            return u64::MAX;
        }
        self.pressed = Some(now);
        self.limit_bytes.min(sample.filled_bytes.saturating_sub(self.plan.base_bytes)) / STEPS * parts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAN: GovernedPlan = GovernedPlan { budget_bytes: 1000, base_bytes: 100, resident_bytes: 800 };

    fn governor() -> Governor {
        let options = GovernorOptions {
            interval: Duration::from_millis(1),
            calm: Duration::from_millis(10),
            reserve_bytes: 50,
        };
        Governor::new(options, PLAN)
    }

    /// A process whose slots are as full as they may be, and that takes `other` bytes besides.
    fn full(limit_bytes: u64, other: u64) -> Sample {
        let filled_bytes = PLAN.base_bytes + limit_bytes;
        Sample { footprint_bytes: Some(filled_bytes + other), filled_bytes, ..Sample::default() }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_the_process_takes_beyond_the_budget_comes_off_at_once() {
        let mut governor = governor();
        assert_eq!(governor.look(ms(0), &full(800, 100)), 800, "as declared");
        assert_eq!(governor.look(ms(1), &full(800, 101)), 799);
        assert_eq!(governor.look(ms(2), &full(799, 600)), 300);
        assert_eq!(governor.look(ms(3), &full(300, 5000)), 0, "there is no more to give up");
    }

    #[test]
    fn it_grows_in_steps_after_a_time_of_calm() {
        let mut governor = governor();
        assert_eq!(governor.look(ms(0), &full(800, 600)), 300);
        for now in 1..11 {
            assert_eq!(governor.look(ms(now), &full(300, 100)), 300, "{now}");
        }
        assert_eq!(governor.look(ms(11), &full(300, 100)), 400);
        assert_eq!(governor.look(ms(12), &full(400, 480)), 400, "room for 20 more is not worth it");
        assert_eq!(governor.look(ms(13), &full(400, 100)), 400, "calm begins anew");
        assert_eq!(governor.look(ms(23), &full(400, 100)), 500);
        let limits: Vec<_> = (24..30).map(|now| governor.look(ms(now), &full(500, 100))).collect();
        assert_eq!(limits, [600, 700, 800, 800, 800, 800]);
        assert_eq!(governor.look(ms(40), &full(800, 400)), 500);
        assert_eq!(governor.look(ms(41), &full(500, 350)), 500);
        assert_eq!(governor.look(ms(51), &full(500, 350)), 550, "a step is not larger than the room");
    }

    #[test]
    fn an_empty_cache_is_not_taken_for_a_missing_one() {
        let mut governor = governor();
        let cold = Sample { footprint_bytes: Some(100), ..Sample::default() };
        assert_eq!(governor.look(ms(0), &cold), 800);
        assert_eq!(governor.look(ms(1), &Sample::default()), 800, "the system tells nothing");
    }

    #[test]
    fn the_machine_keeps_its_reserve() {
        let mut governor = governor();
        let sample = |available| Sample { available_bytes: Some(available), ..full(800, 0) };
        assert_eq!(governor.look(ms(0), &sample(50)), 800);
        assert_eq!(governor.look(ms(1), &sample(20)), 770);
        let mut governor = self::governor();
        assert_eq!(
            governor.look(ms(0), &Sample { available_bytes: Some(450), ..Sample::default() }),
            300,
            "cold"
        );
    }

    #[test]
    fn pressure_takes_a_part_and_waits_before_it_takes_the_next() {
        let mut governor = governor();
        let sample = |limit, pressure| Sample { pressure, ..full(limit, 0) };
        assert_eq!(governor.look(ms(0), &sample(800, PressureLevel::Warning)), 700);
        assert_eq!(governor.look(ms(9), &sample(700, PressureLevel::Critical)), 700);
        assert_eq!(governor.look(ms(10), &sample(700, PressureLevel::Critical)), 348);
        for now in 11..20 {
            assert_eq!(
                governor.look(ms(now), &sample(348, PressureLevel::Warning)),
                348,
                "no growth under pressure"
            );
        }
        assert_eq!(governor.look(ms(30), &sample(348, PressureLevel::Normal)), 348);
        assert_eq!(governor.look(ms(40), &sample(348, PressureLevel::Normal)), 448);
    }

    fn samples() -> impl Strategy<Value = Vec<(u64, Sample)>> {
        let level = prop_oneof![
            4 => Just(PressureLevel::Normal),
            1 => Just(PressureLevel::Warning),
            1 => Just(PressureLevel::Critical),
        ];
        let number = || proptest::option::of(prop_oneof![0..2000_u64, Just(u64::MAX)]);
        let filled = prop_oneof![0..1000_u64, Just(u64::MAX)];
        let sample =
            (number(), number(), level, filled).prop_map(|(footprint, available, pressure, filled)| Sample {
                footprint_bytes: footprint,
                available_bytes: available,
                pressure,
                filled_bytes: filled,
            });
        proptest::collection::vec((0..20_u64, sample), 1..80)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn invariants_hold_for_any_samples(samples in samples()) {
            let mut governor = governor();
            let (mut now, mut before, mut unroomy) = (0, PLAN.resident_bytes, 0);
            for (step, sample) in samples {
                now += step;
                let limit = governor.look(ms(now), &sample);
                prop_assert!(limit <= PLAN.resident_bytes);
                prop_assert!(limit <= governor.room(&sample));
                let calm = now - unroomy >= 10;
                prop_assert!(limit <= before || (calm && sample.pressure == PressureLevel::Normal));
                if limit < before || sample.pressure > PressureLevel::Normal {
                    unroomy = now;
                }
                before = limit;
            }
        }

        #[test]
        fn the_budget_holds_whatever_the_rest_takes_and_all_comes_back(
            others in proptest::collection::vec((0..900_u64, 1..30_u64), 1..12),
        ) {
            let mut governor = governor();
            let (mut now, mut limit) = (0, PLAN.resident_bytes);
            for (other, times) in others {
                for _ in 0..times {
                    now += 1;
                    limit = governor.look(ms(now), &full(limit, other));
                    prop_assert!(PLAN.base_bytes + limit + other <= PLAN.budget_bytes);
                }
            }
            for _ in 0..30 {
                now += 1;
                limit = governor.look(ms(now), &full(limit, 0));
            }
            prop_assert_eq!(limit, PLAN.resident_bytes);
        }
    }
}
