//! The weighted sum over ranks, as an MLX graph.

use mlx_rs::{Array, Dtype, error::Exception, ops::concatenate};

use super::ops::{dimension, take};
use crate::routing::BatchPlan;

/// Σ over ranks, in rank order, of weight × row, then the shared row: `[rows, hidden]`, computed in f32.
///
/// `parts` are expert outputs `[pairs of the part, hidden]` with the plan's pair number of each row. Rows with fewer
/// ranks than others add zero for those they lack. The order of addition depends on the plan alone.
pub(crate) fn compose(
    plan: &BatchPlan,
    parts: &[(Vec<u32>, Array)],
    shared: Option<&Array>,
    hidden: i32,
    dtype: Dtype,
) -> Result<Array, Exception> {
    let zero = Array::zeros::<f32>(&[1, hidden])?;
    let mut position = vec![0u32; plan.pairs()];
    let mut pieces = vec![zero];
    let mut next = 1u32;
    for (pairs, rows) in parts {
        for &pair in pairs {
            position[pair as usize] = next;
            next += 1;
        }
        pieces.push(rows.as_dtype(Dtype::Float32)?);
    }
    let rows = concatenate(&pieces.iter().collect::<Vec<_>>(), 0)?;
    let mut sum: Option<Array> = None;
    let count = dimension(plan.rows())?;
    let ranks = (0..plan.rows()).map(|row| plan.row(row).len()).max().unwrap_or(0);
    for rank in 0..ranks {
        let (index, weight): (Vec<u32>, Vec<f32>) = (0..plan.rows())
            .map(|row| {
                plan.row(row)
                    .nth(rank)
                    .map_or((0, 0.0), |chosen| (position[chosen.pair as usize], chosen.weight))
            })
            .unzip();
        let chosen = take(&rows, &Array::from_slice(&index, &[count]), 0)?;
        let product = chosen.multiply(Array::from_slice(&weight, &[count, 1]))?;
        sum = Some(match sum {
            None => product,
            Some(sum) => sum.add(product)?,
        });
    }
    let shared = shared.map(|shared| shared.reshape(&[-1, hidden])?.as_dtype(Dtype::Float32)).transpose()?;
    let total = match (sum, shared) {
        (Some(sum), Some(shared)) => sum.add(shared)?,
        (Some(sum), None) => sum,
        (None, Some(shared)) => shared,
        (None, None) => Array::zeros::<f32>(&[count, hidden])?,
    };
    total.as_dtype(dtype)
}
