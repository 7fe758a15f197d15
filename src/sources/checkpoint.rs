//! Checkpoints as mlx-lm writes them: experts quantised by MLX, stacked or one by one, in one file or many.

use std::{io, path::Path};

use safetensors::Dtype;

use super::{
    ExpertSource, Segment, SparseLayer, Tier,
    error::SourceError,
    files::FileChange,
    geometry::check_like_first,
    layers::{LayerTensors, MAX_EXPERTS, expert_layers},
    names::{CHECKPOINT_PARTS, ExpertName},
    shards::Shards,
    table::ExpertTable,
    tensors::{Tensor, TensorIndex},
};
use crate::{
    formats::{
        Activation, ExpertGeometry, FloatType, ModelConfig, Part, Projection, Quantisation, SlotLayout,
    },
    ids::{ExpertKey, FileId},
};

/// A checkpoint as mlx-lm writes it, read where it lies.
///
/// Layers and shapes are taken from the tensors, the storage from `quantization` in config.json, and each must explain
/// the other. Families are told apart by their tensors' names only: Qwen3-MoE, OLMoE, Mixtral, GLM-4, DeepSeek and
/// gpt-oss are known to open, with any path before `layers.L`.
#[derive(Debug)]
pub struct MlxCheckpoint {
    tensors: TensorIndex,
    experts: ExpertTable,
}

impl MlxCheckpoint {
    /// Opens a directory with config.json and `model*.safetensors`. Reads headers only.
    ///
    /// # Errors
    /// Files that cannot be opened or believed, experts that are incomplete or not quantised, a quantisation that no
    /// compute family supports, or one that does not explain the tensors' shapes.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, SourceError> {
        let directory = directory.as_ref();
        let mut tensors = TensorIndex::open_shards(directory, Shards::of_checkpoint(directory)?)?;
        let config = ModelConfig::read(&directory.join("config.json"))?;
        let experts = read_layers(&tensors, &config)?;
        tensors.retain(|name| ExpertName::parse(name, CHECKPOINT_PARTS).is_none());
        Ok(Self { tensors, experts })
    }

    /// Every tensor but the routed experts': routers, shared experts, attention, embeddings.
    #[must_use]
    pub const fn tensors(&self) -> &TensorIndex {
        &self.tensors
    }
}

impl ExpertSource for MlxCheckpoint {
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

fn read_layers(index: &TensorIndex, config: &ModelConfig) -> Result<ExpertTable, SourceError> {
    config.check_model()?;
    let activation = config.activation()?;
    let expected = config.experts()?;
    let layers = expert_layers(index, CHECKPOINT_PARTS)?;
    if let (Some(counted), Some(last)) = (config.layers()?, layers.last())
        && last.layer.0 >= counted
    {
        return Err(SourceError::LayerBeyond {
            path: config.path().into(),
            layer: last.layer,
            layers: counted,
        });
    }
    let mut table = ExpertTable::default();
    for layer in &layers {
        let reader = |number| ExpertReader { index, config, layer, table: number };
        let (geometry, stacked) = reader(0).geometry(activation)?;
        let experts = stacked.unwrap_or_else(|| layer.tables());
        if let Some(expected) = expected.filter(|&expected| expected != experts) {
            return Err(SourceError::ExpertCount { layer: layer.layer, found: experts, expected });
        }
        for number in 1..layer.tables() {
            let (other, _) = reader(number).geometry(activation)?;
            check_like_first(layer.key(number), &other, &geometry)?;
        }
        let tier = table.tier(layer.layer, geometry)?;
        let layout = table.tiers()[tier.index()].layout.clone();
        table.begin_layer(layer.layer, tier, experts)?;
        for expert in 0..experts {
            table.push_expert(reads(layer, &layout, expert));
        }
    }
    Ok(table.finish())
}

/// One read per component of an expert: its own tensors, or its slice of the layer's.
fn reads(layer: &LayerTensors<'_>, layout: &SlotLayout, expert: u32) -> Vec<Segment> {
    let (table, slice) = if layer.stacked { (0, u64::from(expert)) } else { (expert, 0) };
    let mut reads = Vec::with_capacity(Part::ALL.len() * Projection::ALL.len());
    for part in Part::ALL {
        for projection in Projection::ALL {
            let Some(range) = layout.range(projection, part) else { continue };
            let tensor = layer.get(table, projection, part).expect("the geometry was read from this tensor");
            let len_bytes = range.end - range.start;
            let offset_bytes = slice * len_bytes;
            assert!(offset_bytes + len_bytes <= tensor.len_bytes, "a slice outside its tensor");
            reads.push(Segment {
                file: tensor.file,
                file_offset_bytes: tensor.offset_bytes + offset_bytes,
                slot_offset_bytes: range.start,
                len_bytes,
            });
        }
    }
    reads
}

/// Reads the geometry of one expert, or of all experts of a layer if they are stacked.
struct ExpertReader<'a> {
    index: &'a TensorIndex,
    config: &'a ModelConfig,
    layer: &'a LayerTensors<'a>,
    table: u32,
}

