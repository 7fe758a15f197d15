//! The one place that names the operating system.
//!
//! # Soundness
//! *Type, initialisation*: advice changes neither; anonymous pages given back read as zeros or as what they held.
//! *Lifetime, bounds*: the range is a borrowed slice. *Threads*: the slice is exclusive.
#![allow(unsafe_code)]

use std::io;

/// Gives whole pages inside `bytes` back to the system. The mapping stays; the bytes become unspecified.
pub(crate) fn release_pages(bytes: &mut [u8]) -> io::Result<()> {
    let page = rustix::param::page_size();
    let skipped = bytes.as_ptr().align_offset(page).min(bytes.len());
    let pages = &mut bytes[skipped..];
    let len = pages.len() / page * page;
    if len == 0 {
        return Ok(());
    }
    #[cfg(target_os = "linux")]
    let advice = rustix::mm::Advice::LinuxDontNeed;
    #[cfg(not(target_os = "linux"))]
    let advice = rustix::mm::Advice::DontNeed;
    // SAFETY: the range lies inside an exclusive slice of a private mapping, so that nobody sees its contents change.
    unsafe { rustix::mm::madvise(pages.as_mut_ptr().cast(), len, advice) }?;
    Ok(())
}
