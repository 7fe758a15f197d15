//! A source together with second copies of its files on other drives.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    ExpertSource, FileChange, Segment, SparseLayer, Tier,
    error::SourceError,
    files::{SourceFile, SourceFiles},
    files_with_experts,
};
use crate::{
    ids::{ExpertKey, FileId},
    sync::Arc,
};

/// How much of both ends of a file is compared with its copy: the header of any checkpoint's shard, and more.
const COMPARED_BYTES: u64 = 1 << 20;

/// A source that is read from two places at once, so that two drives add up.
///
/// Readers of both drives take what is to be read as fast as they can, so that each gets the share that its rate allows. When
/// a copy cannot be read, the first is used instead, with one warning; [`DriveTelemetry`](crate::DriveTelemetry) counts it.
/// A copy on the drive of the first one is never read.
#[derive(Debug)]
pub struct Mirrored {
    inner: Arc<dyn ExpertSource>,
    copies: SourceFiles,
    /// For each file of the source, its copy's number among the copies.
    copy_of: Vec<Option<FileId>>,
}

impl Mirrored {
    /// Looks in `directories`, in order, for a file of the same name for every file of `source` that holds experts. Not
    /// every file needs a copy. Copies must have the same length and the same first and last MiB; this reads them.
    ///
    /// # Errors
    /// No copy of any file; a copy that cannot be read or differs; a file that has changed since `source` was opened.
    pub fn open<P: AsRef<Path>>(
        source: Arc<dyn ExpertSource>,
        directories: &[P],
    ) -> Result<Self, SourceError> {
        let (mut copies, mut copy_of) = (SourceFiles::default(), Vec::new());
        for file in files_with_experts(&*source) {
            copy_of.resize(copy_of.len().max(file.index() + 1), None);
            let path = source.path(file);
            let Some(name) = path.file_name() else { continue };
            let paths = directories.iter().map(|directory| directory.as_ref().join(name));
            let Some(mirror) = paths.into_iter().find(|path| path.is_file()) else { continue };
            let copy = open_copy(&*source, file, mirror)?;
            copy_of[file.index()] = Some(copies.push(copy));
        }
        if copies.len() == 0 {
            let directories = directories.iter().map(|directory| directory.as_ref().into()).collect();
            return Err(SourceError::NoMirror { directories });
        }
        Ok(Self { inner: source, copies, copy_of })
    }

    /// The copy that a number beyond the source's own files names.
    fn copy(&self, file: FileId) -> Option<&SourceFile> {
        let number = file.index().checked_sub(self.copy_of.len())?;
        (number < self.copies.len()).then(|| self.copies.get(FileId(number.try_into().unwrap_or(u32::MAX))))
    }
}

/// Opens a copy and compares it with the first.
fn open_copy(source: &dyn ExpertSource, file: FileId, mirror: PathBuf) -> Result<SourceFile, SourceError> {
    let path = source.path(file);
    if let Some(change) = source.changed(file) {
        return Err(SourceError::Changed { path: path.into(), change });
    }
    let read_error = |path: &Path, source| SourceError::Mirror { path: path.into(), source };
    let differs = |what| SourceError::MirrorDiffers { path: path.into(), mirror: mirror.clone(), what };
    let len_bytes = std::fs::metadata(path).map_err(|error| read_error(path, error))?.len();
    let copy = SourceFile::open(mirror.clone()).map_err(|error| read_error(&mirror, error))?;
    if copy.len_bytes() != len_bytes {
        return Err(differs("length"));
    }
    let compared = len_bytes.min(COMPARED_BYTES);
    for (what, offset_bytes) in [("first bytes", 0), ("last bytes", len_bytes - compared)] {
        let len = usize::try_from(compared).expect("a MiB at most");
        let (mut ours, mut theirs) = (vec![0; len], vec![0; len]);
        read_whole(&mut ours, offset_bytes, |buffer, at| source.read_at(file, buffer, at))
            .map_err(|error| read_error(path, error))?;
        copy.read_exact_at(&mut theirs, offset_bytes).map_err(|error| read_error(&mirror, error))?;
        if ours != theirs {
            return Err(differs(what));
        }
    }
    Ok(copy)
}

fn read_whole(
    mut buffer: &mut [u8],
    mut offset_bytes: u64,
    read: impl Fn(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<()> {
    while !buffer.is_empty() {
        match read(buffer, offset_bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => {
                buffer = &mut buffer[got..];
                offset_bytes += got as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl ExpertSource for Mirrored {
    fn tiers(&self) -> &[Tier] {
        self.inner.tiers()
    }

    fn layers(&self) -> &[SparseLayer] {
        self.inner.layers()
    }

    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        self.inner.segments(key)
    }

    fn read_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        match self.copy(file) {
            Some(copy) => copy.read_at(buffer, offset_bytes),
            None => self.inner.read_at(file, buffer, offset_bytes),
        }
    }

    fn path(&self, file: FileId) -> &Path {
        self.copy(file).map_or_else(|| self.inner.path(file), SourceFile::path)
    }

    fn read_direct_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        match self.copy(file) {
            Some(copy) => copy.read_direct_at(buffer, offset_bytes),
            None => self.inner.read_direct_at(file, buffer, offset_bytes),
        }
    }

    fn forget(&self, file: FileId, offset_bytes: u64, len_bytes: u64) {
        match self.copy(file) {
            Some(copy) => copy.forget(offset_bytes, len_bytes),
            None => self.inner.forget(file, offset_bytes, len_bytes),
        }
    }

    fn drive(&self, file: FileId) -> u64 {
        self.copy(file).map_or_else(|| self.inner.drive(file), SourceFile::drive)
    }

    fn mirror(&self, file: FileId) -> Option<FileId> {
        let copy = self.copy_of.get(file.index()).copied().flatten()?;
        Some(FileId(u32::try_from(self.copy_of.len()).ok()? + copy.0))
    }

    fn checksum(&self, key: ExpertKey) -> Option<u64> {
        self.inner.checksum(key)
    }

    fn changed(&self, file: FileId) -> Option<FileChange> {
        self.copy(file).map_or_else(|| self.inner.changed(file), SourceFile::changed)
    }
}
