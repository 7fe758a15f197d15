//! Reading against what drive, page cache and processor can do. On Linux: that pages are cold is shown there by `mincore`, after
//! `posix_fadvise`, and macOS has no like of the latter.

#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod linux;

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("this bench runs on Linux, where pages can be made cold, and shown to be");
}
