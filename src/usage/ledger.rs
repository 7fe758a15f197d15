//! The counts and their file.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use crate::ids::{ExpertId, ExpertKey, LayerId};

const MAGIC: [u8; 8] = *b"sx-usage";
const VERSION: u32 = 1;
/// magic, version, layers.
const HEADER_BYTES: usize = 16;
/// More layers, and more experts in a layer, than any model has.
const MAX_LAYERS: u32 = 1 << 16;
const MAX_EXPERTS_IN_LAYER: u32 = 1 << 16;
const MAX_EXPERTS: u64 = 1 << 22;
const MAX_FILE_BYTES: u64 = HEADER_BYTES as u64 + 16 * MAX_EXPERTS + 8 * MAX_LAYERS as u64 + 8;

/// Counts requests for each expert, before equal ones of a batch are merged: a row that uses an expert is one use.
///
/// Two numbers an expert: `uses`, all of them, never falling, at most `u64::MAX`; and `heat`, the same but multiplied by
/// 7/8 at the end of every turn, so that what was used lately weighs more.
///
/// The file is little-endian: `sx-usage`, version, number of layers; for each layer its number, its number of experts,
/// and for each expert uses and heat; an FNV-1a checksum of everything before it.
#[derive(Clone, Debug, PartialEq)]
pub struct UsageLedger {
    layers: Vec<Layer>,
}

#[derive(Clone, Debug, PartialEq)]
struct Layer {
    layer: LayerId,
    uses: Vec<u64>,
    heat: Vec<f64>,
}

/// A ledger that was not saved or read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: cannot {action} the usage ledger", path = path.display())]
pub struct LedgerError {
    /// The file.
    pub path: PathBuf,
    /// What was tried.
    pub action: &'static str,
    /// What the system answered.
    pub source: io::Error,
}

/// A file that is no ledger for this model. Counting starts anew; saving replaces the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: not used as usage ledger: {what}", path = path.display())]
pub struct DamagedLedger {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub what: String,
}

impl UsageLedger {
    /// Nothing counted yet for these layers with so many experts. Layers named again, and experts beyond 2¹⁶ a layer
    /// or 2²² in all, are left out, and count nothing.
    #[must_use]
    pub fn new(layers: impl IntoIterator<Item = (LayerId, u32)>) -> Self {
        let mut listed: Vec<Layer> = Vec::new();
        let mut left = MAX_EXPERTS;
        for (layer, experts) in layers.into_iter().take(MAX_LAYERS as usize) {
            let experts = u64::from(experts.min(MAX_EXPERTS_IN_LAYER)).min(left);
            left -= experts;
            #[expect(clippy::cast_possible_truncation, reason = "at most MAX_EXPERTS_IN_LAYER")]
            let experts = experts as usize;
            listed.push(Layer { layer, uses: vec![0; experts], heat: vec![0.0; experts] });
        }
        listed.sort_by_key(|layer| layer.layer);
        listed.dedup_by_key(|layer| layer.layer);
        Self { layers: listed }
    }

    /// Reads a ledger for these layers. Without a file, or with a damaged one or one of another model, it is empty; what
    /// was wrong with a file is returned beside it, for the caller to tell.
    ///
    /// # Errors
    /// If there is a file and the system does not let it be read.
    pub fn open(
        path: impl AsRef<Path>,
        layers: impl IntoIterator<Item = (LayerId, u32)>,
    ) -> Result<(Self, Option<DamagedLedger>), LedgerError> {
        let path = path.as_ref();
        let mut ledger = Self::new(layers);
        let failed = |source| LedgerError { path: path.to_owned(), action: "read", source };
        let mut bytes = Vec::new();
        match File::open(path) {
            Ok(file) => file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((ledger, None)),
            Err(error) => return Err(failed(error)),
        };
        let damage = ledger.fill(&bytes).err();
        Ok((ledger, damage.map(|what| DamagedLedger { path: path.to_owned(), what })))
    }

    /// Counts `times` uses of an expert. Of an expert that the ledger does not know, nothing.
    pub fn record(&mut self, key: ExpertKey, times: u64) {
        if let Some((layer, expert)) = self.find(key) {
            let layer = &mut self.layers[layer];
            layer.uses[expert] = layer.uses[expert].saturating_add(times);
            #[expect(clippy::cast_precision_loss, reason = "heat is an estimate")]
            let heat = times as f64;
            layer.heat[expert] += heat;
        }
    }

