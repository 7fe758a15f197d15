//! Colibri containers: one tensor per expert, projection and part, in shards without an index.

use std::{io, path::Path};

use safetensors::Dtype;

use super::{
    ExpertSource, Segment, SparseLayer, Tier,
    error::SourceError,
    files::FileChange,
    geometry::check_like_first,
    layers::{LayerTensors, expert_layers},
    names::{COLIBRI_PARTS, ExpertName},
    shards::Shards,
    table::ExpertTable,
    tensors::{Tensor, TensorIndex},
};
use crate::{
    formats::{
        Activation, ConfigError, ExpertGeometry, MAX_CONFIG_NUMBER, ModelConfig, Part, Projection,
        Quantisation, SlotLayout,
    },
    ids::{ExpertKey, FileId},
};

/// The group sizes that Colibri writes.
const GROUPS: &[u32] = &[16, 32, 48, 64, 96, 128, 192, 256];

/// Reads that one expert may need: weights and scales of three projections, none of them neighbours.
const MAX_COLIBRI_SEGMENTS: usize = 8;

/// What a Colibri container does not say itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColibriOptions {
    /// Width of the residual stream. Default: `hidden_size` in config.json.
    pub hidden: Option<u32>,
    /// Width between an expert's products. Default: `moe_intermediate_size` in config.json.
    pub intermediate: Option<u32>,
    /// Columns per scale: 16, 32, 48, 64, 96, 128, 192 or 256. Default: the one that explains the number of scales. No
    /// effect on projections with one scale per row; an error if there are no others.
    pub group: Option<u32>,
}

/// A Colibri container (GLM-5.2), read where it lies.
///
/// Bits and groups follow from byte counts; config.json gives the two widths, and its `quantization_config`, which
/// describes the checkpoint before conversion, is not looked at.
#[derive(Debug)]
pub struct Colibri {
    tensors: TensorIndex,
    experts: ExpertTable,
}

impl Colibri {
    /// Opens a directory of `out-*.safetensors` (without `out-idx-*`) with its config.json. Reads headers only.
    ///
    /// # Errors
    /// As [`Colibri::open_with`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, SourceError> {
        Self::open_with(directory, &ColibriOptions::default())
    }

    /// Opens a directory, with what the caller knows better. config.json may be missing if both widths are given.
    ///
    /// # Errors
    /// Files that cannot be opened or believed, experts that are incomplete or differ within a layer, byte counts that
    /// the widths do not explain, or several group sizes that would explain them.
    pub fn open_with(directory: impl AsRef<Path>, options: &ColibriOptions) -> Result<Self, SourceError> {
        let directory = directory.as_ref();
        let mut tensors = TensorIndex::open_shards(directory, Shards::of_colibri(directory)?)?;
        let container = Container::new(&tensors, directory, options)?;
        let experts = container.read_layers()?;
        tensors.retain(|name| ExpertName::parse(name, COLIBRI_PARTS).is_none_or(|n| n.expert.is_none()));
        Ok(Self { tensors, experts })
    }

    /// Every tensor but the routed experts'.
    #[must_use]
    pub const fn tensors(&self) -> &TensorIndex {
        &self.tensors
    }
}

impl ExpertSource for Colibri {
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
        self.tensors.read_at(file, buffer, offset_bytes)
    }

    fn path(&self, file: FileId) -> &Path {
        self.tensors.path(file)
    }

    fn read_direct_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        self.tensors.file(file).read_direct_at(buffer, offset_bytes)
    }

    fn forget(&self, file: FileId, offset_bytes: u64, len_bytes: u64) {
        self.tensors.file(file).forget(offset_bytes, len_bytes);
    }

    fn drive(&self, file: FileId) -> u64 {
        self.tensors.file(file).drive()
    }

    fn changed(&self, file: FileId) -> Option<FileChange> {
        self.tensors.changed(file)
    }
}

/// What is known of a container before its experts are looked at.
struct Container<'a> {
    index: &'a TensorIndex,
    hidden: u32,
    intermediate: u32,
    group: Option<u32>,
    activation: Activation,
    /// Experts of a layer, where config.json says so.
    experts: Option<u32>,
}

