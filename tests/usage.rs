//! If this fails, what was learned about a model's experts is lost or wrong, or memory is pinned for nothing.

use std::{collections::BTreeMap, fs};

use streamed_experts::{
    ExpertId, ExpertKey, LayerId, PinOptions, PinSwap, SwapOptions, UsageLedger, plan_pins, plan_swaps,
};

const LAYERS: [(LayerId, u32); 2] = [(LayerId(3), 8), (LayerId(4), 8)];

fn key(layer: u32, expert: u32) -> ExpertKey {
    ExpertKey::new(LayerId(layer), ExpertId(expert))
}

fn counted() -> UsageLedger {
    let mut ledger = UsageLedger::new(LAYERS);
    ledger.record(key(3, 1), 5000);
    ledger.record(key(3, 2), 3);
    ledger.end_turn();
    ledger.record(key(4, 7), u64::MAX);
    ledger.record(key(4, 7), 2);
    ledger
}

#[test]
fn uses_saturate_and_heat_decays() {
    let ledger = counted();
    assert_eq!((ledger.uses(key(3, 1)), ledger.heat(key(3, 1))), (5000, 4375.0));
    assert_eq!(ledger.uses(key(4, 7)), u64::MAX);
    assert_eq!((ledger.uses(key(3, 8)), ledger.uses(key(9, 0)), ledger.heat(key(4, 99))), (0, 0, 0.0));
    assert_eq!(ledger.experts().count(), 16);
}

#[test]
fn a_saved_ledger_comes_back_and_leaves_nothing_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage");
    assert_eq!(
        UsageLedger::open(&path, LAYERS).unwrap(),
        (UsageLedger::new(LAYERS), None),
        "no file is no damage"
    );
    UsageLedger::new(LAYERS).save(&path).unwrap();
    counted().save(&path).unwrap();
    assert_eq!(UsageLedger::open(&path, LAYERS).unwrap(), (counted(), None));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn every_damaged_file_is_told_and_starts_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage");
    counted().save(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    let damaged = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let (ledger, damage) = UsageLedger::open(&path, LAYERS).unwrap();
        assert_eq!(ledger, UsageLedger::new(LAYERS));
        damage.expect("damage is told").to_string()
    };
    for len in 0..whole.len() {
        damaged(&whole[..len]);
    }
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x41;
        damaged(&bytes);
    }
    let longer = [&whole[..], b"!"].concat();
    assert!(damaged(&longer).contains("checksum"));
    let mut newer = whole.clone();
    newer[8] = 2;
    assert!(damaged(&newer).contains("version 2, this is version 1"));
}

#[test]
fn the_ledger_of_another_model_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("usage");
    counted().save(&path).unwrap();
    for layers in [
        vec![(LayerId(3), 8)],
        vec![(LayerId(3), 8), (LayerId(4), 9)],
        vec![(LayerId(3), 8), (LayerId(5), 8)],
    ] {
        let (ledger, damage) = UsageLedger::open(&path, layers.clone()).unwrap();
        assert_eq!(ledger, UsageLedger::new(layers));
        assert!(damage.is_some());
    }
}

#[test]
fn a_ledger_that_cannot_be_saved_leaves_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no").join("such").join("folder");
    let error = counted().save(&path).unwrap_err().to_string();
    assert!(error.contains("cannot save the usage ledger"), "{error}");
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("file"), "x").unwrap();
    assert!(counted().save(&taken).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the new file is removed");
}

fn ledger(uses: &[u64]) -> UsageLedger {
    let mut ledger = UsageLedger::new([(LayerId(0), uses.len() as u32)]);
    (0..).zip(uses).for_each(|(expert, &uses)| ledger.record(key(0, expert), uses));
    ledger
}

fn pins(uses: &[u64], slots: u32, options: &PinOptions) -> Vec<u32> {
    let slots = BTreeMap::from([(LayerId(0), slots)]);
    plan_pins(&ledger(uses), &slots, options).iter().map(|key| key.expert.0).collect()
}

