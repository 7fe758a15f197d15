//! Sizes as people write them.

/// No machine has more: sums of a few such sizes are numbers still.
const MOST: f64 = (1u64 << 60) as f64;

/// Reads `4GiB`, `1.5G`, `600MB`, `1048576`: powers of 1000 for kB, MB, GB, TB, of 1024 for KiB, MiB, GiB, TiB and K, M, G, T.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| format!("`{text}` is not a size such as 4GiB"))?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024f64.powi(2),
        "g" | "gib" => 1024f64.powi(3),
        "t" | "tib" => 1024f64.powi(4),
        other => {
            return Err(format!(
                "`{other}` is not a unit of size; B, kB, MB, GB, TB, KiB, MiB, GiB, TiB are"
            ));
        }
    };
    let bytes = number * factor;
    if (0.0..=MOST).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err(format!("`{text}` is not a size that memory can have"))
    }
}

/// Like [`parse`], and not nothing.
pub fn parse_some(text: &str) -> Result<u64, String> {
    match parse(text)? {
        0 => Err(format!("`{text}` is less than a byte")),
        bytes => Ok(bytes),
    }
}

/// `1.46 GB`, with powers of 1000, as drives are sold.
pub fn show(bytes: u64) -> String {
    let bytes = bytes as f64;
    let (value, unit) = match bytes {
        b if b >= 1e12 => (b / 1e12, "TB"),
        b if b >= 1e9 => (b / 1e9, "GB"),
        b if b >= 1e6 => (b / 1e6, "MB"),
        b if b >= 1e3 => (b / 1e3, "kB"),
        b => (b, "B"),
    };
    if unit == "B" { format!("{value:.0} {unit}") } else { format!("{value:.2} {unit}") }
}
