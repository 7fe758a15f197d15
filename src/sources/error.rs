//! What can be wrong with files and with the experts in them.

use std::{io, path::PathBuf};

use safetensors::Dtype;

use super::files::FileChange;
use crate::{
    formats::{ConfigError, GeometryError, HeaderError, SlabError},
    ids::{ExpertKey, LayerId},
};

/// Tensors that cannot be found or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The system did not open a file or directory.
    #[error("could not open {path}")]
    Open {
        /// The file or directory.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// A directory without the files looked for.
    #[error("{path} holds no file of {what}")]
    NoFiles {
        /// The directory, or the index that names no file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// More files than any model has.
    #[error("{path} has {files} files, and {limit} is the limit")]
    TooManyFiles {
        /// The directory or the index.
        path: PathBuf,
        /// How many.
        files: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A file too short to be a safetensors file.
    #[error("{path} is not a safetensors file: it has only {file_bytes} B")]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Its length.
        file_bytes: u64,
    },
    /// A header that cannot be believed.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The system did not read a header.
    #[error("could not read the header of {path}")]
    ReadHeader {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// An index longer than any index.
    #[error("{path} is longer than {limit_bytes} B, the limit of an index")]
    IndexTooLong {
        /// The index.
        path: PathBuf,
        /// The limit.
        limit_bytes: u64,
    },
    /// An index that is no JSON object with a `weight_map` of file names.
    #[error("{path} is not an index: it should be a JSON object with a weight_map from tensors to files")]
    IndexJson {
        /// The index.
        path: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A shard that is not a plain file name.
    #[error("{index} names the shard {shard:?}, which is not the name of a file beside it")]
    ShardName {
        /// The index.
        index: PathBuf,
        /// The name.
        shard: String,
    },
    /// A shard that is listed and not there.
    #[error("the shard {shard} is listed in {index} but absent; fetch it")]
    ShardAbsent {
        /// The shard.
        shard: PathBuf,
        /// The index that lists it.
        index: PathBuf,
    },
    /// A tensor that is not where the index says.
    #[error("tensor {tensor} is not in {shard}, where {index} says it is")]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
        /// The index.
        index: PathBuf,
    },
    /// A name that appears in two files, or twice in an index.
    #[error("tensor {tensor} appears twice: in {first} and in {second}")]
    Twice {
        /// The name.
        tensor: String,
        /// One place.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A tensor that was asked for and is not there.
    #[error("there is no tensor {tensor} in {path}")]
    Unknown {
        /// The name.
        tensor: String,
        /// What was opened.
        path: PathBuf,
    },
    /// A tensor too large to be read into memory at once.
    #[error("tensor {tensor} has {len_bytes} B, more than memory holds or the limit of {limit_bytes} B")]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its size.
        len_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The system did not read a tensor, or the file was cut after it was opened.
    #[error("could not read tensor {tensor}: {len_bytes} B at byte {offset_bytes} of {path}")]
    ReadTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it begins.
        offset_bytes: u64,
        /// How long it is.
        len_bytes: u64,
        /// What the system answered.
        source: io::Error,
    },
}

/// A checkpoint or container whose experts cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A directory that holds both kinds of files.
    #[error(
        "{path} holds a checkpoint (model*.safetensors) and a Colibri container (out-*.safetensors); open one of them by its type"
    )]
    Ambiguous {
        /// The directory.
        path: PathBuf,
    },
    /// A directory that holds neither kind of files.
    #[error(
        "{path} is no slab, and holds neither a checkpoint (model*.safetensors) nor a Colibri container (out-*.safetensors)"
    )]
    Unrecognised {
        /// The directory.
        path: PathBuf,
    },
    /// A slab that cannot be used.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// The system did not map a file.
    #[error("could not map {}", path.display())]
    Map {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// A file or its copy could not be compared.
    #[error("could not compare {} with its mirror", path.display())]
    Mirror {
        /// The one that could not be read.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// A copy that is none.
    #[error("{} is no copy of {}: its {what} differ", mirror.display(), path.display())]
    MirrorDiffers {
        /// The first one.
        path: PathBuf,
        /// What should be its copy.
        mirror: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// Directories without a copy of any file.
    #[error("no file of the source has a copy of its name in {directories:?}")]
    NoMirror {
        /// Where copies were looked for.
        directories: Vec<PathBuf>,
    },
    /// A file that is not the one that was opened any more.
    #[error("{} has changed: {change}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// How.
        change: FileChange,
    },
    /// Files that cannot be opened or believed.
    #[error(transparent)]
    Tensors(#[from] TensorError),
    /// A configuration that cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No tensor of a routed expert.
    #[error("{path} has no tensor of a routed expert")]
    NoExperts {
        /// What was opened.
        path: PathBuf,
    },
    /// A layer or expert number beyond any model's.
    #[error("tensor {tensor} is numbered {found}; layers and experts are numbered below {limit}")]
    Number {
        /// The tensor.
        tensor: String,
        /// The number.
        found: u32,
        /// The limit.
        limit: u32,
    },
    /// Experts in a layer that the model does not have.
    #[error(
        "there are experts of {layer}, but by {path} (num_hidden_layers, and num_nextn_predict_layers) the model has \
         {layers} layers, counted from L0; the files are of two models, or one was changed"
    )]
    LayerBeyond {
        /// The configuration.
        path: PathBuf,
        /// The last layer with experts.
        layer: LayerId,
        /// How many layers there are.
        layers: u32,
    },
    /// Two sets of experts in one layer.
    #[error("{layer} has two sets of experts: {block} and that of {tensor}")]
    TwoSets {
        /// The layer.
        layer: LayerId,
        /// Path of the first.
        block: String,
        /// A tensor of the second.
        tensor: String,
    },
    /// More geometries than any model has.
    #[error("{layer} would be the first of another tier, and {limit} tiers are the limit")]
    TooManyTiers {
        /// The layer.
        layer: LayerId,
        /// The limit.
        limit: usize,
    },
    /// More experts than any model has.
    #[error("with {layer} there would be {experts} experts in all, and {limit} is the limit")]
    TooManyExperts {
        /// The layer that has too many.
        layer: LayerId,
        /// How many there would be.
        experts: usize,
        /// The limit.
        limit: usize,
    },
    /// A tensor that an expert needs and lacks.
    #[error("{layer} lacks tensor {tensor}; fetch every file of the model")]
    TensorMissing {
        /// The layer.
        layer: LayerId,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the format does not have.
    #[error("tensor {tensor} in {path} should not be there: {mode} has no such part")]
    TensorUnexpected {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The mode.
        mode: String,
    },
    /// A tensor of another type than its part has.
    #[error("tensor {tensor} in {path} is {dtype}, and should be {expected}")]
    TensorType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// What it should be.
        expected: &'static str,
    },
    /// A tensor of another shape than its part has.
    #[error("tensor {tensor} in {path} has shape {shape:?}, and should have {expected}")]
    TensorShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// What it should be.
        expected: String,
    },
    /// Experts that are not quantised.
    #[error(
        "tensor {tensor} in {path} is {dtype}: no compute family supports unquantised experts; quantise the checkpoint"
    )]
    Unquantised {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
    },
    /// A quantisation that no compute family has.
    #[error(
        "{module} in {path} is stored as {mode}, {bits} bits, groups of {group}, which no compute family supports"
    )]
    Mode {
        /// The configuration.
        path: PathBuf,
        /// The module.
        module: String,
        /// The mode.
        mode: String,
        /// Bits per weight.
        bits: u32,
        /// Columns per scale.
        group: u32,
    },
    /// Weights or scales that the quantisation cannot have.
    #[error("tensor {tensor} in {path}: {reason}")]
    Storage {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What does not fit.
        reason: GeometryError,
    },
    /// A geometry that has no slot layout.
    #[error("the experts of {layer} have no slot layout: {reason}")]
    Layout {
        /// The layer.
        layer: LayerId,
        /// Why.
        reason: GeometryError,
    },
    /// An expert that differs from expert 0 of its layer.
    #[error("expert {expert} differs from E0 of its layer in {what}: {found} against {first}")]
    ExpertDiffers {
        /// The expert.
        expert: ExpertKey,
        /// In what.
        what: &'static str,
        /// What it has.
        found: String,
        /// What expert 0 has.
        first: String,
    },
    /// A number of experts that contradicts the configuration.
    #[error("{layer} has {found} experts, and config.json says {expected}; fetch every file of the model")]
    ExpertCount {
        /// The layer.
        layer: LayerId,
        /// How many there are.
        found: u32,
        /// How many there should be.
        expected: u32,
    },
    /// Colibri weights of neither width.
    #[error(
        "tensor {tensor} in {path} has {len_bytes} B; {rows} rows of {columns} take {bytes_8} B at 8 bits and {bytes_4} B at 4"
    )]
    WeightBytes {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// How many bytes it has.
        len_bytes: u64,
        /// Output features.
        rows: u32,
        /// Input features.
        columns: u32,
        /// Bytes at 8 bits.
        bytes_8: u64,
        /// Bytes at 4 bits.
        bytes_4: u64,
    },
    /// Colibri weights of 8 bits with more scales than rows.
    #[error(
        "tensor {tensor} in {path} has {scales} scales for {rows} rows of 8 bits, which cannot be grouped"
    )]
    GroupedEightBits {
        /// The file.
        path: PathBuf,
        /// The scales.
        tensor: String,
        /// How many there are.
        scales: u64,
        /// Output features.
        rows: u32,
    },
    /// Colibri scales that no group size explains.
    #[error(
        "tensor {tensor} in {path} has {scales} scales for {rows} rows of {columns}, which no group size explains"
    )]
    NoGroup {
        /// The file.
        path: PathBuf,
        /// The scales.
        tensor: String,
        /// How many there are.
        scales: u64,
        /// Output features.
        rows: u32,
        /// Input features.
        columns: u32,
    },
    /// Colibri scales that several group sizes explain.
    #[error("the scales of {expert} fit groups of {candidates:?}; name one in ColibriOptions::group")]
    GroupAmbiguous {
        /// The expert.
        expert: ExpertKey,
        /// The group sizes that fit.
        candidates: Vec<u32>,
    },
    /// Colibri scales that the caller's group size does not explain.
    #[error(
        "tensor {tensor} in {path} has {scales} scales for {rows} rows of {columns}, which groups of {group} do not explain"
    )]
    GroupRefuted {
        /// The file.
        path: PathBuf,
        /// The scales.
        tensor: String,
        /// How many there are.
        scales: u64,
        /// Output features.
        rows: u32,
        /// Input features.
        columns: u32,
        /// What the caller named.
        group: u32,
    },
    /// A group size that Colibri does not have.
    #[error("groups of {group} do not exist; Colibri has {known:?}")]
    GroupUnknown {
        /// What the caller named.
        group: u32,
        /// What there is.
        known: &'static [u32],
    },
    /// A group size named for a container without groups.
    #[error("groups of {group} were named, but every expert in {path} has one scale per row")]
    GroupUnused {
        /// The container.
        path: PathBuf,
        /// What the caller named.
        group: u32,
    },
    /// A width that no model has.
    #[error("{field} was given as {width}; widths are 1 to {limit}")]
    Width {
        /// The field of config.json that the width stands for.
        field: &'static str,
        /// What the caller gave.
        width: u32,
        /// The limit.
        limit: u32,
    },
}
