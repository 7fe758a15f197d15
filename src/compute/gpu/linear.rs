//! Products with matrices that stay in memory: what the kernels can compute, and how they are called for it.

use super::{
    call::{Call, Parameter},
    expert::{MAX_WIDTH, SIMDGROUPS, blocks, ceiling, float, index, small, unsigned},
    text::KernelName,
    work::{MAX_TILES, WorkError},
};
use crate::formats::FloatType;

/// A matrix `[rows, columns]` in MLX's affine format: weight = code × scale + bias, one scale and bias for `group` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearSpec {
    /// Rows: the width of the output.
    pub rows: u32,
    /// Columns: the width of the input.
    pub columns: u32,
    /// Bits of a code.
    pub bits: u32,
    /// Columns that share a scale. The last group of a row may be short.
    pub group: u32,
    /// The type of scales and biases.
    pub scales: FloatType,
}

/// Why this crate's kernels do not compute a product. MLX's own must.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnsupportedLinear {
    /// Codes of another width.
    #[error("the kernels read codes of 2, 4 or 8 bits, not {bits}")]
    Bits {
        /// The width.
        bits: u32,
    },
    /// Rows that lanes cannot share.
    #[error("{columns} columns are not a positive multiple of {multiple}")]
    Columns {
        /// The input's width.
        columns: u32,
        /// What it must be a multiple of.
        multiple: u32,
    },
    /// Groups that lanes cannot share.
    #[error("groups of {group} columns are not a positive multiple of {multiple}")]
    Group {
        /// Columns that share a scale.
        group: u32,
        /// What it must be a multiple of.
        multiple: u32,
    },
    /// More than the kernels count in 32 bits.
    #[error(
        "{rows} rows of {columns} columns are more than the {row_limit} and {column_limit} of the kernels"
    )]
    TooLarge {
        /// The output's width.
        rows: u32,
        /// The input's width.
        columns: u32,
        /// The most rows.
        row_limit: u32,
        /// The most columns.
        column_limit: u32,
    },
    /// Arrays so small that MLX hands them to a kernel in another address space.
    #[error(
        "a matrix of {words} words and {scales} scales is smaller than the {least} of each that a kernel takes"
    )]
    TooSmall {
        /// u32 words of weights.
        words: u64,
        /// Scales.
        scales: u64,
        /// The least of each.
        least: u64,
    },
    /// Two matrices that do not belong together.
    #[error("gate is {gate:?} and up {up:?} (rows, columns): they must be of one size")]
    SizesDiffer {
        /// Rows and columns of gate.
        gate: [u32; 2],
        /// Rows and columns of up.
        up: [u32; 2],
    },
}

/// Where the fused expansion rounds. The products are computed in f32 in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rounding {
    /// Once, at the end: the most precise.
    #[default]
    F32,
    /// To the input's type after each product, after the sigmoid and after each multiplication, as separate operations on
    /// arrays of that type round. The order of addition within a product is still ours, not MLX's.
    Match,
}

/// What input widths and groups are multiples of.
const MULTIPLE: u32 = 32;

/// The most rows of a matrix.
const MAX_ROWS: u32 = 1 << 18;

/// Inputs of fewer elements lie in MLX's `constant` address space.
const LEAST_ELEMENTS: u64 = 8;

/// Columns of the output that a simdgroup of `linear` makes.
const LINEAR_ROWS: i32 = 4;

/// Columns of the output that a simdgroup of `swiglu` makes: as many gate rows and as many up rows.
const SWIGLU_ROWS: i32 = 2;

/// A product that the kernels can compute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuLinear {
    spec: LinearSpec,
}

impl GpuLinear {
    /// # Errors
    /// Why the kernels cannot compute it.
    pub(crate) const fn new(spec: LinearSpec) -> Result<Self, UnsupportedLinear> {
        let LinearSpec { rows, columns, bits, group, .. } = spec;
        if !matches!(bits, 2 | 4 | 8) {
            return Err(UnsupportedLinear::Bits { bits });
        }
        if columns == 0 || !columns.is_multiple_of(MULTIPLE) {
            return Err(UnsupportedLinear::Columns { columns, multiple: MULTIPLE });
        }
        if group == 0 || !group.is_multiple_of(MULTIPLE) {
            return Err(UnsupportedLinear::Group { group, multiple: MULTIPLE });
        }
        // Words of a matrix are then at most 2^32, so that u32 counts all but their end.
        if columns > MAX_WIDTH || rows > MAX_ROWS || group > MAX_WIDTH {
            let (row_limit, column_limit) = (MAX_ROWS, MAX_WIDTH);
            return Err(UnsupportedLinear::TooLarge { rows, columns, row_limit, column_limit });
        }
        let words = rows as u64 * (columns * bits / 32) as u64;
        let scales = rows as u64 * columns.div_ceil(group) as u64;
        if words < LEAST_ELEMENTS || scales < LEAST_ELEMENTS {
            return Err(UnsupportedLinear::TooSmall { words, scales, least: LEAST_ELEMENTS });
        }
        Ok(Self { spec })
    }

