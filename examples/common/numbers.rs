//! Numbers on command lines, within bounds that keep arithmetic on them finite.

const LEAST: f64 = 1e-9;
const MOST: f64 = 1e12;

/// A number above 0.
pub fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim().parse().map_err(|_| format!("`{text}` is not a number"))?;
    // NaN is within no range.
    if (LEAST..=MOST).contains(&number) {
        Ok(number)
    } else {
        Err(format!("`{text}` is not between {LEAST:e} and {MOST:e}"))
    }
}

/// 0, or a number above it.
pub fn not_negative(text: &str) -> Result<f64, String> {
    match text.trim().parse() {
        Ok(0.0) => Ok(0.0),
        _ => positive(text),
    }
}
