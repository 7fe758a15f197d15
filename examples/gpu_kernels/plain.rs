//! The same layer as an engine writes it on MLX alone: the experts stacked without gaps, three `gather_qmm`, SwiGLU, weights,
//! sum. MLX's own affine 4 bits in groups of 64, everything in bf16.

use streamed_experts::{
    BatchPlan,
    mlx_rs::{
        Array, Dtype,
        ops::{gather_qmm, sigmoid},
    },
};

use crate::common::Failure;

const GROUP: i32 = 64;
const BITS: i32 = 4;

/// One projection of every expert.
struct Stack {
    weight: Array,
    scales: Array,
    biases: Array,
}

impl Stack {
    fn new(experts: i32, rows: i32, columns: i32, random: &mut fastrand::Rng) -> Result<Self, Failure> {
        let words: Vec<u32> = (0..rows * columns / 8).map(|_| random.u32(..)).collect();
        let one = Array::from_slice(&words, &[1, rows, columns / 8]);
        let weight = Array::repeat_axis::<u32>(one, experts, 0)?;
        let scale = 0.125 / (columns as f32).sqrt();
        let full = |value: f32| -> Result<Array, Failure> {
            let shape = [experts, rows, columns / GROUP];
            Ok(Array::full::<f32>(&shape, Array::from_f32(value))?.as_dtype(Dtype::Bfloat16)?)
        };
        let stack = Self { weight, scales: full(scale)?, biases: full(-7.5 * scale)? };
        for array in [&stack.weight, &stack.scales, &stack.biases] {
            array.eval()?;
        }
        Ok(stack)
    }

    fn product(&self, x: &Array, experts: &Array) -> Result<Array, Failure> {
        let (group, bits) = (GROUP, BITS);
        Ok(gather_qmm(x, &self.weight, &self.scales, &self.biases, None, experts, true, group, bits, false)?)
    }
}

/// A layer of experts in MLX's own arrays.
pub struct Plain {
    gate: Stack,
    up: Stack,
    down: Stack,
    hidden: i32,
}

impl Plain {
    pub fn new(experts: u32, hidden: i32, inner: i32) -> Result<Self, Failure> {
        let mut random = fastrand::Rng::with_seed(5);
        let experts = experts as i32;
        let mut stack = |rows, columns| Stack::new(experts, rows, columns, &mut random);
        Ok(Self {
            gate: stack(inner, hidden)?,
            up: stack(inner, hidden)?,
            down: stack(hidden, inner)?,
            hidden,
        })
    }

    /// The layer of `plan` for `x`, `[1, rows, hidden]`, as an unevaluated graph: pairs in the order of their experts.
    pub fn layer(&self, x: &Array, plan: &BatchPlan) -> Result<Array, Failure> {
        let (rows, pairs) = (plan.rows() as i32, plan.pairs() as i32);
        let uses =
            plan.jobs().iter().flat_map(|job| plan.uses(job).iter().map(move |each| (job.expert.0, each)));
        let (mut experts, mut x_rows, mut weights, mut place) =
            (vec![], vec![], vec![], vec![0; plan.pairs()]);
        for (position, (expert, each)) in uses.enumerate() {
            experts.push(expert);
            x_rows.push(each.row);
            weights.push(each.weight);
            place[each.pair as usize] = position as u32;
        }
        let experts = Array::from_slice(&experts, &[pairs]);
        let flat = x.reshape(&[rows, 1, self.hidden])?;
        let input = if rows == 1 { flat } else { flat.take_axis(Array::from_slice(&x_rows, &[pairs]), 0)? };
        let gate = self.gate.product(&input, &experts)?;
        let up = self.up.product(&input, &experts)?;
        let inner = gate.multiply(sigmoid(&gate)?)?.multiply(up)?;
        let down = self.down.product(&inner, &experts)?;
        let weights = Array::from_slice(&weights, &[pairs, 1, 1]).as_dtype(Dtype::Bfloat16)?;
        let weighted = down.multiply(weights)?.take_axis(Array::from_slice(&place, &[pairs]), 0)?;
        let sum = weighted.reshape(&[rows, pairs / rows, self.hidden])?.sum_axes(&[1], false)?;
        Ok(sum.reshape(&[1, rows, self.hidden])?.add(x)?)
    }
}