/// What the tensors of one projection say.
struct Stored {
    /// How many experts are stacked; `None` if there is one.
    experts: Option<usize>,
    rows: u32,
    columns: u32,
    quantisation: Quantisation,
    bias: Option<FloatType>,
}

impl ExpertReader<'_> {
    /// The geometry, and the number of experts if they are stacked.
    fn geometry(&self, activation: Activation) -> Result<(ExpertGeometry, Option<u32>), SourceError> {
        let [down, gate, up] = Projection::ALL.map(|projection| self.projection(projection));
        let (down, gate, up) = (down?, gate?, up?);
        let (hidden, intermediate) = (down.rows, gate.rows);
        for (projection, stored, rows, columns) in [
            (Projection::Down, &down, hidden, intermediate),
            (Projection::Gate, &gate, intermediate, hidden),
            (Projection::Up, &up, intermediate, hidden),
        ] {
            let fits = stored.rows == rows && stored.columns == columns && stored.experts == down.experts;
            if !fits {
                let experts = down.experts.map_or(String::new(), |n| format!("{n} experts of "));
                let bits = stored.quantisation.bits();
                let expected = format!(
                    "{experts}{rows} rows of {columns} columns, as the other projections have, not {} of {} at {bits} bits",
                    stored.rows, stored.columns
                );
                return Err(self.shape_error(projection, Part::Weight, expected));
            }
            if stored.bias != down.bias {
                return Err(self.bias_error(projection));
            }
        }
        let geometry = ExpertGeometry {
            hidden,
            intermediate,
            quantisation: [down.quantisation, gate.quantisation, up.quantisation],
            bias: down.bias,
            activation,
        };
        Ok((geometry, self.checked_experts(down.experts)?))
    }

    fn checked_experts(&self, experts: Option<usize>) -> Result<Option<u32>, SourceError> {
        let Some(found) = experts else { return Ok(None) };
        match u32::try_from(found) {
            Ok(experts) if (1..=MAX_EXPERTS).contains(&experts) => Ok(Some(experts)),
            _ => {
                let expected = format!("1 to {MAX_EXPERTS} experts");
                Err(self.shape_error(Projection::Down, Part::Weight, expected))
            }
        }
    }

    /// One projection: its weights, scales and biases must explain each other.
    fn projection(&self, projection: Projection) -> Result<Stored, SourceError> {
        let (experts, rows, words) = self.weight_shape(projection)?;
        let quantisation = self.quantisation(projection)?;
        let storage = |part, reason| SourceError::Storage {
            path: self.file_of(projection, part),
            tensor: self.layer.name(self.table, projection, part),
            reason,
        };
        let columns = u32::try_from(u64::from(words) * 32 / u64::from(quantisation.bits()))
            .map_err(|_| self.shape_error(projection, Part::Weight, "fewer words in a row".into()))?;
        quantisation.weight_row_bytes(columns).map_err(|reason| storage(Part::Weight, reason))?;
        let groups = quantisation.scales_per_row(columns).map_err(|reason| storage(Part::Scales, reason))?;
        let lead: Vec<usize> = experts.into_iter().chain([rows as usize]).collect();
        let scales: Vec<usize> = lead.iter().copied().chain(usize::try_from(groups)).collect();
        let why = format!("{scales:?}: {columns} columns in {groups} groups");
        self.check_shape(projection, Part::Scales, &scales, &why)?;
        if quantisation.has_biases() {
            self.check_shape(projection, Part::Biases, &scales, &why)?;
        }
        let bias = self.layer.get(self.table, projection, Part::Bias);
        let bias = bias.map(|tensor| self.float_type(projection, Part::Bias, tensor)).transpose()?;
        if bias.is_some() {
            self.check_shape(projection, Part::Bias, &lead, &format!("{lead:?}"))?;
        }
        Ok(Stored { experts, rows, columns, quantisation, bias })
    }

    /// Experts (if stacked), rows, and words in a row.
    fn weight_shape(&self, projection: Projection) -> Result<(Option<usize>, u32, u32), SourceError> {
        let weight = self.layer.need(self.table, projection, Part::Weight)?;
        let (path, tensor) = (self.file_of(projection, Part::Weight), || {
            self.layer.name(self.table, projection, Part::Weight)
        });
        match weight.dtype {
            Dtype::U32 => {}
            dtype @ (Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16) => {
                return Err(SourceError::Unquantised { path, tensor: tensor(), dtype });
            }
            dtype => {
                let expected = "U32, packed as MLX packs quantised weights";
                return Err(SourceError::TensorType { path, tensor: tensor(), dtype, expected });
            }
        }
        let (experts, row) = match weight.shape.split_first() {
            Some((&experts, row)) if self.layer.stacked => (Some(experts), row),
            _ => (None, weight.shape.as_slice()),
        };
        let expected = if self.layer.stacked { "[experts, rows, words]" } else { "[rows, words]" };
        let &[rows, words] = row else {
            return Err(self.shape_error(projection, Part::Weight, expected.into()));
        };
        match (u32::try_from(rows), u32::try_from(words)) {
            (Ok(rows @ 1..), Ok(words @ 1..)) => Ok((experts, rows, words)),
            _ => Err(self.shape_error(projection, Part::Weight, format!("{expected}, none of them 0"))),
        }
    }

    /// What config.json says, with the scales' type from the tensor.
    fn quantisation(&self, projection: Projection) -> Result<Quantisation, SourceError> {
        let module = self.layer.path(self.table, projection);
        let stored = self.config.stored_as(&module)?;
        let scales = self.layer.need(self.table, projection, Part::Scales)?;
        let found = match (stored.mode.as_str(), stored.bits, stored.group) {
            ("affine", bits @ (2 | 3 | 4 | 5 | 6 | 8), group @ (32 | 64 | 128)) => {
                let scales = self.float_type(projection, Part::Scales, scales)?;
                let biases = self.layer.need(self.table, projection, Part::Biases)?;
                if self.float_type(projection, Part::Biases, biases)? != scales {
                    return Err(self.type_error(projection, Part::Biases, biases, "of the scales' type"));
                }
                return Ok(Quantisation::Affine { bits, group, scales });
            }
            ("mxfp4", 4, 32) => Quantisation::Mxfp4,
            ("nvfp4", 4, 16) => Quantisation::Nvfp4,
            ("mxfp8", 8, 32) => Quantisation::Mxfp8,
            (mode, bits, group) => {
                let (path, mode) = (self.config.path().into(), mode.into());
                return Err(SourceError::Mode { path, module, mode, bits, group });
            }
        };
        if scales.dtype != Dtype::U8 {
            return Err(self.type_error(projection, Part::Scales, scales, "U8"));
        }
        if self.layer.get(self.table, projection, Part::Biases).is_some() {
            return Err(SourceError::TensorUnexpected {
                path: self.file_of(projection, Part::Biases),
                tensor: self.layer.name(self.table, projection, Part::Biases),
                mode: stored.mode,
            });
        }
        Ok(found)
    }

    fn float_type(
        &self,
        projection: Projection,
        part: Part,
        tensor: &Tensor,
    ) -> Result<FloatType, SourceError> {
        match tensor.dtype {
            Dtype::F32 => Ok(FloatType::F32),
            Dtype::F16 => Ok(FloatType::F16),
            Dtype::BF16 => Ok(FloatType::Bf16),
            _ => Err(self.type_error(projection, part, tensor, "F32, F16 or BF16")),
        }
    }

    fn check_shape(
        &self,
        projection: Projection,
        part: Part,
        shape: &[usize],
        expected: &str,
    ) -> Result<(), SourceError> {
        if self.layer.need(self.table, projection, part)?.shape == shape {
            return Ok(());
        }
        Err(self.shape_error(projection, part, expected.into()))
    }

    /// The path of the file with a tensor, for messages; empty if there is no such tensor.
    fn file_of(&self, projection: Projection, part: Part) -> std::path::PathBuf {
        let tensor = self.layer.get(self.table, projection, part);
        tensor.map(|tensor| self.index.path(tensor.file).into()).unwrap_or_default()
    }

    fn shape_error(&self, projection: Projection, part: Part, expected: String) -> SourceError {
        let shape = self.layer.get(self.table, projection, part).map(|tensor| tensor.shape.clone());
        SourceError::TensorShape {
            path: self.file_of(projection, part),
            tensor: self.layer.name(self.table, projection, part),
            shape: shape.unwrap_or_default(),
            expected,
        }
    }

    fn type_error(
        &self,
        projection: Projection,
        part: Part,
        tensor: &Tensor,
        expected: &'static str,
    ) -> SourceError {
        SourceError::TensorType {
            path: self.index.path(tensor.file).into(),
            tensor: self.layer.name(self.table, projection, part),
            dtype: tensor.dtype,
            expected,
        }
    }

    /// A projection whose own bias differs from the down projection's: in type, or one of them lacks it.
    fn bias_error(&self, projection: Projection) -> SourceError {
        let down = self.layer.need(self.table, Projection::Down, Part::Bias);
        let own = self.layer.need(self.table, projection, Part::Bias);
        match (down, own) {
            (Ok(_), Ok(own)) => self.type_error(projection, Part::Bias, own, "of the down projection's type"),
            (Err(missing), _) | (_, Err(missing)) => missing,
        }
    }
}
