//! Slabs of fixtures, and ways to spoil them.
#![allow(dead_code, unreachable_pub, missing_debug_implementations, reason = "each test file uses its part")]

use std::{
    fs, io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::Command,
};

use streamed_experts::{
    Colibri, ColibriOptions, ExpertGeometry, ExpertId, ExpertKey, ExpertSource, FileId, LayerId, PackOptions,
    PackProgress, Quantisation, Segment, SlotLayout, SparseLayer, Tier, TierId, open_source, pack,
};
use xxhash_rust::xxh3::xxh3_64;

pub fn key(layer: u32, expert: u32) -> ExpertKey {
    ExpertKey::new(LayerId(layer), ExpertId(expert))
}

/// Every expert of a source, in its order.
pub fn keys(source: &dyn ExpertSource) -> impl Iterator<Item = ExpertKey> {
    let layers = source.layers().iter();
    layers.flat_map(|layer| (0..layer.experts).map(|expert| key(layer.layer.0, expert)))
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Every fixture that is a model.
pub fn fixture_names() -> Vec<String> {
    let entries = fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().path());
    let models = entries.filter(|path| path.join("config.json").exists());
    let names: Vec<String> =
        models.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert!(names.len() > 30, "{names:?}");
    names
}

pub fn open_fixture(name: &str) -> Box<dyn ExpertSource> {
    if name == "colibri-q4-g32-or-48" {
        let options = ColibriOptions { group: Some(32), ..ColibriOptions::default() };
        return Box::new(Colibri::open_with(fixture(name), &options).unwrap());
    }
    open_source(fixture(name)).unwrap()
}

/// A copy of a fixture that may be spoilt.
pub fn copy_fixture(directory: &Path, name: &str) -> PathBuf {
    let copy = directory.join(name);
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    copy
}

/// Packs a fixture whole.
pub fn packed(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(format!("{name}-whole.slab"));
    pack(&*open_fixture(name), &path, &PackOptions::default(), go_on).unwrap();
    path
}

pub fn go_on(_: PackProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Where a slab is while it is written.
pub fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

pub fn tier_of(source: &dyn ExpertSource, key: ExpertKey) -> &Tier {
    let layer = source.layers().iter().find(|layer| layer.layer == key.layer).unwrap();
    &source.tiers()[layer.tier.index()]
}

/// The slot of an expert, zeros where nothing is read.
pub fn read_slot(source: &dyn ExpertSource, key: ExpertKey) -> Vec<u8> {
    let mut slot = vec![0; usize::try_from(tier_of(source, key).layout.slot_bytes()).unwrap()];
    for segment in source.segments(key).unwrap() {
        let start = usize::try_from(segment.slot_offset_bytes).unwrap();
        let mut rest = &mut slot[start..][..usize::try_from(segment.len_bytes).unwrap()];
        let mut offset = segment.file_offset_bytes;
        while !rest.is_empty() {
            let read = source.read_at(segment.file, rest, offset).unwrap();
            assert!(read > 0, "{} ended early", source.path(segment.file).display());
            rest = &mut rest[read..];
            offset += read as u64;
        }
    }
    slot
}

/// Changes one byte of a file, in place.
pub fn flip(path: &Path, offset_bytes: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset_bytes).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], offset_bytes).unwrap();
}

/// Lengths and places of a slab's parts, from its head alone.
pub struct Parts {
    pub manifest: std::ops::Range<usize>,
    pub table: std::ops::Range<usize>,
    pub records: usize,
}

pub fn parts(slab: &[u8]) -> Parts {
    let number =
        |at: usize| usize::try_from(u64::from_le_bytes(slab[at..at + 8].try_into().unwrap())).unwrap();
    let pages = |bytes: usize| bytes.div_ceil(16_384) * 16_384;
    let manifest = 16_384..16_384 + number(16);
    let table = pages(manifest.end)..pages(manifest.end) + 8 * number(32);
    Parts { records: pages(table.end), manifest, table }
}

/// A slab with another manifest, and checksums that fit it.
pub fn with_manifest(slab: &[u8], change: impl FnOnce(&str) -> String) -> Vec<u8> {
    let parts = parts(slab);
    let json = change(std::str::from_utf8(&slab[parts.manifest.clone()]).unwrap());
    assert!(parts.manifest.start + json.len() <= parts.table.start, "the manifest still fits its pages");
    let mut changed = slab.to_vec();
    changed[parts.manifest.start..parts.table.start].fill(0);
    changed[parts.manifest.start..][..json.len()].copy_from_slice(json.as_bytes());
    changed[16..24].copy_from_slice(&(json.len() as u64).to_le_bytes());
    changed[24..32].copy_from_slice(&xxh3_64(json.as_bytes()).to_le_bytes());
    let head = xxh3_64(&changed[..56]);
    changed[56..64].copy_from_slice(&head.to_le_bytes());
    changed
}

/// A file system in memory of a given size, unmounted when dropped.
pub struct Tmpfs {
    directory: tempfile::TempDir,
}

impl Tmpfs {
    /// `None`, with a line that says so, where this process may not mount.
    pub fn mount(size: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(directory.path());
        match command.output() {
            Ok(output) if output.status.success() => Some(Self { directory }),
            other => {
                eprintln!("skipped: cannot mount a tmpfs here ({other:?})");
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.directory.path()).status();
    }
}

/// A source in memory whose bytes follow from their place.
#[derive(Debug)]
pub struct Synthetic {
    tiers: Vec<Tier>,
    layers: Vec<SparseLayer>,
    segments: Vec<[Segment; 1]>,
}

impl Synthetic {
    /// One layer of GLM-5.2's experts.
    pub fn glm_5_2(experts: u32) -> Self {
        let geometry = ExpertGeometry::uniform(6144, 2048, Quantisation::Signed { bits: 4, group: None });
        let layout = SlotLayout::new(&geometry).unwrap();
        let len_bytes = layout.slot_bytes();
        let segments = (0..experts).map(|expert| {
            let file_offset_bytes = u64::from(expert) * len_bytes;
            [Segment { file: FileId(0), file_offset_bytes, slot_offset_bytes: 0, len_bytes }]
        });
        Self {
            segments: segments.collect(),
            tiers: vec![Tier { geometry, layout }],
            layers: vec![SparseLayer { layer: LayerId(3), tier: TierId(0), experts }],
        }
    }
}

/// What a slab should hold of an expert: the components' bytes, zeros between.
pub fn slot_of(source: &dyn ExpertSource, key: ExpertKey) -> Vec<u8> {
    use streamed_experts::{Part, Projection};
    let layout = &tier_of(source, key).layout;
    let read = read_slot(source, key);
    let mut slot = vec![0; read.len()];
    for part in Part::ALL {
        for range in Projection::ALL.into_iter().filter_map(|projection| layout.range(projection, part)) {
            let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
            slot[range.clone()].copy_from_slice(&read[range]);
        }
    }
    slot
}

impl ExpertSource for Synthetic {
    fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    fn layers(&self) -> &[SparseLayer] {
        &self.layers
    }

    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        (key.layer == LayerId(3)).then(|| self.segments.get(key.expert.index())).flatten().map(|s| &s[..])
    }

    fn read_at(&self, _: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        for (offset, byte) in (offset_bytes..).zip(buffer.iter_mut()) {
            *byte = (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
        }
        Ok(buffer.len())
    }

    fn path(&self, _: FileId) -> &Path {
        Path::new("in memory")
    }
}
