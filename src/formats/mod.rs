//! What experts look like as bytes: quantisation, geometry, the layout of a slot, and file headers.

mod geometry;
mod quantisation;
mod view;

pub use geometry::{
    Activation, ExpertGeometry, GeometryError, Part, Projection, ProjectionGeometry, SLOT_ALIGNMENT_BYTES,
    SlotLayout,
};
pub use quantisation::{FloatType, Quantisation};
pub use view::ExpertView;
