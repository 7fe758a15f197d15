//! If this fails, a program whose other memory grows beyond what it declared takes the machine down, or is slow for ever
//! after. Alone in its process, since it measures the process.
#![cfg(target_os = "linux")]

mod doubles;

use std::{sync::Arc, time::Duration};

use doubles::{TestSource, eventually, experts, pass};
use memmap2::MmapMut;
use streamed_experts::{
    Budget, ExpertSource, GovernorOptions, Lru, ManagerOptions, MemoryInfo, ResidencyManager, ResidencyPlan,
};

/// What this test and the test harness take besides.
const NOISE_BYTES: u64 = 8 << 20;

fn footprint() -> u64 {
    MemoryInfo::measure().footprint_bytes.unwrap()
}

#[test]
fn what_the_rest_of_the_process_takes_beyond_the_budget_is_given_up_and_comes_back() {
    let source = Arc::new(TestSource::with_tiers(&[1280], &[(0, 24)]));
    let slot_bytes = source.slot_bytes();
    let fixed_bytes = footprint() + NOISE_BYTES;
    let budget_bytes = fixed_bytes + 21 * slot_bytes;
    let budget = Budget { fixed_bytes, working_slots: 1, ..Budget::new(budget_bytes) };
    let plan = ResidencyPlan::new(&*source, &budget).unwrap();
    let options = ManagerOptions {
        governor: Some(GovernorOptions {
            interval: Duration::ZERO,
            calm: Duration::from_millis(1),
            reserve_bytes: 0,
        }),
        ..ManagerOptions::default()
    };
    let banks = plan.anonymous_banks().unwrap();
    let shared = Arc::clone(&source) as Arc<dyn ExpertSource>;
    let manager = ResidencyManager::new(shared, plan, banks, Lru::boxed, &options).unwrap();
    let fill = |experts_read: u32| {
        for expert in 0..experts_read {
            pass(&source, &manager, 0, &experts([expert]));
            manager.safe_point().unwrap();
            assert!(footprint() <= budget_bytes + budget_bytes / 50);
        }
        manager.telemetry().slots.resident
    };
    assert_eq!(fill(20), 20, "as declared");

    let mut ballast = MmapMut::map_anon((NOISE_BYTES + 10 * slot_bytes).try_into().unwrap()).unwrap();
    ballast.fill(1);
    let done = manager.safe_point().unwrap();
    assert!((9..=11).contains(&done.evicted), "what the ballast takes, and no more: {done:?}");
    assert_eq!(done.released_bytes, done.disabled * slot_bytes);
    assert!(fill(24) <= 11);

    drop(ballast);
    eventually("growing again", || {
        std::thread::sleep(Duration::from_millis(2));
        manager.safe_point().unwrap();
        manager.telemetry().slots.disabled == 0
    });
    assert_eq!(fill(24), 20);
}