    /// Ends a turn: heat decays by an eighth.
    pub fn end_turn(&mut self) {
        self.layers.iter_mut().flat_map(|layer| &mut layer.heat).for_each(|heat| *heat *= 0.875);
    }

    /// Uses of an expert, ever.
    #[must_use]
    pub fn uses(&self, key: ExpertKey) -> u64 {
        self.find(key).map_or(0, |(layer, expert)| self.layers[layer].uses[expert])
    }

    /// Decayed uses of an expert.
    #[must_use]
    pub fn heat(&self, key: ExpertKey) -> f64 {
        self.find(key).map_or(0.0, |(layer, expert)| self.layers[layer].heat[expert])
    }

    /// Every expert with its uses and heat, ascending by key.
    pub fn experts(&self) -> impl Iterator<Item = (ExpertKey, u64, f64)> + '_ {
        self.layers.iter().flat_map(|layer| {
            let counts = layer.uses.iter().zip(&layer.heat);
            (0..)
                .zip(counts)
                .map(|(expert, (&uses, &heat))| (ExpertKey::new(layer.layer, ExpertId(expert)), uses, heat))
        })
    }

    /// Saves the ledger: a new file beside `path`, written to disk, then renamed to it. So there is the old ledger or the
    /// new one, whole, whatever happens. Blocks until it is on disk.
    ///
    /// # Errors
    /// What the system answers; the old file is as it was, and the new one is removed.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), LedgerError> {
        let path = path.as_ref();
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let new = PathBuf::from(name);
        self.write(&new)
            .and_then(|()| fs::rename(&new, path))
            .and_then(|()| {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                sync_folder(folder.unwrap_or(Path::new(".")))
            })
            .map_err(|source| {
                let _ = fs::remove_file(&new); // it may not be there; the first error is the one to tell
                LedgerError { path: path.to_owned(), action: "save", source }
            })
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(&self.bytes())?;
        file.sync_all()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(length(self.layers.len()).to_le_bytes());
        for layer in &self.layers {
            bytes.extend(layer.layer.0.to_le_bytes());
            bytes.extend(length(layer.uses.len()).to_le_bytes());
            for (uses, heat) in layer.uses.iter().zip(&layer.heat) {
                bytes.extend(uses.to_le_bytes());
                bytes.extend(heat.to_le_bytes());
            }
        }
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes
    }

    /// Takes the counts of a file with the same layers. Changes nothing on an error.
    fn fill(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (content, sum) = bytes.split_last_chunk::<8>().ok_or("too short")?;
        let rest = content.strip_prefix(&MAGIC).ok_or("does not begin as one")?;
        let mut rest = Fields(rest);
        let version = rest.u32()?;
        if version != VERSION {
            return Err(format!("version {version}, this is version {VERSION}"));
        }
        if u64::from_le_bytes(*sum) != checksum(content) {
            return Err("the checksum is not that of its content".into());
        }
        let layers = rest.u32()?;
        if layers != length(self.layers.len()) {
            return Err(format!("{layers} layers, the model has {}", self.layers.len()));
        }
        let mut filled = self.clone();
        for layer in &mut filled.layers {
            let (number, experts) = (rest.u32()?, rest.u32()?);
            if (number, experts) != (layer.layer.0, length(layer.uses.len())) {
                return Err(format!("{experts} experts of layer {number}: not this model's"));
            }
            for (uses, heat) in layer.uses.iter_mut().zip(&mut layer.heat) {
                *uses = rest.u64()?;
                *heat = f64::from_bits(rest.u64()?);
                if !heat.is_finite() || *heat < 0.0 {
                    return Err(format!("a heat of {heat}"));
                }
            }
        }
        if !rest.0.is_empty() {
            return Err(format!("{} bytes too many", rest.0.len()));
        }
        *self = filled;
        Ok(())
    }

    fn find(&self, key: ExpertKey) -> Option<(usize, usize)> {
        let layer = self.layers.binary_search_by_key(&key.layer, |layer| layer.layer).ok()?;
        (key.expert.index() < self.layers[layer].uses.len()).then_some((layer, key.expert.index()))
    }
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> Result<u32, &'static str> {
        let (field, rest) = self.0.split_first_chunk().ok_or("too short")?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*field))
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        let (field, rest) = self.0.split_first_chunk().ok_or("too short")?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*field))
    }
}

/// Makes the renaming last. Where folders cannot be synchronised, the system does so in its own time.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// FNV-1a, 64 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
