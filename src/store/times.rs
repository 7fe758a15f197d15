//! Distributions of times.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Times longer than a minute count as a minute.
pub(crate) const MAX_TIME_NS: u64 = 60_000_000_000;

/// A distribution of times in nanoseconds, exact to 1 %. Longer than a minute counts as a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// How many were recorded.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// Half of them were at most this long.
    pub p50_ns: u64,
    /// 95 % were at most this long.
    pub p95_ns: u64,
    /// 99 % were at most this long.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// Records times.
#[derive(Debug)]
pub(crate) struct Recorder {
    histogram: Histogram<u64>,
    total_ns: u64,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_TIME_NS, 2).expect("constant bounds are valid");
        Self { histogram, total_ns: 0 }
    }

    pub(crate) fn record_duration(&mut self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn record(&mut self, time_ns: u64) {
        let time_ns = time_ns.min(MAX_TIME_NS);
        self.histogram.saturating_record(time_ns);
        self.total_ns = self.total_ns.saturating_add(time_ns);
    }

    pub(crate) fn times(&self) -> Times {
        Times {
            count: self.histogram.len(),
            total_ns: self.total_ns,
            p50_ns: self.histogram.value_at_quantile(0.50),
            p95_ns: self.histogram.value_at_quantile(0.95),
            p99_ns: self.histogram.value_at_quantile(0.99),
            max_ns: self.histogram.max(),
        }
    }

    pub(crate) fn reset(&mut self) {
        self.histogram.reset();
        self.total_ns = 0;
    }
}
