//! Slabs: experts packed into one file, each in one aligned piece laid out as its slot.

use std::{fmt, io, ops::Range, path::Path};

use super::{
    ExpertSource, Segment, SparseLayer, Tier,
    error::SourceError,
    files::{FileChange, SourceFile, SourceFiles},
    layers::{MAX_EXPERTS, MAX_LAYERS},
    table::ExpertTable,
};
use crate::{
    formats::{Head, HeadState, Manifest, ManifestLayer, Origin, SlabError, Table, bytes_checksum, is_slab},
    ids::{ExpertKey, FileId, LayerId},
};

/// A slab, as [`pack`](crate::pack) writes it: one aligned read per expert, and a checksum for each.
pub struct SlabSource {
    files: SourceFiles,
    experts: ExpertTable,
    checksums: Table,
    origin: Origin,
}

/// Counts instead of contents: a slab has tens of thousands of checksums.
impl fmt::Debug for SlabSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabSource")
            .field("path", &self.files.get(FILE).path())
            .field("experts", &self.experts)
            .finish_non_exhaustive()
    }
}

/// The slab itself, the only file.
const FILE: FileId = FileId(0);

impl SlabSource {
    /// Opens a slab. Reads head, manifest and table, and checks them: magic, version, their checksums, the zeros behind each,
    /// every count against its limit, and that the file is exactly as long as its records need. Records are not read.
    ///
    /// # Errors
    /// A file that cannot be opened, is no slab, unfinished, of another version, damaged, cut, or grown.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        let path = path.as_ref();
        let file =
            SourceFile::open(path.into()).map_err(|source| SlabError::Open { path: path.into(), source })?;
        let head = read_head(&file)?;
        let manifest = read_part(
            &file,
            "manifest",
            Head::MANIFEST_OFFSET_BYTES,
            head.manifest_bytes,
            head.manifest_checksum,
        )?;
        let manifest = Manifest::parse(path, &manifest)?;
        let table = read_part(
            &file,
            "table of checksums",
            head.table_offset_bytes(),
            head.records * Table::ENTRY_BYTES,
            head.table_checksum,
        )?;
        let (manifest_end, table_end) = (
            Head::MANIFEST_OFFSET_BYTES + head.manifest_bytes,
            head.table_offset_bytes() + head.records * Table::ENTRY_BYTES,
        );
        check_zeros(&file, "head", Head::BYTES as u64..Head::MANIFEST_OFFSET_BYTES)?;
        check_zeros(&file, "manifest", manifest_end..head.table_offset_bytes())?;
        check_zeros(&file, "table of checksums", table_end..head.records_offset_bytes())?;
        let mut files = SourceFiles::default();
        files.push(file);
        let experts = place(path, &head, &manifest)?;
        Ok(Self { files, experts, checksums: Table::parse(&table), origin: manifest.origin })
    }

    /// What it was packed from.
    #[must_use]
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }
}

impl ExpertSource for SlabSource {
    fn tiers(&self) -> &[Tier] {
        self.experts.tiers()
    }

    fn layers(&self) -> &[SparseLayer] {
        self.experts.layers()
    }

    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        self.experts.segments(key)
    }

    fn read_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.files.get(file).read_at(buffer, offset_bytes)
    }

    fn path(&self, file: FileId) -> &Path {
        self.files.get(file).path()
    }

    fn read_direct_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.files.get(file).read_direct_at(buffer, offset_bytes)
    }

    fn forget(&self, file: FileId, offset_bytes: u64, len_bytes: u64) {
        self.files.get(file).forget(offset_bytes, len_bytes);
    }

    fn drive(&self, file: FileId) -> u64 {
        self.files.get(file).drive()
    }

    fn checksum(&self, key: ExpertKey) -> Option<u64> {
        self.checksums.0.get(self.experts.position(key)?).copied()
    }

    fn changed(&self, file: FileId) -> Option<FileChange> {
        self.files.get(file).changed()
    }
}

