//! Routing traces of one model, bent to fit another.

use streamed_experts::Trace;

/// One token's experts, by layer.
pub type Token = Vec<Vec<u32>>;

/// The trace that comes with the examples.
pub const BUILT_IN: &str = include_str!("../data/olmoe-299.jsonl");

/// The tokens of a trace: none is empty.
pub fn tokens(trace: &Trace) -> Vec<Token> {
    let requests: Vec<_> = trace.requests().collect();
    let tokens = requests.chunk_by(|a, b| a.forward == b.forward);
    tokens
        .map(|token| token.iter().map(|layer| layer.experts.iter().map(|id| id.0).collect()).collect())
        .collect()
}

/// The experts that `token` chooses in the model's `index`-th sparse layer, fitted to a layer of `experts` experts.
///
/// A trace of another model is bent to fit: layers repeat, ids wrap around, and an id met twice moves to the next free.
pub fn experts(token: &Token, index: usize, experts: u32) -> Vec<u32> {
    let mut chosen: Vec<u32> = Vec::new();
    for &id in token[index % token.len()].iter().take(experts as usize) {
        let mut id = id % experts;
        while chosen.contains(&id) {
            id = (id + 1) % experts;
        }
        chosen.push(id);
    }
    chosen
}
