//! From a prompt to ids, one after the other.

use std::time::{Duration, Instant};

use super::{Failure, cache::Cache, model::Model, sample::Sampler};

/// Prompt tokens of one forward: many share the experts that are read for them; more take more memory.
pub const PREFILL_TOKENS: usize = 128;

/// What a request wants.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub max_tokens: usize,
    pub stop_ids: Vec<u32>,
}

/// What a request got.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Without a stop id.
    pub ids: Vec<u32>,
    pub prefill: Duration,
    pub decode: Duration,
}

impl Request {
    /// Positions that the request may take.
    pub const fn positions(&self) -> usize {
        self.prompt.len() + self.max_tokens
    }
}

impl Generated {
    /// Tokens decoded per second, the prompt not counted.
    pub fn tokens_per_s(&self) -> f64 {
        // The first id comes from the prompt's last row.
        self.ids.len().saturating_sub(1) as f64 / self.decode.as_secs_f64().max(1e-9)
    }
}

/// Runs a request, handing each id to `write` as it comes.
pub fn generate(
    model: &mut Model,
    request: &Request,
    sampler: &mut Sampler,
    mut write: impl FnMut(u32, &Model) -> Result<(), Failure>,
) -> Result<Generated, Failure> {
    let mut cache = Cache::new(model.config(), request.positions())?;
    let begin = Instant::now();
    let (last, before) = split_last(&request.prompt)?;
    for chunk in before {
        model.fill(chunk, &mut cache)?;
    }
    let mut logits = model.last_logits(last, &mut cache)?;
    let prefill = begin.elapsed();
    let begin = Instant::now();
    let mut ids = Vec::new();
    while ids.len() < request.max_tokens {
        let id = sampler.choose(&logits);
        if request.stop_ids.contains(&id) {
            break;
        }
        ids.push(id);
        write(id, model)?;
        if ids.len() < request.max_tokens {
            logits = model.last_logits(&[id], &mut cache)?;
        }
    }
    Ok(Generated { ids, prefill, decode: begin.elapsed() })
}

/// The prompt's last chunk, and those before it.
fn split_last(prompt: &[u32]) -> Result<(&[u32], impl Iterator<Item = &[u32]>), Failure> {
    if prompt.is_empty() {
        return Err("the prompt has no tokens".into());
    }
    let chunks = prompt.len().div_ceil(PREFILL_TOKENS);
    let (before, last) = prompt.split_at((chunks - 1) * PREFILL_TOKENS);
    Ok((last, before.chunks(PREFILL_TOKENS)))
}
