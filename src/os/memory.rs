//! How much memory there is, how much this process takes of it, and how pressed the system is for it.

use std::path::{Path, PathBuf};

use crate::memory::PressureLevel;

/// Memory of the machine in bytes.
#[cfg(target_os = "linux")]
pub(crate) fn physical_memory_bytes() -> Option<u64> {
    kib_field(&read("/proc/meminfo")?, "MemTotal:")
}

/// Memory of the machine in bytes. Not run yet, only compiled.
#[cfg(target_os = "macos")]
pub(crate) fn physical_memory_bytes() -> Option<u64> {
    // SAFETY: sysconf takes a number and returns one.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).ok()?.checked_mul(rustix::param::page_size() as u64)
}

/// Memory of the machine in bytes.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn physical_memory_bytes() -> Option<u64> {
    None
}

/// The memory limit of this process's control group, where there is one.
pub(crate) fn cgroup_limit_bytes() -> Option<u64> {
    cgroup_limit_under(Path::new(CGROUPS), &read("/proc/self/cgroup")?)
}

/// What this process may still take without anything but file pages being given up for it: of the machine, or of its
/// control group if that has less left.
pub(crate) fn available_memory_bytes() -> Option<u64> {
    let machine = read("/proc/meminfo").and_then(|text| kib_field(&text, "MemAvailable:"));
    let group = cgroup_available_under(Path::new(CGROUPS), &read("/proc/self/cgroup").unwrap_or_default());
    machine.into_iter().chain(group).min()
}

const CGROUPS: &str = "/sys/fs/cgroup";

/// The names that a version of control groups gives its files and counters.
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Counters of memory.stat: pages of files, which give way to anything else.
    files: [&'static str; 2],
}

const VERSION_1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: ["total_inactive_file ", "total_active_file "],
};

const VERSION_2: Names =
    Names { limit: "memory.max", usage: "memory.current", files: ["inactive_file ", "active_file "] };

/// The folders of the groups that `groups` (the text of /proc/self/cgroup) names, and of their ancestors.
///
/// Version 2 has one hierarchy, version 1 has one for memory. Inside a container the named group may not be visible, but
/// the root of what is visible is then the container's own.
fn folders(root: &Path, groups: &str) -> Vec<(PathBuf, &'static Names)> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let group = Path::new(group.trim_start_matches('/'));
        let (root, names) = if controllers.is_empty() {
            (root.to_owned(), &VERSION_2)
        } else if controllers.split(',').any(|name| name == "memory") {
            (root.join("memory"), &VERSION_1)
        } else {
            continue;
        };
        folders.extend(group.ancestors().map(|ancestor| (root.join(ancestor), names)));
    }
    folders
}

/// The smallest limit on the way to the root.
fn cgroup_limit_under(root: &Path, groups: &str) -> Option<u64> {
    folders(root, groups).iter().filter_map(|(folder, names)| number(&folder.join(names.limit))).min()
}

/// The least that a group on the way to the root leaves below its limit, pages of files not counted.
fn cgroup_available_under(root: &Path, groups: &str) -> Option<u64> {
    let available = |(folder, names): &(PathBuf, &'static Names)| {
        let (limit, usage) = (number(&folder.join(names.limit))?, number(&folder.join(names.usage))?);
        let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let files = names.files.iter().filter_map(|name| {
            stat.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u64>().ok()
        });
        Some(limit.saturating_sub(usage.saturating_sub(files.fold(0, u64::saturating_add))))
    };
    folders(root, groups).iter().filter_map(available).min()
}

/// The number that a file holds; `None` for "max", which is no limit.
fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn read(file: &str) -> Option<String> {
    std::fs::read_to_string(file).ok()
}

/// How pressed for memory the system is, by its own account; the worse of the machine's and the control group's.
#[cfg(target_os = "linux")]
pub(crate) fn memory_pressure() -> Option<PressureLevel> {
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let group = group.and_then(|group| {
        std::fs::read_to_string(Path::new(CGROUPS).join(group).join("memory.pressure")).ok()
    });
    let texts = group.into_iter().chain(read("/proc/pressure/memory"));
    texts.filter_map(|text| stalled(&text)).max()
}