/// Weights and scales of one projection, before a group size is chosen.
struct Counted<'a> {
    bits: u32,
    rows: u32,
    columns: u32,
    qs: &'a Tensor,
    scales: u64,
}

impl Counted<'_> {
    const fn is_grouped(&self) -> bool {
        self.bits == 4 && self.scales != self.rows as u64
    }

    fn explained_by(&self, group: u32) -> bool {
        self.scales == u64::from(self.rows) * u64::from(self.columns.div_ceil(group))
    }
}

impl<'a> Container<'a> {
    fn new(index: &'a TensorIndex, directory: &Path, options: &ColibriOptions) -> Result<Self, SourceError> {
        if let Some(group) = options.group.filter(|group| !GROUPS.contains(group)) {
            return Err(SourceError::GroupUnknown { group, known: GROUPS });
        }
        let path = directory.join("config.json");
        let needed = options.hidden.is_none() || options.intermediate.is_none();
        let config = match ModelConfig::read(&path) {
            Ok(config) => Some(config),
            Err(ConfigError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound && !needed => {
                None
            }
            Err(error) => return Err(error.into()),
        };
        let width = |given: Option<u32>, field: &'static str| match (given, &config) {
            (Some(width @ 1..=MAX_CONFIG_NUMBER), _) => Ok(width),
            (Some(width), _) => Err(SourceError::Width { field, width, limit: MAX_CONFIG_NUMBER }),
            (None, Some(config)) => Ok(config.number(field)?.ok_or_else(|| ConfigError::Missing {
                path: path.clone(),
                field,
                purpose: "the shape of an expert",
            })?),
            (None, None) => unreachable!("config.json may be missing only if both widths are given"),
        };
        Ok(Self {
            index,
            hidden: width(options.hidden, "hidden_size")?,
            intermediate: width(options.intermediate, "moe_intermediate_size")?,
            group: options.group,
            activation: config.as_ref().map_or(Ok(Activation::SwiGlu), ModelConfig::activation)?,
            experts: config.as_ref().map(ModelConfig::experts).transpose()?.flatten(),
        })
    }

    fn read_layers(&self) -> Result<ExpertTable, SourceError> {
        let mut table = ExpertTable::default();
        for layer in &expert_layers(self.index, COLIBRI_PARTS)? {
            let experts = layer.tables();
            if let Some(expected) = self.experts.filter(|&expected| expected != experts) {
                return Err(SourceError::ExpertCount { layer: layer.layer, found: experts, expected });
            }
            let geometry = self.geometry(layer, 0)?;
            for expert in 1..experts {
                check_like_first(layer.key(expert), &self.geometry(layer, expert)?, &geometry)?;
            }
            let tier = table.tier(layer.layer, geometry)?;
            let layout = table.tiers()[tier.index()].layout.clone();
            table.begin_layer(layer.layer, tier, experts)?;
            for expert in 0..experts {
                let reads = reads(layer, &layout, expert);
                assert!(reads.len() <= MAX_COLIBRI_SEGMENTS, "{} reads for one expert", reads.len());
                table.push_expert(reads);
            }
        }
        let grouped = |tier: &Tier| {
            tier.geometry
                .quantisation
                .iter()
                .any(|q| matches!(q, Quantisation::Signed { group: Some(_), .. }))
        };
        match self.group {
            Some(group) if !table.tiers().iter().any(grouped) => {
                Err(SourceError::GroupUnused { path: self.index.root().into(), group })
            }
            _ => Ok(table.finish()),
        }
    }

    fn geometry(&self, layer: &LayerTensors<'_>, expert: u32) -> Result<ExpertGeometry, SourceError> {
        let [down, gate, up] = Projection::ALL.map(|projection| self.count(layer, expert, projection));
        let counted = [down?, gate?, up?];
        let group = self.common_group(layer, expert, &counted)?;
        let quantisation = counted.map(|c| {
            let group = if c.is_grouped() { group } else { None };
            Quantisation::Signed { bits: c.bits, group }
        });
        Ok(ExpertGeometry {
            hidden: self.hidden,
            intermediate: self.intermediate,
            quantisation,
            bias: None,
            activation: self.activation,
        })
    }

