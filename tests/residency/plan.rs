//! From a budget to slots, and every budget that is refused.

use std::sync::Arc;

use streamed_experts::{
    Bank, Budget, ExpertSource, LayerPlan, Lru, ManagerOptions, MemoryInfo, OpenError, PlanError,
    ResidencyManager, ResidencyPlan,
};

use crate::doubles::{TestSource, key};

fn plan(source: &TestSource, change: impl FnOnce(&mut Budget)) -> Result<ResidencyPlan, PlanError> {
    let mut budget = Budget::new(0);
    change(&mut budget);
    ResidencyPlan::new(source, &budget)
}

fn shares(plan: &ResidencyPlan) -> Vec<u32> {
    plan.tiers()[0].layers().iter().map(LayerPlan::resident_slots).collect()
}

#[test]
fn a_budget_is_spread_over_the_layers_and_the_remainder_goes_to_the_first() {
    let source = TestSource::new(&[8, 8, 8]);
    let slot = source.slot_bytes();
    let plan = plan(&source, |budget| {
        budget.budget_bytes = 1000 + 16 * slot + 5;
        budget.fixed_bytes = 1000;
    })
    .unwrap();
    assert_eq!(plan.tiers()[0].working_slots(), 8, "no more than a layer has experts");
    assert_eq!(shares(&plan), [3, 3, 2]);
    assert_eq!(plan.planned_bytes(), 1000 + 16 * slot);
    assert_eq!(plan.tiers()[0].slots(), 16);
    assert_eq!(
        plan.to_string(),
        "budget 1573869 B: fixed 1000 B + T0 98304 B × (8 working + 8 resident + 0 pinned) = 1573864 B, 5 B unused\n\
         T0: 3 layers, 2 to 3 experts of a layer resident, requests of at most 8 experts"
    );
}

#[test]
fn layers_never_get_more_slots_than_experts_and_pinned_experts_need_no_other() {
    let source = TestSource::new(&[4, 2]);
    let plan = plan(&source, |budget| {
        budget.budget_bytes = 100 * source.slot_bytes();
        budget.pinned = vec![key(0, 3), key(1, 1), key(0, 0), key(1, 0)];
    })
    .unwrap();
    assert_eq!(shares(&plan), [2, 0]);
    assert_eq!(plan.tiers()[0].pinned_slots(), 4);
    assert_eq!(plan.tiers()[0].slots(), 4 + 2 + 4);
}

