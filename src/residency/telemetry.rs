//! What happened: counts and times, demand apart from policy and from preloading.

use std::time::Duration;

use crate::store::{Landing, ReadTally, Recorder, Times};

/// Requests by callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCounts {
    /// Requests admitted.
    pub requests: u64,
    /// Experts whose bytes were in memory.
    pub hits: u64,
    /// Experts that had to be read for the request.
    pub misses: u64,
    /// Experts that another request was loading already.
    pub joined: u64,
    /// Requests that had to wait for working slots.
    pub blocked: u64,
}

/// Reads from the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadCounts {
    /// Experts that were read whole.
    pub experts: u64,
    /// Calls that read something.
    pub reads: u64,
    /// Bytes they read.
    pub bytes: u64,
    /// Calls that read less than they were asked for, and were continued.
    pub short: u64,
    /// Calls that were interrupted, and repeated.
    pub interrupted: u64,
    /// Experts that could not be read.
    pub failed: u64,
    /// Loads that were taken back before a reader had them.
    pub cancelled: u64,
    /// Experts that were read whole although nobody waited any more.
    pub unclaimed: u64,
}

/// Experts that were read ahead ([`ResidencyManager::begin`](crate::ResidencyManager::begin)), by what became of them; those
/// that were in memory already are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AheadCounts {
    /// A request wanted them: they were in memory for it, or on their way.
    pub used: u64,
    /// Nobody wanted them, though they were read, or being read.
    pub wasted: u64,
    /// Bytes of their slots.
    pub wasted_bytes: u64,
    /// Nobody wanted them, and they were taken back before a reader had them.
    pub cancelled: u64,
    /// Named when there were no free working slots, in memory or not.
    pub refused: u64,
}

/// What the policy and the slot table did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyCounts {
    /// Experts that became resident.
    pub promotions: u64,
    /// Experts that gave way to another.
    pub evictions: u64,
    /// Experts that were read and not kept.
    pub bypasses: u64,
    /// Experts that gave way to memory pressure.
    pub pressure_evictions: u64,
    /// Pinned experts that gave their place to resident ones.
    pub pin_swaps: u64,
    /// Answers of a policy that the table refused, panics included.
    pub violations: u64,
}

/// The state of the slots now. Not reset by draining.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotCounts {
    /// Resident experts, pinned ones not counted.
    pub resident: u64,
    /// Bytes of their slots.
    pub resident_bytes: u64,
    /// Slots that memory pressure took out of use.
    pub disabled: u64,
    /// Of these, those whose memory was not given back: it cannot be, or the system refused it and will be asked again.
    pub unreleased: u64,
    /// Slots lost to leaked leases.
    pub leaked: u64,
    /// Leases that are held.
    pub leases: u64,
}

/// Counts and times since the beginning or the last drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TelemetrySnapshot {
    /// Requests by callers. Preloading pinned experts is not counted.
    pub requests: RequestCounts,
    /// Reads ahead of requests. Their bytes are among `demand_reads`.
    pub ahead: AheadCounts,
    /// Reads for requests.
    pub demand_reads: ReadCounts,
    /// Reads of pinned experts, whoever asked first.
    pub pinned_reads: ReadCounts,
    /// What the policy and the table did.
    pub policy: PolicyCounts,
    /// The slots now.
    pub slots: SlotCounts,
    /// Reading one expert, from the beginning of its first read to the end of its last: no waiting before the first.
    pub read_time: Times,
    /// Waiting for reads, taken by the requester: one record for each request that had misses, 0 if all was hidden.
    pub wait_time: Times,
    /// Waiting for working slots: one record for each blocked request.
    pub admission_time: Times,
    /// Whole forwards, as recorded by the caller.
    pub forward_time: Times,
    /// Dispatches of this crate's own GPU kernels, as recorded by the caller. Work that MLX or the CPU does is not counted.
    pub dispatches: u64,
}

