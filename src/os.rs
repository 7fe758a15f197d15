//! The one place that names the operating system.
//!
//! # Soundness
//! *Type*, *initialisation*: advice changes neither; anonymous pages given back read as zeros or as what they held, and
//! the buffers that macOS fills are plain integers, zeroed first. *Lifetime*, *bounds*: the range is a borrowed slice, the
//! buffers locals of the types that the calls name. *Threads*: the slice is exclusive; the other calls are thread-safe.
#![allow(unsafe_code)]

mod memory;

use std::{fs::File, io, path::Path};

pub(crate) use memory::{
    available_memory_bytes, cgroup_limit_bytes, footprint_bytes, memory_pressure, peak_footprint_bytes,
    physical_memory_bytes,
};

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

/// Keeps the pages of `bytes` in memory once they have been touched (macOS: from now on) until [`unwire_pages`].
#[cfg(unix)]
pub(crate) fn wire_pages(bytes: &mut [u8]) -> io::Result<()> {
    let (start, len) = (bytes.as_mut_ptr().cast(), bytes.len());
    #[cfg(target_os = "linux")]
    // SAFETY: the range is an exclusive slice; wiring changes no byte of it.
    return Ok(unsafe { rustix::mm::mlock_with(start, len, rustix::mm::MlockFlags::ONFAULT) }?);
    #[cfg(not(target_os = "linux"))]
    // SAFETY: as above.
    Ok(unsafe { rustix::mm::mlock(start, len) }?)
}

/// Undoes [`wire_pages`].
#[cfg(unix)]
pub(crate) fn unwire_pages(bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: the range is an exclusive slice; the call changes no byte of it.
    Ok(unsafe { rustix::mm::munlock(bytes.as_mut_ptr().cast(), bytes.len()) }?)
}

#[cfg(not(unix))]
pub(crate) fn wire_pages(_: &mut [u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
pub(crate) fn unwire_pages(_: &mut [u8]) -> io::Result<()> {
    Ok(())
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

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
}
