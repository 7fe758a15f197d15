//! What experts look like as bytes: quantisation, geometry, the layout of a slot, and file headers.

mod checksum;
mod config;
mod decode;
mod geometry;
mod quantisation;
mod safetensors;
mod slab;
mod view;

pub use checksum::record_checksum;
pub(crate) use checksum::{bytes_checksum, first_nonzero_padding, zero_padding};
pub use config::ConfigError;
pub(crate) use config::{MAX_CONFIG_NUMBER, ModelConfig};
pub(crate) use decode::check_length;
pub use decode::{DecodeError, decode_floats, dequantise_row};
pub use geometry::{
    Activation, ExpertGeometry, GeometryError, Part, Projection, ProjectionGeometry, SlotLayout,
};
pub use quantisation::{FloatType, Quantisation};
pub use safetensors::HeaderError;
pub(crate) use safetensors::{EntryList, HeaderTensor, PREFIX_BYTES, header_bytes, parse_header};
pub(crate) use slab::{
    Head, HeadState, MAX_RECORDS, Manifest, ManifestLayer, ManifestTier, Table, is_slab, whole_pages,
};
pub use slab::{Origin, OriginFile, SlabError};
pub use view::ExpertView;