/// Reads the head of a finished slab whose file is as long as the head says.
fn read_head(file: &SourceFile) -> Result<Head, SlabError> {
    let path = file.path();
    let mut bytes = [0; Head::BYTES];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !is_slab(&bytes) => {
            return Err(SlabError::NotASlab { path: path.into() });
        }
        Err(source) => return Err(SlabError::Read { path: path.into(), what: "head", source }),
    }
    let head = Head::parse(path, &bytes)?;
    if head.state == HeadState::Unfinished {
        return Err(SlabError::Unfinished { path: path.into() });
    }
    let (file_bytes, expected_bytes) = (file.len_bytes(), head.file_bytes);
    if file_bytes != expected_bytes {
        return Err(SlabError::Length { path: path.into(), file_bytes, expected_bytes });
    }
    if head.records_offset_bytes() > file_bytes {
        let expected_bytes = head.records_offset_bytes();
        return Err(SlabError::Length { path: path.into(), file_bytes, expected_bytes });
    }
    Ok(head)
}

/// Reads a part whose length is within its limit, and checks it.
fn read_part(
    file: &SourceFile,
    what: &'static str,
    offset_bytes: u64,
    len_bytes: u64,
    expected: u64,
) -> Result<Vec<u8>, SlabError> {
    let mut bytes = vec![0; usize::try_from(len_bytes).expect("a checked length")];
    file.read_exact_at(&mut bytes, offset_bytes).map_err(|source| SlabError::Read {
        path: file.path().into(),
        what,
        source,
    })?;
    let found = bytes_checksum(&bytes);
    if found != expected {
        return Err(SlabError::Checksum { path: file.path().into(), what, expected, found });
    }
    Ok(bytes)
}

/// Checks that what fills the last page of a part is zero.
fn check_zeros(file: &SourceFile, what: &'static str, range: Range<u64>) -> Result<(), SlabError> {
    let mut bytes = vec![0; usize::try_from(range.end - range.start).expect("less than a page")];
    file.read_exact_at(&mut bytes, range.start).map_err(|source| SlabError::Read {
        path: file.path().into(),
        what,
        source,
    })?;
    match bytes.iter().position(|&byte| byte != 0) {
        Some(at) => {
            let offset_bytes = range.start + at as u64;
            Err(SlabError::Padding { path: file.path().into(), what, offset_bytes })
        }
        None => Ok(()),
    }
}

/// Where every record lies.
fn place(path: &Path, head: &Head, manifest: &Manifest) -> Result<ExpertTable, SourceError> {
    let unbelievable = |reason: String| SlabError::Manifest { path: path.into(), reason };
    let mut table = ExpertTable::default();
    let (mut offset_bytes, mut records, mut before) = (head.records_offset_bytes(), 0, None);
    for &ManifestLayer { layer, tier, experts } in &manifest.layers {
        for (what, found, limit) in
            [("as a layer's number", layer, MAX_LAYERS - 1), ("experts in a layer", experts, MAX_EXPERTS)]
        {
            if found > limit {
                let (found, limit) = (found.into(), limit.into());
                return Err(SlabError::Count { path: path.into(), what, found, limit }.into());
            }
        }
        if experts == 0 || before.is_some_and(|before| before >= layer) {
            return Err(
                unbelievable(format!("layer {layer} has {experts} experts, or is out of order")).into()
            );
        }
        before = Some(layer);
        let Some(stored) = manifest.tiers.get(tier as usize) else {
            return Err(unbelievable(format!("layer {layer} is of tier {tier}, which is not there")).into());
        };
        let number = table.tier(LayerId(layer), stored.geometry(path)?)?;
        if number.0 != tier {
            return Err(unbelievable(format!("tier {tier} should be {number:?}, by its first layer")).into());
        }
        table.begin_layer(LayerId(layer), number, experts)?;
        let slot_bytes = table.tiers()[number.index()].layout.slot_bytes();
        for _ in 0..experts {
            table.push_record(FILE, offset_bytes);
            offset_bytes += slot_bytes;
        }
        records += u64::from(experts);
    }
    if records == 0 || records != head.records || table.tiers().len() != manifest.tiers.len() {
        let (tiers, used) = (manifest.tiers.len(), table.tiers().len());
        return Err(unbelievable(format!(
            "its layers have {records} experts of {used} tiers, and there are {} records and {tiers} tiers",
            head.records
        ))
        .into());
    }
    if offset_bytes != head.file_bytes {
        let (file_bytes, expected_bytes) = (head.file_bytes, offset_bytes);
        return Err(SlabError::Length { path: path.into(), file_bytes, expected_bytes }.into());
    }
    Ok(table.finish())
}