    /// Bits and scales of one projection, from byte counts.
    fn count<'t>(
        &self,
        layer: &LayerTensors<'t>,
        expert: u32,
        projection: Projection,
    ) -> Result<Counted<'t>, SourceError> {
        let (rows, columns) = match projection {
            Projection::Down => (self.hidden, self.intermediate),
            Projection::Gate | Projection::Up => (self.intermediate, self.hidden),
        };
        let typed = |part, expected: Dtype, expected_name| {
            let tensor = layer.need(expert, projection, part)?;
            if tensor.dtype == expected {
                return Ok(tensor);
            }
            Err(SourceError::TensorType {
                path: self.index.path(tensor.file).into(),
                tensor: layer.name(expert, projection, part),
                dtype: tensor.dtype,
                expected: expected_name,
            })
        };
        let weight = typed(Part::Weight, Dtype::U8, "U8")?;
        let qs = typed(Part::Scales, Dtype::F32, "F32")?;
        let bytes_8 = u64::from(rows) * u64::from(columns);
        let bytes_4 = u64::from(rows) * u64::from(columns.div_ceil(2));
        let bits = match weight.len_bytes {
            bytes if bytes == bytes_8 => 8,
            bytes if bytes == bytes_4 => 4,
            len_bytes => {
                let (path, tensor) =
                    (self.index.path(weight.file).into(), layer.name(expert, projection, Part::Weight));
                return Err(SourceError::WeightBytes {
                    path,
                    tensor,
                    len_bytes,
                    rows,
                    columns,
                    bytes_8,
                    bytes_4,
                });
            }
        };
        let scales = qs.len_bytes / 4;
        if bits == 8 && scales != u64::from(rows) {
            let path = self.index.path(qs.file).into();
            let tensor = layer.name(expert, projection, Part::Scales);
            return Err(SourceError::GroupedEightBits { path, tensor, scales, rows });
        }
        Ok(Counted { bits, rows, columns, qs, scales })
    }

    /// The one group size that explains the scales of every grouped projection; `None` if none is grouped.
    fn common_group(
        &self,
        layer: &LayerTensors<'_>,
        expert: u32,
        counted: &[Counted<'_>; 3],
    ) -> Result<Option<u32>, SourceError> {
        let mut candidates: Vec<u32> = GROUPS.to_vec();
        let mut grouped = false;
        for (projection, c) in Projection::ALL.into_iter().zip(counted).filter(|(_, c)| c.is_grouped()) {
            grouped = true;
            let path = || self.index.path(c.qs.file).into();
            let tensor = || layer.name(expert, projection, Part::Scales);
            let Counted { scales, rows, columns, .. } = *c;
            if let Some(group) = self.group.filter(|&group| !c.explained_by(group)) {
                let (path, tensor) = (path(), tensor());
                return Err(SourceError::GroupRefuted { path, tensor, scales, rows, columns, group });
            }
            candidates.retain(|&group| c.explained_by(group));
            if candidates.is_empty() {
                return Err(SourceError::NoGroup { path: path(), tensor: tensor(), scales, rows, columns });
            }
        }
        match (grouped, self.group, candidates.as_slice()) {
            (false, _, _) => Ok(None),
            (true, Some(group), _) | (true, None, &[group]) => Ok(Some(group)),
            (true, None, _) => Err(SourceError::GroupAmbiguous { expert: layer.key(expert), candidates }),
        }
    }
}

/// One read per component of an expert.
fn reads(layer: &LayerTensors<'_>, layout: &SlotLayout, expert: u32) -> Vec<Segment> {
    let mut reads = Vec::with_capacity(MAX_COLIBRI_SEGMENTS);
    for part in [Part::Weight, Part::Scales] {
        for projection in Projection::ALL {
            let range = layout.range(projection, part).expect("every projection has weights and scales");
            let tensor = layer.get(expert, projection, part).expect("the geometry was read from this tensor");
            assert_eq!(range.end - range.start, tensor.len_bytes, "the layout holds the tensor");
            reads.push(Segment {
                file: tensor.file,
                file_offset_bytes: tensor.offset_bytes,
                slot_offset_bytes: range.start,
                len_bytes: tensor.len_bytes,
            });
        }
    }
    reads
}
