//! The open files of a source, read by position from any thread.

use std::{
    fmt,
    fs::{File, Metadata},
    io,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::SystemTime,
};

use crate::{ids::FileId, os};

/// How a file differs from what it was when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileChange {
    /// It was cut, or something was appended.
    Length {
        /// Its length when it was opened.
        opened_bytes: u64,
        /// Its length now.
        now_bytes: u64,
    },
    /// It was written to.
    Written,
    /// Its path names another file now. The open one still holds what it held.
    Replaced,
    /// Its path names nothing now. The open one still holds what it held.
    Removed,
}

impl fmt::Display for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { opened_bytes, now_bytes } => {
                write!(f, "it has {now_bytes} B now, and had {opened_bytes} B when it was opened")
            }
            Self::Written => f.write_str("it was written to since it was opened"),
            Self::Replaced => f.write_str("its path names another file since it was opened"),
            Self::Removed => f.write_str("it was removed since it was opened"),
        }
    }
}

/// One open file.
#[derive(Debug)]
pub(super) struct SourceFile {
    path: PathBuf,
    file: File,
    len_bytes: u64,
    modified: Option<SystemTime>,
    identity: Option<(u64, u64)>,
    /// The same file, opened for direct reads when the first is asked for; or why it cannot be.
    direct: OnceLock<Result<File, io::ErrorKind>>,
}

impl SourceFile {
    /// Opens a file and notes its length.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let file = File::open(&path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let (modified, identity) = (metadata.modified().ok(), identity(&metadata));
        Ok(Self { path, file, len_bytes: metadata.len(), modified, identity, direct: OnceLock::new() })
    }

    /// How it differs from what it was when it was opened, as far as the system tells. Asks the system twice.
    pub(super) fn changed(&self) -> Option<FileChange> {
        if let Ok(now) = self.file.metadata() {
            if now.len() != self.len_bytes {
                let (opened_bytes, now_bytes) = (self.len_bytes, now.len());
                return Some(FileChange::Length { opened_bytes, now_bytes });
            }
            if now.modified().ok() != self.modified {
                return Some(FileChange::Written);
            }
        }
        match std::fs::metadata(&self.path) {
            Ok(named) if identity(&named) != self.identity => Some(FileChange::Replaced),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(FileChange::Removed),
            _ => None,
        }
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How long it was when it was opened.
    pub(super) const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// One positional read; 0 at the end of the file, also when it was cut after it was opened.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        read_at(&self.file, buffer, offset_bytes)
    }

    /// One positional read past the page cache, as [`ExpertSource::read_direct_at`](super::ExpertSource::read_direct_at)
    /// has it.
    pub(super) fn read_direct_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        match self.direct.get_or_init(|| self.open_direct()) {
            Ok(file) => read_at(file, buffer, offset_bytes),
            Err(kind) => Err((*kind).into()),
        }
    }

    /// Whatever keeps it from being opened so, it can still be read: hence never another kind than unsupported.
    fn open_direct(&self) -> Result<File, io::ErrorKind> {
        let direct = os::open_direct(&self.path).map_err(|_| io::ErrorKind::Unsupported)?;
        let same = direct.metadata().is_ok_and(|metadata| identity(&metadata) == self.identity);
        if same { Ok(direct) } else { Err(io::ErrorKind::Unsupported) }
    }

    /// Lets the system drop bytes from the page cache.
    pub(super) fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        os::forget_pages(&self.file, offset_bytes, len_bytes);
    }

    /// The number of the drive it lies on; 0 where the system has no such thing.
    pub(super) fn drive(&self) -> u64 {
        self.identity.map_or(0, |(drive, _)| drive)
    }

    /// Fills `buffer`, repeating short and interrupted reads.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends first, or what the system answers.
    pub(super) fn read_exact_at(&self, mut buffer: &mut [u8], mut offset_bytes: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, offset_bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buffer = &mut buffer[read..];
                    offset_bytes += read as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// What tells a file from every other one, where the system has such a thing.
#[cfg(unix)]
fn identity(metadata: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn identity(_: &Metadata) -> Option<(u64, u64)> {
    None
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset_bytes)
}

#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset_bytes)
}

#[cfg(not(any(unix, windows)))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this platform has no positional reads"))
}

/// All files of a source, numbered in the order they were opened.
#[derive(Debug, Default)]
pub(super) struct SourceFiles(Vec<SourceFile>);

impl SourceFiles {
    /// Adds a file, which gets the next number.
    pub(super) fn push(&mut self, file: SourceFile) -> FileId {
        let id = u32::try_from(self.0.len()).expect("fewer files than MAX_FILES");
        self.0.push(file);
        FileId(id)
    }

    /// The file with a number that came from here.
    ///
    /// # Panics
    /// If there is no such file.
    pub(super) fn get(&self, file: FileId) -> &SourceFile {
        self.0.get(file.index()).unwrap_or_else(|| panic!("{file} of a source with {} files", self.0.len()))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Writes a file so that its path names the old contents or the new, never a part: written beside it, flushed, renamed.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    let written = File::create(&beside).and_then(|mut file| {
        io::Write::write_all(&mut file, bytes)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| std::fs::rename(&beside, path));
    if let Err(error) = renamed {
        let _ = std::fs::remove_file(&beside);
        return Err(error);
    }
    os::sync_directory_of(path)
}
