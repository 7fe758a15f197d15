//! The open files of a source, read by position from any thread.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use crate::ids::FileId;

/// One open file.
#[derive(Debug)]
pub(super) struct SourceFile {
    path: PathBuf,
    file: File,
    len_bytes: u64,
}

impl SourceFile {
    /// Opens a file and notes its length.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let file = File::open(&path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Self { path, file, len_bytes: metadata.len() })
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
