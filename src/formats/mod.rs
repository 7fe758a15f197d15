//! What experts look like as bytes: quantisation, geometry, the layout of a slot, and file headers.

mod config;
mod decode;
mod geometry;
mod quantisation;
mod safetensors;
mod view;

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
pub use view::ExpertView;
