//! What a policy costs: its work per access, with 256 experts a layer, as a multiple of one look-up in std's hash map.
//!
//! The calls are those of a real trace (Kimi-Linear: 26 layers × 256 experts, 8 a token, 64 resident a layer), recorded
//! once for each policy, then made again and timed: every call of the trait, choosing victims included.

use std::{
    collections::HashMap,
    hint::black_box,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use streamed_experts::{
    CachePolicy, Echo, Evictable, ExpertId, ExpertKey, Frequency, LayerId, Lru, PolicyLayer, PolicyScope,
    ReplaySlots, S3Fifo, SlotId, TierId, Trace, Verdict, replay,
};

const KIMI: &str = include_str!("../../examples/data/kimi-linear-300.jsonl");
const EXPERTS: usize = 256;
const SLOTS: u32 = 64;
const ROUNDS: u32 = 15;

type Factory = fn(&PolicyScope<'_>) -> Box<dyn CachePolicy>;

#[derive(Clone, Copy, Debug)]
enum Call {
    Requested(LayerId),
    Accessed(ExpertKey, bool),
    Inserted(ExpertKey),
    Removed(ExpertKey),
    Victim(ExpertKey),
}

/// Passes calls on, and writes them down.
#[derive(Debug)]
struct Scribe {
    policy: Box<dyn CachePolicy>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Scribe {
    fn note(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }
}

impl CachePolicy for Scribe {
    fn requested(&mut self, layer: LayerId) {
        self.note(Call::Requested(layer));
        self.policy.requested(layer);
    }

    fn accessed(&mut self, key: ExpertKey, hit: bool) {
        self.note(Call::Accessed(key, hit));
        self.policy.accessed(key, hit);
    }

    fn inserted(&mut self, key: ExpertKey) {
        self.note(Call::Inserted(key));
        self.policy.inserted(key);
    }

    fn removed(&mut self, key: ExpertKey) {
        self.note(Call::Removed(key));
        self.policy.removed(key);
    }

    fn victim(&mut self, incoming: Option<ExpertKey>, evictable: &dyn Evictable) -> Verdict {
        incoming.into_iter().for_each(|key| self.note(Call::Victim(key)));
        self.policy.victim(incoming, evictable)
    }
}

/// Which experts of a layer are resident and unleased, a byte each.
struct Table {
    layer: LayerId,
    resident: [bool; EXPERTS],
    leased: [bool; EXPERTS],
}

impl Evictable for Table {
    fn layer(&self) -> LayerId {
        self.layer
    }

    fn contains(&self, key: ExpertKey) -> bool {
        self.resident[key.expert.index()] && !self.leased[key.expert.index()]
    }

    fn visit(&self, visit: &mut dyn FnMut(ExpertKey) -> bool) {
        let keys = (0..EXPERTS as u32).map(|expert| ExpertKey::new(self.layer, ExpertId(expert)));
        let _ = keys.filter(|&key| self.contains(key)).all(visit);
    }
}

fn tables(layers: &[PolicyLayer]) -> Vec<Table> {
    let table = |layer: &PolicyLayer| Table {
        layer: layer.layer,
        resident: [false; EXPERTS],
        leased: [false; EXPERTS],
    };
    layers.iter().map(table).collect()
}

/// Calls that are timed together: few, so that some of the rounds run them without being interrupted.
const TIMED: usize = 2048;

/// Makes the calls; the times of so many after each other. The table that answers `contains` is kept inside the time: it
/// is little.
fn make(calls: &[Call], policy: &mut dyn CachePolicy, tables: &mut [Table]) -> Vec<Duration> {
    let timed = calls.chunks(TIMED).map(|calls| {
        let began = Instant::now();
        for &call in calls {
            make_one(call, policy, tables);
        }
        began.elapsed()
    });
    timed.collect()
}

fn make_one(call: Call, policy: &mut dyn CachePolicy, tables: &mut [Table]) {
    match call {
        Call::Requested(layer) => {
            tables[layer.index()].leased = [false; EXPERTS];
            policy.requested(layer);
        }
        Call::Accessed(key, hit) => {
            tables[key.layer.index()].leased[key.expert.index()] = true;
            policy.accessed(key, hit);
        }
        Call::Inserted(key) => {
            tables[key.layer.index()].resident[key.expert.index()] = true;
            policy.inserted(key);
        }
        Call::Removed(key) => {
            tables[key.layer.index()].resident[key.expert.index()] = false;
            policy.removed(key);
        }
        Call::Victim(key) => {
            black_box(policy.victim(Some(key), &tables[key.layer.index()]));
        }
    }
}

/// Nanoseconds for each of `count`: the sum of the least times that each part took in any round.
fn best_ns(rounds: impl Iterator<Item = Vec<Duration>>, count: usize) -> f64 {
    let least = |a: Vec<Duration>, b: Vec<Duration>| a.into_iter().zip(b).map(|(a, b)| a.min(b)).collect();
    let total: Duration = rounds.reduce(least).unwrap_or_default().into_iter().sum();
    total.as_secs_f64() * 1e9 / count as f64
}

fn look_up_ns(trace: &Trace) -> f64 {
    let keys = trace
        .layers()
        .iter()
        .flat_map(|layer| (0..EXPERTS as u32).map(|expert| ExpertKey::new(layer.layer, ExpertId(expert))));
    let map: HashMap<ExpertKey, SlotId> = keys.zip((0..).map(SlotId)).collect();
    let asked = trace
        .requests()
        .flat_map(|request| request.experts.iter().map(move |&expert| ExpertKey::new(request.layer, expert)));
    let asked: Vec<_> = asked.collect();
    let rounds = (0..ROUNDS).map(|_| {
        let timed = asked.chunks(TIMED).map(|keys| {
            let began = Instant::now();
            for key in keys {
                black_box(map.get(black_box(key)));
            }
            began.elapsed()
        });
        timed.collect()
    });
    best_ns(rounds, asked.len())
}

pub fn print() {
    let trace = Trace::from_text(KIMI).expect("the trace comes with the examples");
    let look_up_ns = look_up_ns(&trace);
    println!("one look-up in a HashMap<ExpertKey, SlotId> of {} experts: {look_up_ns:.1} ns", 26 * EXPERTS);
    let policies: [(&str, Factory); 5] = [
        ("lru", Lru::boxed),
        ("frequency", Frequency::boxed),
        ("frequency_decayed", Frequency::boxed_decayed),
        ("s3_fifo", S3Fifo::boxed),
        ("echo", Echo::boxed),
    ];
    let layers: Vec<_> = trace
        .layers()
        .iter()
        .map(|layer| PolicyLayer { layer: layer.layer, experts: EXPERTS as u32, resident_slots: SLOTS })
        .collect();
    let scope = PolicyScope { tier: TierId(0), layers: &layers };
    for (name, policy) in policies {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&calls);
        let _ = replay(&trace, &ReplaySlots::PerLayer(SLOTS), move |scope| {
            Box::new(Scribe { policy: policy(scope), calls: noted })
        });
        let calls = calls.lock().unwrap();
        let rounds = (0..ROUNDS).map(|_| make(&calls, &mut *policy(&scope), &mut tables(&layers)));
        let ns = best_ns(rounds, trace.accesses());
        println!("{name}: {ns:.1} ns an access");
        println!("figure policy_ns_{name} {:.2}", ns / look_up_ns);
        if name == "echo" {
            println!("figure policy_ns {:.2}", ns / look_up_ns);
        }
    }
}