    /// `linear`: x `[count, columns]` of `x_type` to `[count, rows]` of the same type.
    ///
    /// # Errors
    /// More rows of x than one dispatch takes.
    pub(crate) fn call(&self, x_type: FloatType, count: usize) -> Result<Call, WorkError> {
        let (per_tile, tiles) = tiles(count)?;
        let mut parameters = vec![("T", Parameter::Type(x_type))];
        self.sizes(&mut parameters);
        self.stored(["S", "BITS", "GROUP"], &mut parameters);
        parameters.extend([("ROWS", Parameter::Int(LINEAR_ROWS)), ("PAIRS", Parameter::Int(per_tile))]);
        let scales = self.spec.scales;
        Ok(Call {
            kernel: KernelName::Linear,
            parameters,
            inputs: vec![
                float("x", x_type),
                unsigned("weight"),
                float("scales", scales),
                float("biases", scales),
                unsigned("counts"),
            ],
            output: x_type,
            shape: [index(count), small(self.spec.rows)],
            grid: [32, blocks(small(self.spec.rows), LINEAR_ROWS, SIMDGROUPS), tiles],
            threadgroup: [32, SIMDGROUPS, 1],
        })
    }

    fn sizes(&self, into: &mut Vec<(&'static str, Parameter)>) {
        into.extend([
            ("IN", Parameter::Int(small(self.spec.columns))),
            ("OUT", Parameter::Int(small(self.spec.rows))),
        ]);
    }

    fn stored(&self, names: [&'static str; 3], into: &mut Vec<(&'static str, Parameter)>) {
        let LinearSpec { bits, group, scales, .. } = self.spec;
        let values = [Parameter::Type(scales), Parameter::Int(small(bits)), Parameter::Int(small(group))];
        into.extend(names.into_iter().zip(values));
    }
}

/// An expansion that the kernels can compute in one dispatch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuSwiGlu {
    gate: GpuLinear,
    up: GpuLinear,
}

impl GpuSwiGlu {
    /// # Errors
    /// Why the kernels cannot compute it.
    pub(crate) const fn new(gate: LinearSpec, up: LinearSpec) -> Result<Self, UnsupportedLinear> {
        if gate.rows != up.rows || gate.columns != up.columns {
            let (gate, up) = ([gate.rows, gate.columns], [up.rows, up.columns]);
            return Err(UnsupportedLinear::SizesDiffer { gate, up });
        }
        match (GpuLinear::new(gate), GpuLinear::new(up)) {
            (Ok(gate), Ok(up)) => Ok(Self { gate, up }),
            (Err(reason), _) | (_, Err(reason)) => Err(reason),
        }
    }

    /// `swiglu`: x `[count, columns]` of `x_type` to `[count, rows]` of the same type.
    ///
    /// # Errors
    /// More rows of x than one dispatch takes.
    pub(crate) fn call(
        &self,
        x_type: FloatType,
        count: usize,
        rounding: Rounding,
    ) -> Result<Call, WorkError> {
        let (per_tile, tiles) = tiles(count)?;
        let mut parameters = vec![("T", Parameter::Type(x_type))];
        self.gate.sizes(&mut parameters);
        self.gate.stored(["GATE_S", "GATE_BITS", "GATE_GROUP"], &mut parameters);
        self.up.stored(["UP_S", "UP_BITS", "UP_GROUP"], &mut parameters);
        parameters.extend([
            ("ROWS", Parameter::Int(SWIGLU_ROWS)),
            ("PAIRS", Parameter::Int(per_tile)),
            ("MATCH", Parameter::Bool(rounding == Rounding::Match)),
        ]);
        let (gate, up, rows) = (self.gate.spec.scales, self.up.spec.scales, small(self.gate.spec.rows));
        Ok(Call {
            kernel: KernelName::SwiGlu,
            parameters,
            inputs: vec![
                float("x", x_type),
                unsigned("gate_weight"),
                float("gate_scales", gate),
                float("gate_biases", gate),
                unsigned("up_weight"),
                float("up_scales", up),
                float("up_biases", up),
                unsigned("counts"),
            ],
            output: x_type,
            shape: [index(count), rows],
            grid: [32, blocks(rows, SWIGLU_ROWS, SIMDGROUPS), tiles],
            threadgroup: [32, SIMDGROUPS, 1],
        })
    }
}

/// Rows of x in a tile, and tiles, for `count` rows. No bit depends on it.
fn tiles(count: usize) -> Result<(i32, i32), WorkError> {
    let per_tile: i32 = match count {
        0 | 1 => 1,
        2 | 3 => 2,
        _ => 4,
    };
    let limit = MAX_TILES * 4;
    if count > limit {
        return Err(WorkError::TooMany { what: "rows", count, limit });
    }
    Ok((per_tile, ceiling(index(count), per_tile)))
}
