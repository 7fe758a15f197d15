//! How experts are read.

use std::time::Duration;

/// Whether reads go through the system's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadMode {
    /// Through it: what the system has kept is not read from the drive again, and what is read pushes other files out.
    #[default]
    Buffered,
    /// Past it (`O_DIRECT` on Linux, `F_NOCACHE` on macOS), where offset, length and address allow it: every expert of a
    /// slab. What does not allow it, and drives that refuse, are read through the page cache and what was read is dropped
    /// from it; [`DriveTelemetry`](crate::DriveTelemetry) counts these reads.
    Direct,
}

/// Whether the number of readers of a drive and the size of their pieces are measured when a source is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Calibration {
    /// No: they are as the options say.
    Off,
    /// Yes, unless a file beside the source knows them from an earlier time: `NAME.drive.json` beside the first file on each
    /// drive, believed for the same drive and an unchanged file. That it cannot be written is no error.
    #[default]
    Kept,
    /// Yes, every time; nothing is written.
    Afresh,
}

/// How experts are read. None of it changes a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Through the page cache or past it. Default: through it.
    pub mode: ReadMode,
    /// About the most that one reader takes at a time, in bytes; where little is queued, readers take less, down to 256 KiB,
    /// so that one expert keeps all of them busy. Default 4 MiB. Between 4 KiB and 1 GiB.
    pub piece_bytes: u64,
    /// Whether drives are measured: for a second or so each, with up to 32 MiB of memory for the moment, by direct reads where
    /// the drive takes them. What is found is used instead of `piece_bytes` and
    /// [`ManagerOptions::readers`](crate::ManagerOptions::readers). Drives with less than 1 GiB of a source's experts are not
    /// measured. Default: yes, and kept in a file.
    pub calibration: Calibration,
    /// A request that has waited so long for an expert warns, by the `log` crate, of the slowest read under way, once for
    /// each read. Default 5 s.
    pub stall_warning: Duration,
    /// A request that has waited so long for an expert, with none of its own landing, fails with
    /// [`LoadError::Stalled`](crate::LoadError::Stalled); closing waits as long for readers that hang and then leaves them
    /// behind. A slot whose read has not returned is not used again before it does. Default: none; requests wait.
    pub stall_limit: Option<Duration>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            mode: ReadMode::Buffered,
            piece_bytes: 4 << 20,
            calibration: Calibration::default(),
            stall_warning: Duration::from_secs(5),
            stall_limit: None,
        }
    }
}

/// Who a read is for. Reads for those that wait are begun before all others, those prefetched before hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadPriority {
    /// Somebody waits for it.
    Demand,
    /// It will be wanted: its request is known.
    Prefetch,
    /// It may be wanted.
    Hint,
}
