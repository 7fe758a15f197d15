//! What a process takes beside its experts, and whether there was room.

use streamed_experts::{ExecutorOpenError, ExpertSource, Part, PlanError, Projection};

use super::bytes;

/// What a process may take beyond its budget: code and libraries as far as they were used, threads, tables, activations,
/// a buffer for reads. 5 MB (host) to 15 MB (MLX's CPU backend) were measured on Linux x86-64; this is twice that.
const PROCESS_BYTES: u64 = 32 << 20;

/// The same where MLX has a GPU, whose driver and runtime live in the process. Not measured yet.
const PROCESS_WITH_GPU_BYTES: u64 = 256 << 20;

/// What this process may take beyond its budget.
pub fn process_bytes() -> u64 {
    if has_gpu() { PROCESS_WITH_GPU_BYTES } else { PROCESS_BYTES }
}

#[cfg(feature = "mlx")]
fn has_gpu() -> bool {
    use streamed_experts::mlx_rs::{Device, DeviceType};
    matches!(Device::try_default().and_then(|device| device.get_type()), Ok(DeviceType::Gpu))
}

#[cfg(not(feature = "mlx"))]
const fn has_gpu() -> bool {
    false
}

/// Why experts take more memory than disk, tier by tier.
pub fn slots(source: &dyn ExpertSource) -> String {
    let lines = source.tiers().iter().enumerate().map(|(number, tier)| {
        let layout = &tier.layout;
        let parts = Projection::ALL.iter().flat_map(|&projection| Part::ALL.map(|part| (projection, part)));
        let components = parts.filter(|&(projection, part)| layout.range(projection, part).is_some()).count();
        format!(
            "T{number}: one expert has {} B on disk and takes a slot of {} B: each of its {components} components is \
             rounded up to 16 KiB",
            layout.record_bytes(),
            layout.slot_bytes()
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether the peak stayed within budget and allowance, in words.
pub fn verdict(peak_bytes: u64, budget_bytes: u64, beside_bytes: u64, beside: &str) -> (bool, String) {
    let held = peak_bytes <= budget_bytes.saturating_add(beside_bytes);
    let text = format!(
        "peak {} of a budget of {} for experts and what is fixed + at most {} for {beside}: {}",
        bytes::show(peak_bytes),
        bytes::show(budget_bytes),
        bytes::show(beside_bytes),
        kept(held)
    );
    (held, text)
}

/// What is said of a promise.
pub const fn kept(promise: bool) -> &'static str {
    if promise { "kept" } else { "BROKEN" }
}

/// Whether an executor could not be opened because its slots are more than the machine gives.
pub const fn is_no_room(error: Option<&ExecutorOpenError>) -> bool {
    matches!(
        error,
        Some(ExecutorOpenError::Plan(PlanError::BeyondMachine { .. }) | ExecutorOpenError::Bank(_))
    )
}
