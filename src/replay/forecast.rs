//! From hits to tokens per second.

/// What a forward takes besides luck. All finite and above 0, except that computing may take no time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Bytes the drive reads per second at the depth that is used.
    pub drive_bytes_per_s: f64,
    /// Time that a forward computes, in seconds, reads not counted.
    pub compute_s: f64,
    /// Bytes read for one expert.
    pub expert_bytes: f64,
}

impl Machine {
    /// Seconds for a forward with so many misses: between reading and computing fully overlapped (the first) and one
    /// after the other (the second).
    #[must_use]
    pub fn forward_s(&self, misses: f64) -> (f64, f64) {
        let read_s = misses * self.expert_bytes / self.drive_bytes_per_s;
        (read_s.max(self.compute_s), read_s + self.compute_s)
    }

    /// Forwards per second with so many misses each: overlapped, and one after the other.
    #[must_use]
    pub fn forwards_per_s(&self, misses: f64) -> (f64, f64) {
        let (overlapped, serial) = self.forward_s(misses);
        (1.0 / overlapped, 1.0 / serial)
    }

    /// The most misses a forward may have to reach `forwards_per_s`, overlapped; `None` if computing alone takes longer.
    #[must_use]
    pub fn misses_for(&self, forwards_per_s: f64) -> Option<f64> {
        let forward_s = 1.0 / forwards_per_s;
        (self.compute_s <= forward_s).then(|| forward_s * self.drive_bytes_per_s / self.expert_bytes)
    }
}
