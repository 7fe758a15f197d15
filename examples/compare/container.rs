//! Opens the source; a container without config.json gets its widths from the answers.

use std::{path::Path, sync::Arc};

use streamed_experts::{Colibri, ColibriOptions, ExpertSource, TensorIndex, open_source};

use crate::{answers::Answers, common::Failure};

pub fn open(path: &Path, answers: &Answers, group: Option<u32>) -> Result<Arc<dyn ExpertSource>, Failure> {
    if answers.of_checkpoint || path.is_file() {
        return Ok(Arc::from(open_source(path)?));
    }
    let mut options = ColibriOptions { group, ..ColibriOptions::default() };
    if !path.join("config.json").exists() {
        let hidden = answers.shape(&format!("{}.x", answers.layers()[0]))?.last().copied().unwrap_or(0);
        let hidden = u32::try_from(hidden)?;
        options.hidden = Some(hidden);
        options.intermediate = Some(intermediate(path, hidden)?);
    }
    Ok(Arc::new(Colibri::open_with(path, &options)?))
}

/// The width between the products, from the byte counts of some expert's gate: as many rows as there are scales if that
/// explains the bytes at 4 or 8 bits, else (scales per group) what 4 bits give.
fn intermediate(path: &Path, hidden: u32) -> Result<u32, Failure> {
    let tensors = TensorIndex::open(path)?;
    let (name, gate) = tensors
        .iter()
        .find(|(name, _)| name.ends_with(".gate_proj.weight"))
        .ok_or_else(|| format!("{} has no expert tensors", path.display()))?;
    let scales =
        tensors.get(&format!("{name}.qs")).ok_or_else(|| format!("`{name}.qs` is missing"))?.len_bytes / 4;
    let half = gate.len_bytes / u64::from(hidden.div_ceil(2)).max(1);
    let whole = gate.len_bytes / u64::from(hidden).max(1);
    let rows = if scales == whole { whole } else { half };
    Ok(u32::try_from(rows)?)
}
