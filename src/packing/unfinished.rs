//! The unfinished slab beside its path: opened by one packer at a time, gone on with if it fits.

use std::{
    fs::{File, Metadata, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use super::{disk::Disk as _, draft::Draft, error::PackError, origin::files_of};
use crate::{
    formats::{Head, Table, is_slab},
    os,
    sources::ExpertSource,
};

/// What the name of an unfinished slab ends with.
const SUFFIX: &str = ".partial";

/// How often a file that is renamed while it is opened is opened again.
const MAX_ATTEMPTS: u32 = 10;

/// An unfinished slab that this packer alone has open for writing.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub(super) path: PathBuf,
    pub(super) file: File,
    metadata: Metadata,
}

impl Unfinished {
    /// Opens or makes the unfinished slab for a slab at `path`, and locks it.
    pub(super) fn open(path: &Path) -> Result<Self, PackError> {
        let mut name = path.as_os_str().to_owned();
        name.push(SUFFIX);
        let path = PathBuf::from(name);
        let error = |what, source| PackError::File { what, path: path.clone(), source };
        for _ in 0..MAX_ATTEMPTS {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(|source| error("open", source))?;
            if !os::try_lock(&file).map_err(|source| error("lock", source))? {
                return Err(PackError::Busy { path });
            }
            let metadata = file.metadata().map_err(|source| error("open", source))?;
            // Whoever had the lock before may have renamed the file to the finished slab: that one must not be touched.
            match std::fs::metadata(&path) {
                Ok(named) if same_file(&named, &metadata) => return Ok(Self { path, file, metadata }),
                Ok(_) => {}
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(error("open", source)),
            }
        }
        Err(PackError::Busy { path })
    }

    /// The table of what has been written, if this was begun as `draft`; `None` if there is nothing to go on with.
    pub(super) fn begun(&self, draft: &Draft, force: bool) -> Result<Option<Table>, PackError> {
        let mut head = [0; Head::BYTES];
        if self.metadata.len() == 0 || self.read(&mut head, 0).is_ok() && head == [0; Head::BYTES] {
            return Ok(None); // Killed, or out of power, before the head was written.
        }
        match self.table_of(draft, &head) {
            Some(table) => Ok(Some(table)),
            None if force => Ok(None),
            None => Err(PackError::Foreign { path: self.path.clone() }),
        }
    }

    /// A head of either state will do: a packer may have been killed between finishing and renaming.
    fn table_of(&self, draft: &Draft, head: &[u8; Head::BYTES]) -> Option<Table> {
        if !is_slab(head) {
            return None;
        }
        let head = Head::parse(&self.path, head).ok()?;
        let same = head.manifest_checksum == draft.head.manifest_checksum
            && head.manifest_bytes == draft.head.manifest_bytes
            && head.records == draft.head.records
            && head.file_bytes == draft.head.file_bytes
            && self.metadata.len() == head.file_bytes;
        if !same {
            return None;
        }
        let mut manifest = vec![0; draft.manifest.len()];
        self.read(&mut manifest, Head::MANIFEST_OFFSET_BYTES).ok()?;
        if manifest != draft.manifest {
            return None;
        }
        let mut table = vec![0; usize::try_from(head.records * Table::ENTRY_BYTES).ok()?];
        self.read(&mut table, head.table_offset_bytes()).ok()?;
        Some(Table::parse(&table))
    }

    fn read(&self, bytes: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset_bytes)
    }

    /// How much room it takes already.
    #[cfg(unix)]
    pub(super) fn allocated_bytes(&self) -> u64 {
        std::os::unix::fs::MetadataExt::blocks(&self.metadata).saturating_mul(512)
    }

    #[cfg(not(unix))]
    pub(super) fn allocated_bytes(&self) -> u64 {
        0
    }
}

#[cfg(unix)]
fn same_file(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn same_file(_: &Metadata, _: &Metadata) -> bool {
    true
}

/// Refuses a source of which a file has changed since it was opened.
pub(super) fn check_unchanged(source: &dyn ExpertSource, draft: &Draft) -> Result<(), PackError> {
    for file in files_of(source, &draft.layers) {
        if let Some(change) = source.changed(file) {
            return Err(PackError::Changed { path: source.path(file).into(), change });
        }
    }
    Ok(())
}
