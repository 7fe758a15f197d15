//! Writers that fail: whatever write is the last, the path names what it named before, and the next run makes the slab.

use std::{
    fs::{self, File},
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use super::{
    disk::Disk,
    error::PackError,
    pack::{PackOptions, PackProgress, PackReport, pack, pack_through},
};
use crate::{
    sources::{ExpertSource, open_source},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// A file whose n-th call that changes anything fails, and every later one: power is gone, or the drive is full.
struct Failing {
    file: File,
    calls_left: AtomicU64,
    /// Whether the write that fails is half done.
    torn: bool,
}

impl Failing {
    fn spend(&self) -> io::Result<()> {
        let spent = self.calls_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        spent.map(|_| ()).map_err(|_| io::ErrorKind::StorageFull.into())
    }
}

impl Disk for Failing {
    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.spend()?;
        self.file.set_len(len_bytes)
    }

    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        if let Err(error) = self.spend() {
            if self.torn {
                self.file.write_all_at(&bytes[..bytes.len() / 2], offset_bytes)?;
            }
            return Err(error);
        }
        Disk::write_all_at(&self.file, bytes, offset_bytes)
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        Disk::read_exact_at(&self.file, bytes, offset_bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.spend()?;
        self.file.sync()
    }
}

/// Two lengths, manifest, head, 15 records with their entries, table, flush, head, flush: counted from 0.
const LAST_CALL: u64 = 37;

fn source() -> Box<dyn ExpertSource> {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/colibri-q4-mtp-q8");
    open_source(fixture).unwrap()
}

fn go_on(_: PackProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// One record at a time, so that the calls come in one order.
fn options() -> PackOptions {
    PackOptions { force: true, threads: 1, ..PackOptions::default() }
}

fn pack_failing(path: &Path, calls: u64, torn: bool) -> Result<PackReport, PackError> {
    let wrap = |file| Failing { file, calls_left: AtomicU64::new(calls), torn };
    pack_through(&*source(), path, &options(), wrap, go_on)
}

/// An old slab's path, and what a whole pack makes.
fn scene(directory: &Path) -> (PathBuf, Vec<u8>) {
    let (path, whole) = (directory.join("x.slab"), directory.join("whole.slab"));
    fs::write(&path, "the old slab").unwrap();
    pack(&*source(), &whole, &PackOptions::default(), go_on).unwrap();
    (path, fs::read(whole).unwrap())
}

#[test]
fn whichever_write_fails_the_old_slab_stays_and_the_next_run_makes_the_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let (path, whole) = scene(directory.path());
    for torn in [false, true] {
        let mut calls = 0;
        loop {
            fs::write(&path, "the old slab").unwrap();
            let outcome = pack_failing(&path, calls, torn);
            if outcome.is_ok() {
                break;
            }
            let Err(PackError::Write { .. } | PackError::File { .. }) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!(fs::read(&path).unwrap(), b"the old slab", "call {calls}");
            // It is whole before the last flush: what it says is true, if the flush before that one has kept its word.
            let partial = open_source(directory.path().join("x.slab.partial"));
            assert_eq!(partial.is_ok(), calls == LAST_CALL, "call {calls}");
            let resumed = pack(&*source(), &path, &options(), go_on).unwrap();
            assert!(fs::read(&path).unwrap() == whole, "call {calls}, torn {torn}, {resumed:?}");
            calls += 1;
        }
        assert_eq!(calls, LAST_CALL + 1);
        assert!(fs::read(&path).unwrap() == whole);
    }
}

#[test]
fn a_run_that_fails_again_and_again_comes_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let (path, whole) = scene(directory.path());
    let mut runs = 0;
    while pack_failing(&path, 8, true).is_err() {
        runs += 1;
        assert!(runs < 20, "no run gets further than the one before");
        assert_eq!(fs::read(&path).unwrap(), b"the old slab");
    }
    assert!(runs > 3 && fs::read(&path).unwrap() == whole);
}

#[test]
fn a_packer_killed_between_finishing_and_renaming_only_renames() {
    let directory = tempfile::tempdir().unwrap();
    let (path, whole) = scene(directory.path());
    fs::write(directory.path().join("x.slab.partial"), &whole).unwrap();
    let report = pack(&*source(), &path, &options(), go_on).unwrap();
    assert_eq!(report.kept_records, 15);
    assert!(fs::read(&path).unwrap() == whole);
}
