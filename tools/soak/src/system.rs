//! Memory, descriptors and threads of this process over time. Linux counts them; elsewhere nothing is sampled.

use std::fs;

/// How much memory may grow over a whole run and still be called noise: allocators keep what threads gave back.
const NOISE_BYTES: f64 = 4.0 * 1024.0 * 1024.0;

#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Sample>);

#[derive(Clone, Copy, Debug)]
struct Sample {
    request: f64,
    /// All of it: the slots' share moves up and down with the budget, which a trend over many samples evens out.
    rss_bytes: f64,
    descriptors: usize,
    threads: usize,
}

impl Samples {
    pub(crate) fn take(&mut self, request: u64) {
        let Ok(status) = fs::read_to_string("/proc/self/status") else { return };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<usize>().ok()
        };
        let (Some(rss_kib), Some(threads)) = (field("VmRSS:"), field("Threads:")) else { return };
        let descriptors = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        self.0.push(Sample {
            request: request as f64,
            rss_bytes: rss_kib as f64 * 1024.0,
            descriptors,
            threads,
        });
    }

    /// Bytes per request, by least squares; 0 with fewer than two samples.
    pub(crate) fn slope_per_request(&self) -> f64 {
        let count = self.0.len() as f64;
        let mean = |of: fn(&Sample) -> f64| self.0.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|sample| sample.request), mean(|sample| sample.rss_bytes));
        let (mut above, mut below) = (0.0, 0.0);
        for sample in &self.0 {
            above += (sample.request - x) * (sample.rss_bytes - y);
            below += (sample.request - x).powi(2);
        }
        if below > 0.0 { above / below } else { 0.0 }
    }

    /// The most less the least.
    pub(crate) fn range_bytes(&self) -> u64 {
        let most = self.0.iter().map(|sample| sample.rss_bytes).fold(0.0, f64::max);
        let least = self.0.iter().map(|sample| sample.rss_bytes).fold(most, f64::min);
        (most - least) as u64
    }

    /// Whether the trend over `requests` requests is within noise.
    pub(crate) fn flat(&self, requests: u64) -> bool {
        self.slope_per_request() * requests as f64 <= NOISE_BYTES
    }

    pub(crate) fn descriptors_constant(&self) -> bool {
        self.0.windows(2).all(|pair| pair[0].descriptors == pair[1].descriptors)
    }

    /// The threads that make requests end one by one at the end, which is not watched.
    pub(crate) fn threads_constant(&self) -> bool {
        let Some((_, watched)) = self.0.split_last() else { return true };
        watched.windows(2).all(|pair| pair[0].threads == pair[1].threads)
    }
}
