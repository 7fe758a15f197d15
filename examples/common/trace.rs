//! Routing traces: which experts each token chose in each layer.

use std::path::Path;

use super::Failure;

/// One token's experts, by layer.
pub type Token = Vec<Vec<u32>>;

/// The trace that comes with the examples.
pub const BUILT_IN: &str = include_str!("../data/olmoe-299.jsonl");

/// Reads `{"tok": n, "layers": [[expert ids], …]}`, one line a token.
pub fn read(path: &Path) -> Result<Vec<Token>, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| format!("cannot read the trace {}: {e}", path.display()))?;
    parse(&text).map_err(|e| format!("{}: {e}", path.display()).into())
}

/// Reads a trace from its text.
pub fn parse(text: &str) -> Result<Vec<Token>, Failure> {
    #[derive(serde::Deserialize)]
    struct Line {
        layers: Token,
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let tokens: Result<Vec<Token>, Failure> = lines
        .map(|(number, line)| {
            let line: Line = serde_json::from_str(line)
                .map_err(|e| format!("line {}: not a token of a routing trace: {e}", number + 1))?;
            Ok(line.layers)
        })
        .collect();
    match tokens? {
        tokens if tokens.is_empty() || tokens.iter().any(Vec::is_empty) => {
            Err("a trace needs at least one token, and each token at least one layer".into())
        }
        tokens => Ok(tokens),
    }
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
