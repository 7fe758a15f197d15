//! The first page of a slab, and its table of checksums.

use std::path::Path;

use super::error::SlabError;
use crate::{formats::bytes_checksum, memory::SLOT_ALIGNMENT_BYTES};

/// Manifest, table and records begin on this boundary, and the head takes one such page.
pub(super) const PAGE_BYTES: u64 = SLOT_ALIGNMENT_BYTES;

/// Records that a slab may have.
pub(crate) const MAX_RECORDS: u64 = 1 << 18;

/// No manifest may be longer than this.
const MAX_MANIFEST_BYTES: u64 = 1 << 24;

/// No slab may be longer than this: [`MAX_RECORDS`] records of the largest slots would be.
const MAX_FILE_BYTES: u64 = 1 << 50;

/// The version that this library writes and reads.
const VERSION: u32 = 1;

/// How a slab begins.
const FINISHED: [u8; 8] = *b"\x89SXSLAB\n";

/// How one begins that is being written.
const UNFINISHED: [u8; 8] = *b"\x89SXPART\n";

/// Whether a slab begins with these bytes, finished or not.
pub(crate) fn is_slab(first: &[u8]) -> bool {
    first.starts_with(&FINISHED) || first.starts_with(&UNFINISHED)
}

/// `bytes` rounded up to whole pages.
const fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES
}

/// `bytes` with the zeros that fill their last page.
pub(crate) fn whole_pages(bytes: &[u8]) -> Vec<u8> {
    let mut whole = bytes.to_vec();
    let len = usize::try_from(pages(bytes.len() as u64)).expect("less than a page more than lies in memory");
    whole.resize(len, 0);
    whole
}

/// Whether a slab is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadState {
    /// Everything the head describes is there.
    Finished,
    /// Some records may be missing; the table's checksum means nothing.
    Unfinished,
}

/// What the first page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) state: HeadState,
    pub(crate) manifest_bytes: u64,
    pub(crate) manifest_checksum: u64,
    pub(crate) records: u64,
    pub(crate) table_checksum: u64,
    pub(crate) file_bytes: u64,
}

impl Head {
    /// Bytes of the head itself; zeros fill the page.
    pub(crate) const BYTES: usize = 64;

    /// Reads a head and checks it: magic, version, checksum, and every number against its limit.
    pub(crate) fn parse(path: &Path, bytes: &[u8; Self::BYTES]) -> Result<Self, SlabError> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let state = match bytes[..8].try_into().expect("8 bytes") {
            FINISHED => HeadState::Finished,
            UNFINISHED => HeadState::Unfinished,
            _ => return Err(SlabError::NotASlab { path: path.into() }),
        };
        // Magic and version come first in every version; what follows may change, the checksum's place included.
        let found = u32::from_le_bytes(bytes[8..12].try_into().expect("4 bytes"));
        if found != VERSION {
            return Err(SlabError::Version { path: path.into(), found, known: VERSION });
        }
        let (expected, found) = (number(56), bytes_checksum(&bytes[..56]));
        if expected != found {
            return Err(SlabError::Checksum { path: path.into(), what: "head", expected, found });
        }
        let head = Self {
            state,
            manifest_bytes: number(16),
            manifest_checksum: number(24),
            records: number(32),
            table_checksum: number(40),
            file_bytes: number(48),
        };
        for (what, found, limit) in [
            ("bytes of manifest", head.manifest_bytes, MAX_MANIFEST_BYTES),
            ("records", head.records, MAX_RECORDS),
            ("bytes", head.file_bytes, MAX_FILE_BYTES),
        ] {
            head.check_limit(path, what, found, limit)?;
        }
        Ok(head)
    }

    /// A head for a manifest and its records, as packing begins with it.
    pub(crate) fn new(
        path: &Path,
        manifest: &[u8],
        records: u64,
        record_bytes: u64,
    ) -> Result<Self, SlabError> {
        let mut head = Self {
            state: HeadState::Unfinished,
            manifest_bytes: manifest.len() as u64,
            manifest_checksum: bytes_checksum(manifest),
            records,
            table_checksum: 0,
            file_bytes: 0,
        };
        head.check_limit(path, "bytes of manifest", head.manifest_bytes, MAX_MANIFEST_BYTES)?;
        head.check_limit(path, "records", records, MAX_RECORDS)?;
        head.file_bytes = head.records_offset_bytes() + record_bytes;
        head.check_limit(path, "bytes", head.file_bytes, MAX_FILE_BYTES)?;
        Ok(head)
    }

    fn check_limit(&self, path: &Path, what: &'static str, found: u64, limit: u64) -> Result<(), SlabError> {
        if found > limit {
            return Err(SlabError::Count { path: path.into(), what, found, limit });
        }
        Ok(())
    }

    /// As it is written.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(match self.state {
            HeadState::Finished => &FINISHED,
            HeadState::Unfinished => &UNFINISHED,
        });
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let numbers =
            [self.manifest_bytes, self.manifest_checksum, self.records, self.table_checksum, self.file_bytes];
        for (at, number) in (16..).step_by(8).zip(numbers) {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let checksum = bytes_checksum(&bytes[..56]);
        bytes[56..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Where the manifest begins.
    pub(crate) const MANIFEST_OFFSET_BYTES: u64 = PAGE_BYTES;

    /// Where the table of checksums begins.
    pub(crate) const fn table_offset_bytes(&self) -> u64 {
        Self::MANIFEST_OFFSET_BYTES + pages(self.manifest_bytes)
    }

    /// Where the first record begins.
    pub(crate) const fn records_offset_bytes(&self) -> u64 {
        self.table_offset_bytes() + pages(self.records * Table::ENTRY_BYTES)
    }
}

/// The checksum of every record, in the order of the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table(pub(crate) Vec<u64>);

impl Table {
    /// Bytes of one entry: a u64, little-endian.
    pub(crate) const ENTRY_BYTES: u64 = 8;

    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let entries =
            bytes.chunks_exact(8).map(|entry| u64::from_le_bytes(entry.try_into().expect("8 bytes")));
        Self(entries.collect())
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|entry| entry.to_le_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let mut head = Head::new(Path::new("x"), b"{}", 3, 3 * PAGE_BYTES).unwrap();
        head.state = HeadState::Finished;
        head
    }

    #[test]
    fn a_head_reads_as_it_was_written() {
        let mut head = head();
        assert_eq!(head.file_bytes, 6 * PAGE_BYTES);
        assert_eq!(Head::parse(Path::new("x"), &head.to_bytes()).unwrap(), head);
        head.state = HeadState::Unfinished;
        assert_eq!(Head::parse(Path::new("x"), &head.to_bytes()).unwrap(), head);
    }

    #[test]
    fn every_bit_of_a_head_is_covered() {
        let good = head().to_bytes();
        for bit in 0..good.len() * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Head::parse(Path::new("x"), &bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn counts_beyond_their_limits_are_refused_though_the_checksum_fits() {
        let refusal = |head: Head| Head::parse(Path::new("x"), &head.to_bytes()).unwrap_err().to_string();
        let many = Head { records: MAX_RECORDS + 1, ..head() };
        assert_eq!(refusal(many), "x has 262145 records, and 262144 is the limit");
        let long = Head { manifest_bytes: u64::MAX, ..head() };
        assert_eq!(refusal(long), "x has 18446744073709551615 bytes of manifest, and 16777216 is the limit");
        let vast = Head { file_bytes: u64::MAX, ..head() };
        assert_eq!(refusal(vast), "x has 18446744073709551615 bytes, and 1125899906842624 is the limit");
    }
}
