//! What memory the machine has, and how much of it this process occupies.

use crate::os;

/// Memory of the machine and of this process, as the system counts it. A field is `None` where the system does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// Memory of the machine.
    pub physical_bytes: Option<u64>,
    /// The limit of the control group this process runs in (Linux; versions 1 and 2).
    pub limit_bytes: Option<u64>,
    /// What may still be taken of both without pushing out anything but pages of files (Linux).
    pub available_bytes: Option<u64>,
    /// How pressed for memory the system is (Linux with pressure stall information, macOS).
    pub pressure: Option<PressureLevel>,
    /// What this process holds: on Linux its pages that are no file's, swapped out or not; on macOS the physical footprint.
    pub footprint_bytes: Option<u64>,
    /// The most that this process has held since it began; on Linux pages of files that were resident are counted too.
    pub peak_footprint_bytes: Option<u64>,
}

/// How pressed for memory a system is, by its own account.
///
/// Linux: tasks waited for memory in at least 10 % of the last ten seconds, some of them (warning) or all at once
/// (critical), in the machine or in this process's control group. macOS: the level that the kernel tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PressureLevel {
    /// Not at all.
    #[default]
    Normal,
    /// Programs should give up what they can get again.
    Warning,
    /// The system is about to end programs.
    Critical,
}

impl MemoryInfo {
    /// Asks the system. Reads small files (Linux) or makes system calls (macOS: compiled, not run yet).
    #[must_use]
    pub fn measure() -> Self {
        Self {
            physical_bytes: os::physical_memory_bytes(),
            limit_bytes: os::cgroup_limit_bytes(),
            available_bytes: os::available_memory_bytes(),
            pressure: os::memory_pressure(),
            footprint_bytes: os::footprint_bytes(),
            peak_footprint_bytes: os::peak_footprint_bytes(),
        }
    }

    /// What a process may use at most: the memory of the machine or the control group's limit, whichever is smaller.
    #[must_use]
    pub fn total_bytes(&self) -> Option<u64> {
        match (self.physical_bytes, self.limit_bytes) {
            (Some(physical), Some(limit)) => Some(physical.min(limit)),
            (one, other) => one.or(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_memory_and_limit_counts() {
        let info = |physical_bytes, limit_bytes| {
            MemoryInfo {
                physical_bytes,
                limit_bytes,
                available_bytes: None,
                pressure: None,
                footprint_bytes: None,
                peak_footprint_bytes: None,
            }
            .total_bytes()
        };
        assert_eq!(info(Some(8), Some(5)), Some(5));
        assert_eq!(info(Some(8), Some(u64::MAX)), Some(8));
        assert_eq!(info(Some(8), None), Some(8));
        assert_eq!(info(None, Some(5)), Some(5));
        assert_eq!(info(None, None), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_memory_and_this_process_occupies_some_of_it() {
        let info = MemoryInfo::measure();
        let footprint = info.footprint_bytes.unwrap();
        assert!(footprint > 0 && footprint < info.total_bytes().unwrap());
        assert!(info.available_bytes.unwrap() <= info.total_bytes().unwrap());
    }
}
