//! What a slab's records are: geometry, storage, layers, and where they came from.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{error::SlabError, head::PAGE_BYTES};
use crate::formats::{Activation, ExpertGeometry, FloatType, MAX_CONFIG_NUMBER, Quantisation, SlotLayout};

/// The manifest, as JSON has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    order: Order,
    checksum: ChecksumKind,
    alignment_bytes: u64,
    /// By their first layer.
    pub(crate) tiers: Vec<ManifestTier>,
    /// Ascending.
    pub(crate) layers: Vec<ManifestLayer>,
    /// What was packed.
    pub(crate) origin: Origin,
}

/// In which order records follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Order {
    /// Layers ascending, experts ascending within each.
    #[serde(rename = "layer, expert")]
    LayerExpert,
}

/// What covers a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ChecksumKind {
    #[serde(rename = "xxh3-64 of components")]
    Xxh3,
}

/// The geometry of a tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ManifestTier {
    hidden: u32,
    intermediate: u32,
    down: Storage,
    gate: Storage,
    up: Storage,
    bias: Option<Float>,
    activation: Function,
    /// What the writer's layout came to. The reader's must be the same.
    slot_bytes: u64,
    record_bytes: u64,
}

/// A layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ManifestLayer {
    pub(crate) layer: u32,
    pub(crate) tier: u32,
    pub(crate) experts: u32,
}

/// What a slab or a list of checksums was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Origin {
    /// xxh3 of the beginnings of its files and of some of its experts.
    #[serde(with = "hex")]
    pub fingerprint: u64,
    /// The files that hold the experts.
    pub files: Vec<OriginFile>,
}

/// A file that experts came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OriginFile {
    /// Its name, without the directory.
    pub name: String,
    /// Its length, where it lies in a file system.
    pub len_bytes: Option<u64>,
    /// When it was last written, in nanoseconds since 1970.
    pub modified_ns: Option<u64>,
}

impl OriginFile {
    /// A file.
    pub(crate) const fn new(name: String, len_bytes: Option<u64>, modified_ns: Option<u64>) -> Self {
        Self { name, len_bytes, modified_ns }
    }
}

impl Origin {
    /// An origin.
    pub(crate) const fn new(fingerprint: u64, files: Vec<OriginFile>) -> Self {
        Self { fingerprint, files }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Float {
    F32,
    F16,
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "snake_case", deny_unknown_fields)]
enum Storage {
    Affine { bits: u32, group: u32, scales: Float },
    Mxfp4,
    Nvfp4,
    Mxfp8,
    Signed { bits: u32, group: Option<u32> },
}

/// f64 holds every f32 exactly, and prints so that it reads as the same number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "function", rename_all = "snake_case", deny_unknown_fields)]
enum Function {
    SwiGlu,
    ClampedSwiGlu { alpha: f64, limit: f64 },
}

impl Manifest {
    /// A manifest for these tiers and layers.
    pub(crate) const fn new(tiers: Vec<ManifestTier>, layers: Vec<ManifestLayer>, origin: Origin) -> Self {
        let (order, checksum) = (Order::LayerExpert, ChecksumKind::Xxh3);
        Self { order, checksum, alignment_bytes: PAGE_BYTES, tiers, layers, origin }
    }

    /// Reads a manifest. Its numbers are checked by who uses them, against the limits of every source.
    pub(crate) fn parse(path: &Path, json: &[u8]) -> Result<Self, SlabError> {
        let manifest: Self =
            serde_json::from_slice(json).map_err(|source| SlabError::Json { path: path.into(), source })?;
        if manifest.alignment_bytes != PAGE_BYTES {
            let reason = format!("records are aligned to {} B, not {PAGE_BYTES} B", manifest.alignment_bytes);
            return Err(SlabError::Manifest { path: path.into(), reason });
        }
        Ok(manifest)
    }

    /// As it is written.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and text have a JSON form")
    }
}