/// The running counts, kept under the lock of the slot table.
#[derive(Debug)]
pub(super) struct Telemetry {
    pub(super) requests: RequestCounts,
    pub(super) ahead: AheadCounts,
    pub(super) demand_reads: ReadCounts,
    pub(super) pinned_reads: ReadCounts,
    pub(super) policy: PolicyCounts,
    pub(super) dispatches: u64,
    read_time: Recorder,
    wait_time: Recorder,
    admission_time: Recorder,
    forward_time: Recorder,
}

impl Telemetry {
    pub(super) fn new() -> Self {
        Self {
            requests: RequestCounts::default(),
            ahead: AheadCounts::default(),
            demand_reads: ReadCounts::default(),
            pinned_reads: ReadCounts::default(),
            policy: PolicyCounts::default(),
            dispatches: 0,
            read_time: Recorder::new(),
            wait_time: Recorder::new(),
            admission_time: Recorder::new(),
            forward_time: Recorder::new(),
        }
    }

    /// The counts for reads of pinned or of other experts.
    pub(super) const fn reads(&mut self, pinned: bool) -> &mut ReadCounts {
        if pinned { &mut self.pinned_reads } else { &mut self.demand_reads }
    }

    pub(super) fn landed(&mut self, landing: &Landing, pinned: bool, kept: bool) {
        let counts = self.reads(pinned);
        let ReadTally { reads, bytes, short, interrupted, .. } = landing.tally;
        counts.reads += reads;
        counts.bytes += bytes;
        counts.short += short;
        counts.interrupted += interrupted;
        match landing.result {
            Ok(()) => counts.experts += 1,
            Err(_) => counts.failed += 1,
        }
        counts.unclaimed += u64::from(!kept && landing.result.is_ok());
        if landing.result.is_ok() {
            self.read_time.record(landing.service_ns);
        }
    }

    pub(super) fn waited(&mut self, time: Duration) {
        self.wait_time.record_duration(time);
    }

    pub(super) fn blocked(&mut self, time: Duration) {
        self.requests.blocked += 1;
        self.admission_time.record_duration(time);
    }

    pub(super) fn forward(&mut self, time: Duration) {
        self.forward_time.record_duration(time);
    }

    pub(super) fn snapshot(&self, slots: SlotCounts) -> TelemetrySnapshot {
        TelemetrySnapshot {
            requests: self.requests,
            ahead: self.ahead,
            demand_reads: self.demand_reads,
            pinned_reads: self.pinned_reads,
            policy: self.policy,
            slots,
            read_time: self.read_time.times(),
            wait_time: self.wait_time.times(),
            admission_time: self.admission_time.times(),
            forward_time: self.forward_time.times(),
            dispatches: self.dispatches,
        }
    }

    pub(super) fn reset(&mut self) {
        self.requests = RequestCounts::default();
        self.ahead = AheadCounts::default();
        self.demand_reads = ReadCounts::default();
        self.pinned_reads = ReadCounts::default();
        self.policy = PolicyCounts::default();
        self.dispatches = 0;
        for recorder in
            [&mut self.read_time, &mut self.wait_time, &mut self.admission_time, &mut self.forward_time]
        {
            recorder.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MAX_TIME_NS;

    #[test]
    fn percentiles_are_exact_to_a_percent_and_bounded_at_a_minute() {
        let mut telemetry = Telemetry::new();
        for micros in 1..=1000 {
            telemetry.forward(Duration::from_micros(micros));
        }
        let times = telemetry.snapshot(SlotCounts::default()).forward_time;
        assert_eq!((times.count, times.total_ns), (1000, 500_500_000));
        for (got, wanted) in [
            (times.p50_ns, 500_000),
            (times.p95_ns, 950_000),
            (times.p99_ns, 990_000),
            (times.max_ns, 1_000_000),
        ] {
            assert!(got.abs_diff(wanted) <= wanted / 100, "{got} for {wanted}");
        }
        telemetry.forward(Duration::from_secs(3600));
        let max_ns = telemetry.snapshot(SlotCounts::default()).forward_time.max_ns;
        assert!(max_ns.abs_diff(MAX_TIME_NS) <= MAX_TIME_NS / 100);
        telemetry.reset();
        assert_eq!(telemetry.snapshot(SlotCounts::default()), TelemetrySnapshot::default());
    }
}