#[test]
fn experts_far_above_their_share_are_pinned_hottest_first() {
    let options = PinOptions::default();
    assert_eq!(pins(&[100, 3000, 100, 9000, 100, 100, 100, 100], 8, &options), [3]);
    assert_eq!(pins(&[100, 5000, 100, 9000, 100, 100, 100, 100], 8, &options), [3, 1]);
    assert_eq!(pins(&[100, 5000, 100, 9000, 100, 100, 100, 100], 4, &options), [3], "a quarter of the slots");
    assert!(pins(&[100, 5000, 100, 9000], 0, &options).is_empty());
    assert!(plan_pins(&ledger(&[1, 90000]), &BTreeMap::new(), &options).is_empty());
}

#[test]
fn little_evidence_pins_nothing() {
    let options = PinOptions::default();
    assert!(pins(&[1, 90, 1, 1, 1, 1, 1, 1], 8, &options).is_empty(), "too few uses of the layer");
    let barely = [1300, 1000, 1000, 1000, 1000, 1000, 1000, 1000];
    assert!(pins(&barely, 8, &options).is_empty(), "not above its share");
    let unsure = PinOptions { min_layer_uses: 0, min_expert_uses: 0, ..options };
    assert!(pins(&[3, 1, 1, 1, 1, 1, 1, 1], 8, &unsure).is_empty(), "three of ten may be chance");
    assert_eq!(
        pins(&[3000, 1000, 1000, 1000, 1000, 1000, 1000, 1000], 8, &unsure),
        [0],
        "three thousand of ten are not"
    );
}

#[test]
fn options_that_are_no_numbers_pin_nothing() {
    for options in [
        PinOptions { min_share: f64::NAN, ..PinOptions::default() },
        PinOptions { confidence: f64::NAN, ..PinOptions::default() },
        PinOptions { slot_share: f64::NAN, ..PinOptions::default() },
    ] {
        assert!(pins(&[100, 9000, 100, 100], 4, &options).is_empty());
    }
}

#[test]
fn the_coldest_pinned_expert_gives_way_to_the_hottest_resident_one_of_its_layer() {
    let mut ledger = UsageLedger::new(LAYERS);
    for (layer, expert, uses) in [(3, 0, 100), (3, 1, 900), (3, 2, 500), (3, 3, 90), (4, 0, 10), (4, 1, 5000)]
    {
        ledger.record(key(layer, expert), uses);
    }
    let swap = |layer, pinned, resident| PinSwap {
        layer: LayerId(layer),
        pinned: ExpertId(pinned),
        resident: ExpertId(resident),
    };
    let pinned = [key(3, 0), key(3, 3), key(4, 0), key(4, 5)];
    let resident = [key(3, 1), key(3, 2), key(4, 1), key(9, 9)];
    let all = SwapOptions { most: 9, ..SwapOptions::default() };
    let swaps = plan_swaps(&ledger, &pinned, &resident, &all);
    assert_eq!(swaps, [swap(4, 5, 1), swap(3, 3, 1), swap(3, 0, 2)], "the largest gain first");
    let one = SwapOptions { most: 1, ..all };
    assert_eq!(plan_swaps(&ledger, &pinned, &resident, &one), swaps[..1]);
    assert!(plan_swaps(&ledger, &resident, &pinned, &all).is_empty(), "what was swapped is not swapped back");
    let hard = SwapOptions { ratio: 6.0, ..all };
    assert_eq!(plan_swaps(&ledger, &pinned, &resident, &hard).len(), 2);
    for options in [
        SwapOptions { ratio: f64::NAN, ..all },
        SwapOptions { min_heat: f64::NAN, ..all },
        SwapOptions { min_heat: 5001.0, ..all },
    ] {
        assert!(plan_swaps(&ledger, &pinned, &resident, &options).is_empty());
    }
}