impl ManifestTier {
    /// The entry of a tier.
    pub(crate) fn new(geometry: &ExpertGeometry, layout: &SlotLayout) -> Self {
        let [down, gate, up] = geometry.quantisation.map(Storage::from);
        Self {
            hidden: geometry.hidden,
            intermediate: geometry.intermediate,
            down,
            gate,
            up,
            bias: geometry.bias.map(Float::from),
            activation: match geometry.activation {
                Activation::SwiGlu => Function::SwiGlu,
                Activation::ClampedSwiGlu { alpha, limit } => {
                    Function::ClampedSwiGlu { alpha: alpha.into(), limit: limit.into() }
                }
            },
            slot_bytes: layout.slot_bytes(),
            record_bytes: layout.record_bytes(),
        }
    }

    /// The geometry, if its layout is the one that the records were written in.
    pub(crate) fn geometry(&self, path: &Path) -> Result<ExpertGeometry, SlabError> {
        let unbelievable = |reason: String| SlabError::Manifest { path: path.into(), reason };
        for (what, width) in [("hidden", self.hidden), ("intermediate", self.intermediate)] {
            if width > MAX_CONFIG_NUMBER {
                let (found, limit) = (width.into(), MAX_CONFIG_NUMBER.into());
                return Err(SlabError::Count { path: path.into(), what, found, limit });
            }
        }
        let geometry = ExpertGeometry {
            hidden: self.hidden,
            intermediate: self.intermediate,
            quantisation: [self.down, self.gate, self.up].map(Quantisation::from),
            bias: self.bias.map(FloatType::from),
            activation: self.activation(path)?,
        };
        let layout = SlotLayout::new(&geometry).map_err(|reason| unbelievable(reason.to_string()))?;
        let (slot_bytes, record_bytes) = (layout.slot_bytes(), layout.record_bytes());
        if (slot_bytes, record_bytes) != (self.slot_bytes, self.record_bytes) {
            return Err(unbelievable(format!(
                "its experts take {} B in slots of {} B, and by their geometry {record_bytes} B in {slot_bytes} B",
                self.record_bytes, self.slot_bytes
            )));
        }
        Ok(geometry)
    }

    fn activation(&self, path: &Path) -> Result<Activation, SlabError> {
        #[expect(clippy::cast_possible_truncation, reason = "it was an f32")]
        match self.activation {
            Function::SwiGlu => Ok(Activation::SwiGlu),
            Function::ClampedSwiGlu { alpha, limit } => {
                let (alpha, limit) = (alpha as f32, limit as f32);
                if !(alpha.is_finite() && limit.is_finite() && limit > 0.0) {
                    let reason = format!("no activation has slope {alpha} and limit {limit}");
                    return Err(SlabError::Manifest { path: path.into(), reason });
                }
                Ok(Activation::ClampedSwiGlu { alpha, limit })
            }
        }
    }
}

impl From<FloatType> for Float {
    fn from(float: FloatType) -> Self {
        match float {
            FloatType::F32 => Self::F32,
            FloatType::F16 => Self::F16,
            FloatType::Bf16 => Self::Bf16,
        }
    }
}

impl From<Float> for FloatType {
    fn from(float: Float) -> Self {
        match float {
            Float::F32 => Self::F32,
            Float::F16 => Self::F16,
            Float::Bf16 => Self::Bf16,
        }
    }
}

impl From<Quantisation> for Storage {
    fn from(quantisation: Quantisation) -> Self {
        match quantisation {
            Quantisation::Affine { bits, group, scales } => {
                Self::Affine { bits, group, scales: scales.into() }
            }
            Quantisation::Mxfp4 => Self::Mxfp4,
            Quantisation::Nvfp4 => Self::Nvfp4,
            Quantisation::Mxfp8 => Self::Mxfp8,
            Quantisation::Signed { bits, group } => Self::Signed { bits, group },
        }
    }
}

impl From<Storage> for Quantisation {
    fn from(storage: Storage) -> Self {
        match storage {
            Storage::Affine { bits, group, scales } => Self::Affine { bits, group, scales: scales.into() },
            Storage::Mxfp4 => Self::Mxfp4,
            Storage::Nvfp4 => Self::Nvfp4,
            Storage::Mxfp8 => Self::Mxfp8,
            Storage::Signed { bits, group } => Self::Signed { bits, group },
        }
    }
}

/// u64 as 16 hexadecimal digits: JSON's numbers end at 53 bits for many readers.
mod hex {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{value:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}