/// The level of a file of pressure stall information: how much of the last ten seconds tasks waited for memory.
#[cfg(any(target_os = "linux", test))]
fn stalled(text: &str) -> Option<PressureLevel> {
    let percent = |kind: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
    };
    let (some, full) = (percent("some ")?, percent("full ").unwrap_or(0.0));
    Some(match (some, full) {
        (_, full) if full >= CRITICAL_PERCENT => PressureLevel::Critical,
        (some, _) if some >= WARNING_PERCENT => PressureLevel::Warning,
        _ => PressureLevel::Normal,
    })
}

/// Some task waited for memory so much of the time.
#[cfg(any(target_os = "linux", test))]
const WARNING_PERCENT: f64 = 10.0;

/// Every task did.
#[cfg(any(target_os = "linux", test))]
const CRITICAL_PERCENT: f64 = 10.0;

/// How pressed for memory the system is, by its own account. Not run yet, only compiled.
#[cfg(target_os = "macos")]
pub(crate) fn memory_pressure() -> Option<PressureLevel> {
    let mut level: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>();
    let name = c"kern.memorystatus_vm_pressure_level";
    // SAFETY: the name ends with a zero; the buffer is a local of `len` bytes; nothing is set.
    let status = unsafe {
        libc::sysctlbyname(name.as_ptr(), (&raw mut level).cast(), &raw mut len, std::ptr::null_mut(), 0)
    };
    match (status, level) {
        (0, 1) => Some(PressureLevel::Normal),
        (0, 2) => Some(PressureLevel::Warning),
        (0, 4) => Some(PressureLevel::Critical),
        _ => None,
    }
}

/// How pressed for memory the system is.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn memory_pressure() -> Option<PressureLevel> {
    None
}

/// Memory that this process holds and that the system cannot simply drop: pages that are no file's, swapped out or not.
#[cfg(target_os = "linux")]
pub(crate) fn footprint_bytes() -> Option<u64> {
    let status = read("/proc/self/status")?;
    let held = ["RssAnon:", "RssShmem:", "VmSwap:"].map(|name| kib_field(&status, name));
    // Kernels before 4.5 do not tell files' pages from others.
    let all = || kib_field(&status, "VmRSS:");
    held[0].map(|first| first + held[1].unwrap_or(0) + held[2].unwrap_or(0)).or_else(all)
}

/// The most pages that this process has had resident, files' included.
#[cfg(target_os = "linux")]
pub(crate) fn peak_footprint_bytes() -> Option<u64> {
    kib_field(&read("/proc/self/status")?, "VmHWM:")
}

/// Memory that this process occupies, as the system counts it. Not run yet, only compiled.
#[cfg(target_os = "macos")]
pub(crate) fn footprint_bytes() -> Option<u64> {
    usage().map(|usage| usage.ri_phys_footprint)
}

/// The largest that [`footprint_bytes`] has been since the process began. Not run yet, only compiled.
#[cfg(target_os = "macos")]
pub(crate) fn peak_footprint_bytes() -> Option<u64> {
    usage().map(|usage| usage.ri_lifetime_max_phys_footprint)
}

#[cfg(target_os = "macos")]
fn usage() -> Option<libc::rusage_info_v4> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage_info_v4>::zeroed();
    let pid = i32::try_from(std::process::id()).ok()?;
    // SAFETY: the buffer is of the type that the flavour names and lives through the call.
    let status = unsafe { libc::proc_pid_rusage(pid, libc::RUSAGE_INFO_V4, usage.as_mut_ptr().cast()) };
    // SAFETY: plain integers, zeroed above, for which every bit pattern is valid.
    (status == 0).then(|| unsafe { usage.assume_init() })
}

