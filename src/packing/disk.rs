//! The file that is being written. A trait, so that a test can make any write fail.

use std::{fs::File, io};

/// A file written and read by position, from any thread.
pub(super) trait Disk: Sync {
    /// Makes the file so long; what is new reads as zeros.
    fn set_len(&self, len_bytes: u64) -> io::Result<()>;

    /// Writes all of `bytes`.
    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()>;

    /// Fills `bytes`; an error if the file ends first.
    fn read_exact_at(&self, bytes: &mut [u8], offset_bytes: u64) -> io::Result<()>;

    /// Makes what was written last.
    fn sync(&self) -> io::Result<()>;
}

impl Disk for File {
    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        Self::set_len(self, len_bytes)
    }

    #[cfg(unix)]
    fn write_all_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, offset_bytes)
    }

    #[cfg(not(unix))]
    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[cfg(unix)]
    fn read_exact_at(&self, bytes: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, bytes, offset_bytes)
    }

    #[cfg(not(unix))]
    fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}
