//! The one place that names the operating system.
//!
//! # Soundness
//! *Type*, *initialisation*: advice changes neither; anonymous pages given back read as zeros or as what they held, and
//! the buffer that macOS fills is plain integers, zeroed first. *Lifetime*, *bounds*: the range is a borrowed slice, the
//! buffer a local of the type that the call names. *Threads*: the slice is exclusive; the other calls are thread-safe.
#![allow(unsafe_code)]

use std::{fs::File, io, path::Path};

/// Gives whole pages inside `bytes` back to the system. The mapping stays; the bytes become unspecified.
pub(crate) fn release_pages(bytes: &mut [u8]) -> io::Result<()> {
    let pages = whole_pages(bytes);
    if pages.is_empty() { Ok(()) } else { advise_unneeded(pages) }
}

/// Tells the system that pages given back are about to be used again. Only macOS wants to know, to count them.
pub(crate) fn reuse_pages(bytes: &mut [u8]) -> io::Result<()> {
    let pages = whole_pages(bytes);
    if pages.is_empty() { Ok(()) } else { advise_needed(pages) }
}

fn whole_pages(bytes: &mut [u8]) -> &mut [u8] {
    let page = rustix::param::page_size();
    let skipped = bytes.as_ptr().align_offset(page).min(bytes.len());
    let pages = &mut bytes[skipped..];
    let len = pages.len() / page * page;
    &mut pages[..len]
}

#[cfg(target_os = "linux")]
fn advise_unneeded(pages: &mut [u8]) -> io::Result<()> {
    let advice = rustix::mm::Advice::LinuxDontNeed;
    // SAFETY: the range lies inside an exclusive slice of a private mapping, so that nobody sees its contents change.
    Ok(unsafe { rustix::mm::madvise(pages.as_mut_ptr().cast(), pages.len(), advice) }?)
}

/// macOS keeps pages that are merely "not needed"; reusable ones leave the footprint. Not run yet, only compiled.
#[cfg(target_os = "macos")]
fn advise_unneeded(pages: &mut [u8]) -> io::Result<()> {
    advise(pages, libc::MADV_FREE_REUSABLE)
}

#[cfg(target_os = "macos")]
fn advise_needed(pages: &mut [u8]) -> io::Result<()> {
    advise(pages, libc::MADV_FREE_REUSE)
}

#[cfg(target_os = "macos")]
fn advise(pages: &mut [u8], advice: libc::c_int) -> io::Result<()> {
    // SAFETY: as on Linux; both kinds of advice leave a page as it is or full of zeros.
    let status = unsafe { libc::madvise(pages.as_mut_ptr().cast(), pages.len(), advice) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn advise_unneeded(_: &mut [u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "macos"))]
fn advise_needed(_: &mut [u8]) -> io::Result<()> {
    Ok(())
}

/// Locks a file for this handle alone until it is closed; `false` if another handle has it. The system releases it when a
/// process dies.
#[cfg(unix)]
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(unix))]
pub(crate) fn try_lock(_: &File) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Bytes that an ordinary user may still write on the file system of `directory`; `None` where the system does not say.
#[cfg(unix)]
pub(crate) fn free_bytes(directory: &Path) -> io::Result<Option<u64>> {
    let stats = rustix::fs::statvfs(directory)?;
    Ok(stats.f_bavail.checked_mul(stats.f_frsize))
}

#[cfg(not(unix))]
pub(crate) fn free_bytes(_: &Path) -> io::Result<Option<u64>> {
    Ok(None)
}

/// Opens a file for reads that pass the page cache by, at offsets, lengths and addresses that are multiples of 4096.
///
/// Some file systems refuse at once, others with the first read.
#[cfg(target_os = "linux")]
pub(crate) fn open_direct(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Opens a file for reads that leave nothing in the page cache. Not run yet, only compiled.
#[cfg(target_os = "macos")]
pub(crate) fn open_direct(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn open_direct(_: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Tells the system that it need not keep these bytes of a file in the page cache. Advice: errors are not told.
#[cfg(target_os = "linux")]
pub(crate) fn forget_pages(file: &File, offset_bytes: u64, len_bytes: u64) {
    if let Some(len) = std::num::NonZeroU64::new(len_bytes) {
        let _ = rustix::fs::fadvise(file, offset_bytes, Some(len), rustix::fs::Advice::DontNeed);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn forget_pages(_: &File, _: u64, _: u64) {}

/// Makes a renaming of `path` last: flushes the directory it lies in, where directories can be flushed.
pub(crate) fn sync_directory_of(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory_of(path))?.sync_all() } else { Ok(()) }
}

/// The directory that `path` lies in.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Memory of the machine in bytes.
#[cfg(target_os = "linux")]
pub(crate) fn physical_memory_bytes() -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
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
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    cgroup_limit_under(Path::new("/sys/fs/cgroup"), &groups)
}

/// The smallest limit of the groups named in `groups` (the text of /proc/self/cgroup) and of their ancestors.
///
/// Version 2 has one hierarchy and `memory.max`; version 1 has one for memory and `memory.limit_in_bytes`. Inside a
/// container the named group may not be visible, but the root of what is visible is then the container's own.
fn cgroup_limit_under(root: &Path, groups: &str) -> Option<u64> {
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, group) = (fields.next()?, fields.next()?);
            let group = Path::new(group.trim_start_matches('/'));
            if controllers.is_empty() {
                smallest_limit(root, group, "memory.max")
            } else if controllers.split(',').any(|name| name == "memory") {
                smallest_limit(&root.join("memory"), group, "memory.limit_in_bytes")
            } else {
                None
            }
        })
        .min()
}

fn smallest_limit(root: &Path, group: &Path, file: &str) -> Option<u64> {
    group
        .ancestors()
        .filter_map(|ancestor| std::fs::read_to_string(root.join(ancestor).join(file)).ok())
        .filter_map(|text| text.trim().parse().ok()) // "max" is no limit
        .min()
}

/// Memory that this process occupies, as the system counts it: resident pages on Linux, the footprint on macOS.
#[cfg(target_os = "linux")]
pub(crate) fn footprint_bytes() -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// The largest that [`footprint_bytes`] has been since the process began.
#[cfg(target_os = "linux")]
pub(crate) fn peak_footprint_bytes() -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
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
#[cfg(target_os = "linux")]
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
    fn no_group_and_no_limit_mean_no_limit() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "memory.max", "max\n");
        for groups in ["", "nonsense", "0::/\n", "3:cpuset:/x\n"] {
            assert_eq!(cgroup_limit_under(root.path(), groups), None, "{groups}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_footprint_grows_when_memory_is_touched_and_shrinks_when_it_is_given_back() {
        const BYTES: usize = 256 << 20;
        let before = footprint_bytes().unwrap();
        let mut map = memmap2::MmapMut::map_anon(BYTES).unwrap();
        map.fill(1);
        let touched = footprint_bytes().unwrap();
        assert!(touched >= before + BYTES as u64 / 2, "{before} {touched}");
        assert!(peak_footprint_bytes().unwrap() >= touched.min(before + BYTES as u64 / 2));
        release_pages(&mut map).unwrap();
        assert!(footprint_bytes().unwrap() <= touched - BYTES as u64 / 2);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_lines_of_proc_are_read_in_bytes() {
        assert_eq!(kib_field("MemTotal:       24 kB\n", "MemTotal:"), Some(24 * 1024));
        for damaged in ["MemTotal: 24", "MemTotal: x kB", "", "MemTotal: 99999999999999999999 kB"] {
            assert_eq!(kib_field(damaged, "MemTotal:"), None, "{damaged}");
        }
    }
}
