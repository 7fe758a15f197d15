//! One dispatch, described.

use super::text::KernelName;
use crate::formats::FloatType;

/// An element type that a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scalar {
    /// A floating-point type.
    Float(FloatType),
    /// u32.
    U32,
}

/// The value of a kernel's template parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Parameter {
    /// `typename`
    Type(FloatType),
    /// `int`
    Int(i32),
    /// `bool`
    Bool(bool),
}

/// One input or output of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    /// Its name in the kernel's text.
    pub(crate) name: &'static str,
    /// Its element type.
    pub(crate) scalar: Scalar,
}

/// All of a dispatch but the arrays themselves.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Which kernel.
    pub(crate) kernel: KernelName,
    /// Its template arguments, in order. They and the types below decide which compiled kernel serves.
    pub(crate) parameters: Vec<(&'static str, Parameter)>,
    /// Its inputs, in order.
    pub(crate) inputs: Vec<Argument>,
    /// The type of its one output.
    pub(crate) output: FloatType,
    /// The shape of the output.
    pub(crate) shape: [i32; 2],
    /// Threads in all.
    pub(crate) grid: [i32; 3],
    /// Threads of one threadgroup.
    pub(crate) threadgroup: [i32; 3],
}
