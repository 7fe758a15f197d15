//! Gate, up, activation, down: a routed or a shared expert.

use super::{layer::OracleError, linear::Linear};
use crate::formats::{Activation, ExpertView, Projection};

/// down(activation(gate(x), up(x))): one expert, routed or shared.
#[derive(Clone, Copy, Debug)]
pub struct Mlp<'a> {
    gate: Linear<'a>,
    up: Linear<'a>,
    down: Linear<'a>,
    activation: Activation,
}

impl<'a> Mlp<'a> {
    /// An expert from its three projections: gate and up `[intermediate, hidden]`, down `[hidden, intermediate]`.
    ///
    /// # Errors
    /// [`OracleError::Length`] if the shapes do not follow one another.
    pub fn new(
        gate: Linear<'a>,
        up: Linear<'a>,
        down: Linear<'a>,
        activation: Activation,
    ) -> Result<Self, OracleError> {
        let fits = [
            ("columns of up", gate.columns(), up.columns()),
            ("rows of up", gate.rows(), up.rows()),
            ("columns of down", gate.rows(), down.columns()),
            ("rows of down", gate.columns(), down.rows()),
        ];
        match fits.into_iter().find(|(_, needed, given)| needed != given) {
            Some((what, needed, given)) => Err(OracleError::Length { what, needed, given }),
            None => Ok(Self { gate, up, down, activation }),
        }
    }

    /// A routed expert from its bytes.
    ///
    /// # Errors
    /// As [`Linear::of_expert`].
    pub fn of_expert(expert: &ExpertView<'a>) -> Result<Self, OracleError> {
        let projection = |projection| Linear::of_expert(expert, projection);
        Self::new(
            projection(Projection::Gate)?,
            projection(Projection::Up)?,
            projection(Projection::Down)?,
            expert.geometry().activation,
        )
    }

    /// The unweighted output `[n, hidden]` for `input`, `[n, hidden]`.
    ///
    /// # Errors
    /// [`OracleError::Length`] if `input` is not whole rows.
    pub fn forward(&self, input: &[f64]) -> Result<Vec<f64>, OracleError> {
        let mut middle = self.gate.forward(input)?;
        let up = self.up.forward(input)?;
        for (gate, up) in middle.iter_mut().zip(up) {
            *gate = activate(self.activation, *gate, up);
        }
        self.down.forward(&middle)
    }
}

/// The value between the products, for one output of gate and of up, their biases already added.
///
/// SwiGLU is silu(gate) × up with silu(x) = x × sigmoid(x) (Shazeer, "GLU Variants Improve Transformer", 2020). The
/// clamped form is gpt-oss's: gate is bounded above only, and 1 is added to up.
#[must_use]
pub fn activate(activation: Activation, gate: f64, up: f64) -> f64 {
    match activation {
        Activation::SwiGlu => gate / (1.0 + (-gate).exp()) * up,
        Activation::ClampedSwiGlu { alpha, limit } => {
            let (alpha, limit) = (f64::from(alpha), f64::from(limit));
            // Comparisons, not min() and clamp(): those would drop a NaN, or panic at a NaN limit.
            let gate = if gate > limit { limit } else { gate };
            let up = if up > limit {
                limit
            } else if up < -limit {
                -limit
            } else {
                up
            };
            gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)
        }
    }
}
