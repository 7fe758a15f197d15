//! Which pages of a file are in memory.

use std::{fs::File, path::Path};

use memmap2::Mmap;
use rustix::fs::{Advice, fadvise};

/// Has the system drop a file from the page cache, and proves that it did.
pub(crate) fn make_cold(path: &Path) {
    for _ in 0..20 {
        let file = File::open(path).expect("the file opens");
        file.sync_all().expect("the file is flushed");
        fadvise(&file, 0, None, Advice::DontNeed).expect("advice is taken");
        drop(file);
        if resident_share(path) < 0.01 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{} of {} stay in memory", resident_share(path), path.display());
}

/// Reads a file into the page cache, and proves that it is there.
pub(crate) fn make_warm(path: &Path) {
    for _ in 0..20 {
        std::io::copy(&mut File::open(path).expect("the file opens"), &mut std::io::sink())
            .expect("it can be read");
        if resident_share(path) > 0.99 {
            return;
        }
    }
    panic!("only {} of {} stays in memory", resident_share(path), path.display());
}

/// The part of a file that is in memory.
#[expect(unsafe_code, reason = "mincore has no safe form")]
fn resident_share(path: &Path) -> f64 {
    let file = File::open(path).expect("the file opens");
    // SAFETY: the file is this bench's own; nobody changes it, and the map is not read.
    let map = unsafe { Mmap::map(&file) }.expect("the file can be mapped");
    let pages = map.len().div_ceil(rustix::param::page_size());
    let mut resident = vec![0u8; pages];
    // SAFETY: the range is the map, and the vector has a byte for each of its pages.
    let status = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), resident.as_mut_ptr()) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    resident.iter().filter(|&&page| page & 1 == 1).count() as f64 / pages as f64
}
