//! The function between the products, in f32.

use crate::formats::Activation;

/// 1 / (1 + e^−x). Saturates to 0 and 1 at the ends; NaN stays NaN.
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The activation of one gate value and one up value.
pub(super) fn activate(activation: Activation, gate: f32, up: f32) -> f32 {
    match activation {
        Activation::SwiGlu => gate * sigmoid(gate) * up,
        Activation::ClampedSwiGlu { alpha, limit } => {
            // Comparisons rather than min and max, which would swallow a NaN.
            let gate = if gate > limit { limit } else { gate };
            let up = if up > limit {
                limit
            } else if up < -limit {
                -limit
            } else {
                up
            };
            gate * sigmoid(alpha * gate) * (up + 1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_negative_gates_give_zero_and_not_nan() {
        for gate in [-90.0, -1e4, f32::MIN] {
            let y = activate(Activation::SwiGlu, gate, 3.0);
            assert!(y.abs() < 1e-30, "{gate}: {y}");
        }
    }

    #[test]
    fn a_nan_is_never_clamped_away() {
        let clamped = Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 };
        for activation in [Activation::SwiGlu, clamped] {
            assert!(activate(activation, f32::NAN, 1.0).is_nan());
            assert!(activate(activation, 1.0, f32::NAN).is_nan());
        }
    }

    #[test]
    fn the_clamped_form_bounds_both_inputs() {
        let clamped = Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 };
        assert_eq!(activate(clamped, 100.0, 50.0), activate(clamped, 7.0, 7.0));
        assert_eq!(activate(clamped, 2.0, -50.0), activate(clamped, 2.0, -7.0));
    }
}
