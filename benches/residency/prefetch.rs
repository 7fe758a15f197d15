//! What reading ahead costs when it is wrong: tokens/s with random experts read ahead, as a share of those without.
//!
//! Two executors with slots of their own make the same tokens, in turn, so that other work on the machine meets both.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use streamed_experts::{Budget, ExecutorOptions, ExpertSource, Family, LayerId, StreamedExpertExecutor};

use crate::forwards::{self, LAYERS, Tokens};

const TOKENS: usize = 600;

fn open(source: &Arc<dyn ExpertSource>) -> StreamedExpertExecutor {
    let slot_bytes = source.tiers()[0].layout.slot_bytes();
    let budget = Budget { working_slots: 24, ..Budget::new(slot_bytes * u64::from(24 + 16 * LAYERS)) };
    let options = ExecutorOptions { family: Family::Host, ..ExecutorOptions::new(budget) };
    StreamedExpertExecutor::open(Arc::clone(source), &options).expect("an executor")
}

/// One token; `ahead`: before each layer, random experts of the next one are read ahead.
fn token(
    executor: &mut StreamedExpertExecutor,
    token: &[Vec<u32>],
    ahead: Option<&mut fastrand::Rng>,
) -> Duration {
    let mut ahead = ahead;
    let began = Instant::now();
    for (layer, experts) in (0..LAYERS).zip(token) {
        if let Some(random) = &mut ahead {
            let next = LayerId((layer + 1) % LAYERS);
            executor.read_ahead(next, &forwards::any_experts(random)).expect("experts that exist");
        }
        forwards::layer(executor, layer, experts);
    }
    began.elapsed()
}

pub fn print(source: &Arc<dyn ExpertSource>) {
    let (mut plain, mut wrong) = (open(source), open(source));
    let (mut tokens, mut random) = (Tokens::new(), fastrand::Rng::with_seed(5));
    let (mut without, mut with) = (Duration::ZERO, Duration::ZERO);
    for number in 0..TOKENS {
        let next = tokens.next();
        if number % 2 == 0 {
            without += token(&mut plain, &next, None);
            with += token(&mut wrong, &next, Some(&mut random));
        } else {
            with += token(&mut wrong, &next, Some(&mut random));
            without += token(&mut plain, &next, None);
        }
    }
    let (foresight, ahead) = (wrong.foresight(), wrong.manager().telemetry().ahead);
    println!(
        "prefetch: {:.2?} a token without, {:.2?} with random experts; precision {:.2}, recall {:.2}; {} used, {} wasted \
         ({} MB), {} cancelled, switched off {} times",
        without / TOKENS as u32,
        with / TOKENS as u32,
        foresight.precision(),
        foresight.recall(),
        ahead.used,
        ahead.wasted,
        ahead.wasted_bytes / 1_000_000,
        ahead.cancelled,
        foresight.switched_off
    );
    println!("figure prefetch_harm {:.3}", without.as_secs_f64() / with.as_secs_f64());
}
