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

/// How experts are read. None of it changes a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Through the page cache or past it. Default: through it.
    pub mode: ReadMode,
    /// About the most that one reader takes at a time, in bytes; where little is queued, readers take less, down to 256 KiB,
    /// so that one expert keeps all of them busy. Default 4 MiB. At least 4096.
    pub piece_bytes: u64,
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
