//! Usage ledgers.

use std::fs;

use streamed_experts::{ExpertId, ExpertKey, LayerId, UsageLedger};

use super::folder;
use crate::{memory::at_most, read};

const LAYERS: [(LayerId, u32); 2] = [(LayerId(1), 3), (LayerId(4), 2)];

/// The first byte says whether a checksum that fits is put behind the rest.
pub fn ledger(data: &[u8]) {
    let Some((&kind, content)) = data.split_first() else { return };
    let path = folder().join("usage.ledger");
    let mut bytes = content.to_vec();
    if kind != 0 {
        bytes.extend(fnv(content).to_le_bytes());
    }
    fs::write(&path, &bytes).expect("room");
    let opened = at_most((1 << 20) + 8 * data.len(), || UsageLedger::open(&path, LAYERS));
    let (mut ledger, damaged) = opened.expect("the file can be read");
    let experts: Vec<_> = ledger.experts().collect();
    assert_eq!(experts.len(), 5);
    if let Some(damaged) = damaged {
        assert!(!damaged.to_string().is_empty());
        assert!(experts.iter().all(|&(_, uses, heat)| uses == 0 && heat == 0.0), "counts of a damaged file");
    }
    // Whatever was read can be counted on, saved, and read again.
    ledger.record(ExpertKey::new(LayerId(4), ExpertId(1)), u64::MAX);
    ledger.end_turn();
    assert!(ledger.experts().all(|(_, _, heat)| heat.is_finite()));
    let again = folder().join("again.ledger");
    ledger.save(&again).expect("room");
    let (read_again, damaged) = UsageLedger::open(&again, LAYERS).expect("the file can be read");
    assert!(damaged.is_none() && read_again.experts().eq(ledger.experts()));
}

/// FNV-1a, 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut ledger = UsageLedger::new(LAYERS);
    ledger.record(ExpertKey::new(LayerId(1), ExpertId(2)), 7);
    let path = folder().join("seed.ledger");
    ledger.save(&path).expect("room");
    let bytes = read(&path);
    let mut fitting = vec![1];
    fitting.extend(&bytes[..bytes.len() - 8]);
    let mut raw = vec![0];
    raw.extend(&bytes);
    vec![fitting, raw]
}
