//! Comma-separated values: `turn,phase,step,layer,slot,expert` and more, as BigMoeOnEdge writes them.

use std::collections::BTreeMap;

use super::{Builder, MAX_ACCESSES, MAX_EXPERTS, check};

const DECODING: u32 = 1;

/// Turn, phase, step and layer.
type Key = (u32, u32, u32, u32);

/// Slots with their experts, for each layer of each step.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: BTreeMap<Key, Vec<(u32, u32)>>,
    accesses: usize,
    experts: Option<u32>,
}

impl Table {
    pub(super) fn read(&mut self, line: &str) -> Result<(), String> {
        if let Some(comment) = line.strip_prefix('#') {
            let experts = comment.split_whitespace().find_map(|word| word.strip_prefix("n_expert="));
            let experts =
                experts.and_then(|experts| experts.parse().ok()).filter(|&experts| experts <= MAX_EXPERTS);
            self.experts = experts.or(self.experts);
            return Ok(());
        }
        if line.starts_with("turn,phase,step,layer,slot,expert") {
            return Ok(());
        }
        let mut fields = line.split(',');
        let mut field = |name| -> Result<u32, String> {
            let text = fields.next().ok_or_else(|| format!("no {name}"))?;
            text.trim().parse().map_err(|_| format!("`{text}` is not a {name}"))
        };
        let key = (field("turn")?, field("phase")?, field("step")?, field("layer")?);
        let (slot, expert) = (field("slot")?, field("expert")?);
        check(key.3, &[expert])?;
        self.accesses += 1;
        if self.accesses > MAX_ACCESSES {
            return Err(format!("more than {MAX_ACCESSES} accesses"));
        }
        self.rows.entry(key).or_default().push((slot, expert));
        Ok(())
    }

    pub(super) fn finish(self, builder: &mut Builder) -> Result<(), String> {
        let decoding = self.rows.keys().any(|&(_, phase, ..)| phase == DECODING);
        for ((turn, phase, step, layer), mut row) in self.rows {
            if decoding && phase != DECODING {
                continue;
            }
            row.sort_unstable();
            let ids: Vec<_> = row.into_iter().map(|(_, expert)| expert).collect();
            let forward = builder.forward((u64::from(turn) << 32) | u64::from(step), layer);
            builder.add(forward, layer, &ids)?;
            if let (Some(experts), Some(count)) = (self.experts, builder.counts.get_mut(&layer)) {
                *count = experts.max(*count);
            }
        }
        Ok(())
    }
}