/// Memory that this process occupies, as the system counts it.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn footprint_bytes() -> Option<u64> {
    None
}

/// The largest that [`footprint_bytes`] has been since the process began.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn peak_footprint_bytes() -> Option<u64> {
    None
}

/// The value of a `name   1234 kB` line of /proc, in bytes.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_smallest_limit_on_the_way_to_the_root_counts() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "a/memory.max", "4000000\n");
        write(root.path(), "a/b/memory.max", "max\n");
        write(root.path(), "a/b/c/memory.max", "5000000\n");
        assert_eq!(cgroup_limit_under(root.path(), "0::/a/b/c\n"), Some(4_000_000));
    }

    #[test]
    fn the_memory_hierarchy_of_version_1_is_found_among_the_others() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "memory/job/memory.limit_in_bytes", "123456789\n");
        write(root.path(), "memory/memory.limit_in_bytes", "9223372036854771712\n");
        let groups = "9:name=systemd:/\n8:cpu,memory:/job\n0::/\n";
        assert_eq!(cgroup_limit_under(root.path(), groups), Some(123_456_789));
    }

    #[test]
    fn a_group_that_is_not_visible_falls_back_to_the_visible_root() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "memory.max", "777\n");
        assert_eq!(cgroup_limit_under(root.path(), "0::/host/only/path\n"), Some(777));
    }

    #[test]
    fn what_a_group_leaves_counts_up_to_its_limit_and_pages_of_files_count_as_free() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "a/memory.max", "1000\n");
        write(root.path(), "a/memory.current", "900\n");
        write(root.path(), "a/memory.stat", "anon 300\nactive_file 150\ninactive_file 250\n");
        write(root.path(), "memory.max", "max\n");
        assert_eq!(cgroup_available_under(root.path(), "0::/a\n"), Some(500));
        write(root.path(), "memory.max", "800\n");
        write(root.path(), "memory.current", "950\n");
        assert_eq!(cgroup_available_under(root.path(), "0::/a\n"), Some(0), "over its limit");
        write(root.path(), "memory/b/memory.limit_in_bytes", "700\n");
        write(root.path(), "memory/b/memory.usage_in_bytes", "650\n");
        let stat = "inactive_file 1\ntotal_inactive_file 20\ntotal_active_file 10\n";
        write(root.path(), "memory/b/memory.stat", stat);
        assert_eq!(cgroup_available_under(root.path(), "4:memory:/b\n"), Some(80));
    }

    #[test]
    fn pressure_is_told_by_the_share_of_time_that_tasks_waited() {
        let text = |some: &str, full: &str| {
            format!(
                "some avg10={some} avg60=99.00 avg300=0.00 total=1\nfull avg10={full} avg60=99.00 avg300=0.00 total=1\n"
            )
        };
        assert_eq!(stalled(&text("9.99", "9.99")), Some(PressureLevel::Normal));
        assert_eq!(stalled(&text("10.00", "0.00")), Some(PressureLevel::Warning));
        assert_eq!(stalled(&text("40.00", "10.00")), Some(PressureLevel::Critical));
        for damaged in ["", "some", "some avg10=x", "full avg10=50.00"] {
            assert_eq!(stalled(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn no_group_and_no_limit_mean_no_limit() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "memory.max", "max\n");
        for groups in ["", "nonsense", "0::/\n", "3:cpuset:/x\n"] {
            assert_eq!(cgroup_limit_under(root.path(), groups), None, "{groups}");
            assert_eq!(cgroup_available_under(root.path(), groups), None, "{groups}");
        }
    }

    #[test]
    fn memory_lines_of_proc_are_read_in_bytes() {
        assert_eq!(kib_field("MemTotal:       24 kB\n", "MemTotal:"), Some(24 * 1024));
        for damaged in ["MemTotal: 24", "MemTotal: x kB", "", "MemTotal: 99999999999999999999 kB"] {
            assert_eq!(kib_field(damaged, "MemTotal:"), None, "{damaged}");
        }
    }
}
