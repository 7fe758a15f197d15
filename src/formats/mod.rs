//! What experts look like as bytes: quantisation, geometry, the layout of a slot, and file headers.

mod decode;
mod geometry;
mod quantisation;
mod view;

pub(crate) use decode::check_length;
pub use decode::{DecodeError, decode_floats, dequantise_row};
pub use geometry::{
    Activation, ExpertGeometry, GeometryError, Part, Projection, ProjectionGeometry, SLOT_ALIGNMENT_BYTES,
    SlotLayout,
};
pub use quantisation::{FloatType, Quantisation};
pub use view::ExpertView;
