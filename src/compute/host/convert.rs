//! Slices of 16-bit floats to f32 and back, rounding to nearest, ties to even.

use half::{bf16, f16, slice::HalfFloatSliceExt};

/// Widens bf16; exact.
///
/// # Panics
/// If the lengths differ.
pub fn bf16_to_f32(from: &[bf16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "as many values out as in");
    for (to, from) in to.iter_mut().zip(from) {
        *to = f32::from_bits(u32::from(from.to_bits()) << 16);
    }
}

/// Narrows to bf16; ties to even, NaN stays NaN (quiet).
///
/// # Panics
/// If the lengths differ.
pub fn f32_to_bf16(from: &[f32], to: &mut [bf16]) {
    assert_eq!(from.len(), to.len(), "as many values out as in");
    for (to, from) in to.iter_mut().zip(from) {
        let bits = from.to_bits();
        // Adding half of the last place, less one if the kept part is even, carries exactly when rounding goes up.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        let narrow = if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded };
        *to = bf16::from_bits((narrow & 0xffff) as u16);
    }
}

/// Widens f16; exact.
///
/// # Panics
/// If the lengths differ.
pub fn f16_to_f32(from: &[f16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "as many values out as in");
    from.convert_to_f32_slice(to);
}

/// Narrows to f16; ties to even, beyond 65,504 infinite, NaN stays NaN (quiet).
///
/// # Panics
/// If the lengths differ.
pub fn f32_to_f16(from: &[f32], to: &mut [f16]) {
    assert_eq!(from.len(), to.len(), "as many values out as in");
    to.convert_from_f32_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sixteen_bit_float_survives_the_round_trip() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let mut wide = vec![0.0; bits.len()];
        let from: Vec<bf16> = bits.iter().map(|&b| bf16::from_bits(b)).collect();
        let mut back = vec![bf16::ZERO; bits.len()];
        bf16_to_f32(&from, &mut wide);
        f32_to_bf16(&wide, &mut back);
        assert!(
            from.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
        );
        let from: Vec<f16> = bits.iter().map(|&b| f16::from_bits(b)).collect();
        let mut back = vec![f16::ZERO; bits.len()];
        f16_to_f32(&from, &mut wide);
        f32_to_f16(&wide, &mut back);
        assert!(
            from.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
        );
    }

    #[test]
    fn narrowing_rounds_as_the_reference_crate_does() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut wide: Vec<f32> = (0..100_000).map(|_| f32::from_bits(random.u32(..))).collect();
        // Ties, and both sides of them, for either type.
        for bits in (0..=u16::MAX).step_by(17) {
            let below = (u32::from(bits) << 16) + 0x7fff;
            wide.extend([below, below + 1, below + 2].map(f32::from_bits));
            wide.push(f32::midpoint(f16::from_bits(bits).to_f32(), f16::from_bits(bits ^ 1).to_f32()));
        }
        let mut to = vec![bf16::ZERO; wide.len()];
        f32_to_bf16(&wide, &mut to);
        for (x, y) in wide.iter().zip(&to) {
            assert!(y.to_bits() == bf16::from_f32(*x).to_bits() || (x.is_nan() && y.is_nan()), "{x:e}");
        }
        let mut to = vec![f16::ZERO; wide.len()];
        f32_to_f16(&wide, &mut to);
        for (x, y) in wide.iter().zip(&to) {
            assert!(y.to_bits() == f16::from_f32_const(*x).to_bits() || (x.is_nan() && y.is_nan()), "{x:e}");
        }
    }
}