#[test]
fn a_budget_that_is_too_small_is_refused_with_every_term() {
    let source = TestSource::with_tiers(&[8, 200], &[(0, 8), (1, 4), (0, 8)]);
    let error = plan(&source, |budget| {
        budget.budget_bytes = 1_000_000;
        budget.fixed_bytes = 500;
        budget.working_slots = 6;
        budget.pinned = vec![key(1, 2)];
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "a budget of 1000000 B is too small by 966580 B: fixed 500 B + T0 98304 B × (6 working + 2 resident + 0 pinned) \
         + T1 196608 B × (4 working + 1 resident + 1 pinned) = 1966580 B at least; raise the budget, or ask for fewer \
         working slots or pinned experts"
    );
    for budget_bytes in [0, 1, 1_966_579] {
        let error = plan(&source, |budget| {
            *budget = Budget { budget_bytes, fixed_bytes: 500, working_slots: 6, pinned: vec![key(1, 2)] };
        });
        assert!(
            matches!(error, Err(PlanError::TooSmall { missing_bytes, .. }) if missing_bytes == 1_966_580 - budget_bytes)
        );
    }
}

#[test]
fn a_sum_that_cannot_be_counted_is_said_to_be_one_and_not_to_lack_some_bytes() {
    let source = TestSource::new(&[8]);
    let slot_bytes = source.slot_bytes();
    for budget_bytes in [0, 1 << 40, u64::MAX] {
        let refusal = |fixed_bytes| {
            let budget = Budget { fixed_bytes, ..Budget::new(budget_bytes) };
            ResidencyPlan::new(&source, &budget).unwrap_err()
        };
        for fixed_bytes in [u64::MAX, u64::MAX - 9 * slot_bytes + 1] {
            let error = refusal(fixed_bytes);
            assert!(matches!(error, PlanError::Overflow { .. }), "{error}");
            assert_eq!(
                error.to_string(),
                format!(
                    "fixed {fixed_bytes} B + T0 98304 B × (8 working + 1 resident + 0 pinned) are more than 2^64 B, \
                     which no budget holds; is the fixed part right?"
                )
            );
        }
        let largest = refusal(u64::MAX - 9 * slot_bytes);
        match largest {
            PlanError::TooSmall { needed_bytes, missing_bytes, .. } => {
                assert_eq!((needed_bytes, missing_bytes), (u64::MAX, u64::MAX - budget_bytes));
            }
            other => assert!(matches!(other, PlanError::BeyondMachine { .. }), "{other}"),
        }
    }
}

#[test]
fn a_budget_beyond_the_machine_is_refused_with_both_numbers() {
    let source = TestSource::new(&[8]);
    let machine_bytes = MemoryInfo::measure().total_bytes().unwrap();
    let budget_bytes = machine_bytes + 1;
    let error = plan(&source, |budget| budget.budget_bytes = budget_bytes).unwrap_err();
    assert_eq!(error, PlanError::BeyondMachine { budget_bytes, machine_bytes });
    assert!(plan(&source, |budget| budget.budget_bytes = u64::MAX).is_err());
    assert!(plan(&source, |budget| budget.budget_bytes = machine_bytes).is_ok());
}

#[test]
fn pins_and_working_slots_that_make_no_sense_are_refused() {
    let source = TestSource::new(&[8, 4]);
    let refusal = |pinned, working_slots| {
        let budget = Budget { pinned, working_slots, ..Budget::new(100 * source.slot_bytes()) };
        ResidencyPlan::new(&source, &budget).unwrap_err()
    };
    assert_eq!(refusal(vec![key(1, 4)], 4), PlanError::UnknownPin { key: key(1, 4) });
    assert_eq!(refusal(vec![key(2, 0)], 4), PlanError::UnknownPin { key: key(2, 0) });
    assert_eq!(refusal(vec![key(0, 1), key(1, 1), key(0, 1)], 4), PlanError::DuplicatePin { key: key(0, 1) });
    assert_eq!(refusal(vec![], 0), PlanError::NoWorkingSlots);
}

#[test]
fn sources_whose_layers_make_no_sense_are_refused() {
    let refusal =
        |source: TestSource| plan(&source, |budget| budget.budget_bytes = 1 << 30).unwrap_err().to_string();
    assert_eq!(refusal(TestSource::new(&[4, 0])), "L1 has no experts");
    assert_eq!(refusal(TestSource::new(&[])), "T0 has no layers");
    assert_eq!(refusal(TestSource::with_tiers(&[8, 8], &[(0, 4)])), "T1 has no layers");
    assert_eq!(refusal(TestSource::with_tiers(&[], &[])), "T0 has no layers");
    let mut unordered = TestSource::new(&[4, 4]);
    unordered.layers.swap(0, 1);
    assert_eq!(refusal(unordered), "L0 comes after a layer that it should precede, or is named twice");
    let mut foreign = TestSource::new(&[4, 4]);
    foreign.layers[1].tier.0 = 3;
    assert_eq!(refusal(foreign), "L1 belongs to T3, which does not exist");
    let mut huge = TestSource::new(&[4, 4]);
    huge.layers.iter_mut().for_each(|layer| layer.experts = u32::MAX);
    assert_eq!(refusal(huge), "the source has more than 4194304 experts");
}

#[test]
fn a_manager_is_refused_banks_plans_and_readers_that_do_not_fit() {
    let source = Arc::new(TestSource::new(&[8]));
    let plan = source.plan(2, 2);
    let open = |plan: &ResidencyPlan, banks, readers| {
        let source = Arc::clone(&source) as Arc<dyn ExpertSource>;
        ResidencyManager::new(
            source,
            plan.clone(),
            banks,
            Lru::boxed,
            &ManagerOptions { readers, ..ManagerOptions::default() },
        )
        .unwrap_err()
    };
    let banks = || plan.anonymous_banks().unwrap();
    assert_eq!(open(&plan, banks(), 0).to_string(), "0 reader threads: between 1 and 256 are possible");
    assert!(matches!(open(&plan, banks(), 257), OpenError::Readers { .. }));
    for piece_bytes in [0, 1, 4095, (1 << 30) + 1, u64::MAX] {
        let mut options = ManagerOptions::default();
        options.reading.piece_bytes = piece_bytes;
        let source = Arc::clone(&source) as Arc<dyn ExpertSource>;
        let error = ResidencyManager::new(source, plan.clone(), banks(), Lru::boxed, &options).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("reading in pieces of {piece_bytes} B: between 4096 B and 1073741824 B are possible")
        );
    }
    assert_eq!(open(&plan, vec![], 1).to_string(), "the plan has 1 tiers, 0 banks were given");
    let small = Bank::anonymous(3, source.slot_bytes()).unwrap();
    assert_eq!(
        open(&plan, vec![small], 1).to_string(),
        "the bank of T0 has 3 slots of 98304 B, the plan 4 of 98304 B"
    );
    let other = TestSource::new(&[4]).plan(2, 2);
    assert_eq!(open(&other, banks(), 1).to_string(), "the plan was not made for this source: layers differ");
    let other = TestSource::with_tiers(&[200], &[(0, 8)]).plan(2, 2);
    assert_eq!(open(&other, banks(), 1).to_string(), "the plan was not made for this source: tiers differ");
}
