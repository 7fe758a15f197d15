//! The instruction sets.

mod portable;

pub(super) use portable::Portable;
