//! If this fails, a result depends on what happened to be in memory: on the policy, on pins, on what was read ahead, or on
//! how much memory the system left.

#[path = "common/fixture.rs"]
mod fixture;
#[path = "common/pass.rs"]
mod pass;

use std::sync::Arc;

use pass::{smallest_budget, source, whole_budget};
use proptest::prelude::*;
use streamed_experts::{
    BatchPlan, Budget, CachePolicy, Echo, ExecutorOptions, ExpertId, ExpertKey, ExpertSource, Family,
    Frequency, LayerId, Lru, PinSwap, PolicyScope, Routes, S3Fifo, StreamedExpertExecutor,
};

const NAME: &str = "qwen3_moe-affine4-g64-bf16";
const EXPERTS: u32 = 8;
const LAYERS: u32 = 2;
const HIDDEN: usize = 128;

type Factory = fn(&PolicyScope<'_>) -> Box<dyn CachePolicy>;

const POLICIES: [Factory; 5] =
    [Lru::boxed, Frequency::boxed, Frequency::boxed_decayed, S3Fifo::boxed, Echo::boxed];

#[derive(Clone, Debug)]
enum Step {
    /// A forward of a layer: the experts of each row, and a seed for inputs and weights.
    Forward(u32, Vec<Vec<u32>>, u64),
    /// Experts read ahead.
    Ahead(u32, Vec<u32>),
    /// Resident experts limited to so many slots, or not at all.
    Limit(Option<u64>),
    /// A pinned expert and a resident one change roles, if they are that.
    Swap(u32, u32, u32),
}

fn some_experts(most: usize) -> impl Strategy<Value = Vec<u32>> {
    let ids = Just((0..EXPERTS).collect::<Vec<_>>()).prop_shuffle();
    (ids, 1..=most).prop_map(|(mut ids, len)| {
        ids.truncate(len);
        ids
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let rows = proptest::collection::vec(some_experts(3), 1..5);
    let step = prop_oneof![
        6 => (0..LAYERS, rows, any::<u64>()).prop_map(|(layer, rows, seed)| Step::Forward(layer, rows, seed)),
        3 => (0..LAYERS, some_experts(4)).prop_map(|(layer, experts)| Step::Ahead(layer, experts)),
        1 => proptest::option::of(0..6_u64).prop_map(Step::Limit),
        1 => (0..LAYERS, 0..EXPERTS, 0..EXPERTS).prop_map(|(layer, a, b)| Step::Swap(layer, a, b)),
    ];
    proptest::collection::vec(step, 1..40)
}

#[derive(Clone, Debug)]
struct Setting {
    policy: usize,
    pins: [Vec<u32>; LAYERS as usize],
    working: u32,
    /// Slots beyond the fewest.
    more: u64,
    readers: u32,
}

fn settings() -> impl Strategy<Value = Setting> {
    let pins =
        || proptest::collection::btree_set(0..EXPERTS, 0..3).prop_map(|pins| pins.into_iter().collect());
    (0..POLICIES.len(), [pins(), pins()], 1..9_u32, 0..8_u64, 1..4_u32)
        .prop_map(|(policy, pins, working, more, readers)| Setting { policy, pins, working, more, readers })
}

fn open(source: &Arc<dyn ExpertSource>, setting: &Setting) -> StreamedExpertExecutor {
    let slot_bytes = source.tiers()[0].layout.slot_bytes();
    let pinned = (0..LAYERS).zip(&setting.pins).flat_map(|(layer, experts)| {
        experts.iter().map(move |&expert| ExpertKey::new(LayerId(layer), ExpertId(expert)))
    });
    let pinned: Vec<_> = pinned.collect();
    let slots = setting.more + pinned.len() as u64;
    let budget = Budget {
        working_slots: setting.working,
        pinned,
        ..Budget::new(smallest_budget(&**source, setting.working) + slots * slot_bytes)
    };
    let policy = POLICIES[setting.policy];
    let mut options = ExecutorOptions { family: Family::Host, policy, ..ExecutorOptions::new(budget) };
    options.manager.readers = setting.readers;
    StreamedExpertExecutor::open(Arc::clone(source), &options).unwrap()
}

fn forward(executor: &mut StreamedExpertExecutor, layer: u32, rows: &[Vec<u32>], seed: u64) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let input: Vec<f32> = (0..rows.len() * HIDDEN).map(|_| random.f32() * 2.0 - 1.0).collect();
    let rows: Vec<Vec<_>> =
        rows.iter().map(|row| row.iter().map(|&expert| (ExpertId(expert), random.f32())).collect()).collect();
    let plan = BatchPlan::new(&Routes::from_ragged(&rows, EXPERTS).unwrap(), EXPERTS).unwrap();
    let out = executor.execute_rows(LayerId(layer), &input, &plan, None).unwrap();
    out.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_decides_where_experts_live_changes_a_bit(setting in settings(), steps in steps()) {
        let source = source(NAME);
        let slot_bytes = source.tiers()[0].layout.slot_bytes();
        let whole = ExecutorOptions {
            family: Family::Host,
            ..ExecutorOptions::new(Budget::new(whole_budget(&*source)))
        };
        let mut resident = StreamedExpertExecutor::open(Arc::clone(&source), &whole).unwrap();
        let mut executor = open(&source, &setting);
        for step in steps {
            match step {
                Step::Forward(layer, rows, seed) => {
                    let expected = forward(&mut resident, layer, &rows, seed);
                    prop_assert_eq!(forward(&mut executor, layer, &rows, seed), expected);
                }
                Step::Ahead(layer, mut experts) => {
                    experts.truncate(setting.working as usize);
                    let experts: Vec<_> = experts.into_iter().map(ExpertId).collect();
                    executor.read_ahead(LayerId(layer), &experts).unwrap();
                }
                Step::Limit(slots) => {
                    executor.manager().set_resident_limit_bytes(slots.map(|slots| slots * slot_bytes));
                }
                Step::Swap(layer, pinned, resident) => {
                    let swap = PinSwap {
                        layer: LayerId(layer),
                        pinned: ExpertId(pinned),
                        resident: ExpertId(resident),
                    };
                    let before = executor.manager().pinned_experts(swap.layer);
                    let swapped = executor.manager().swap_pins(&[swap]);
                    let after = executor.manager().pinned_experts(swap.layer);
                    prop_assert_eq!(before.len(), after.len());
                    prop_assert_eq!(swapped == 1, after.contains(&swap.resident) && before != after);
                }
            }
            executor.manager().check_invariants();
        }
    }
}
