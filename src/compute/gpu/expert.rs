//! What the kernels can compute, and how they are called for it.

use super::{
    call::{Argument, Call, Parameter, Scalar},
    text::KernelName,
};
use crate::formats::{Activation, ExpertGeometry, FloatType, Part, Projection, Quantisation, SlotLayout};

/// Why the kernels cannot compute experts of a geometry. Another family must.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub(crate) enum UnsupportedGeometry {
    /// A storage format that the kernels do not read.
    #[error(
        "{projection:?}: the kernels read signed and affine weights of 4 or 8 bits, not {quantisation:?}"
    )]
    Format {
        /// The projection.
        projection: Projection,
        /// Its format.
        quantisation: Quantisation,
    },
    /// Gate and up stored differently.
    #[error("gate ({gate:?}) and up ({up:?}) must be stored alike")]
    GateAndUpDiffer {
        /// Gate's format.
        gate: Quantisation,
        /// Up's format.
        up: Quantisation,
    },
    /// A width that lanes cannot share.
    #[error("{projection:?}: {columns} columns are not a multiple of {multiple}")]
    Columns {
        /// The projection.
        projection: Projection,
        /// Its input width.
        columns: u32,
        /// What it must be a multiple of.
        multiple: u32,
    },
    /// A group that ends within a lane's columns.
    #[error("{projection:?}: groups of {group} are not a multiple of {multiple}")]
    Group {
        /// The projection.
        projection: Projection,
        /// Columns per scale.
        group: u32,
        /// What it must be a multiple of.
        multiple: u32,
    },
    /// A projection's own bias with a format whose order of rounding is stated only without one.
    #[error("{projection:?}: signed weights with a bias of the projection itself")]
    SignedWithBias {
        /// The projection.
        projection: Projection,
    },
    /// A size beyond what the kernels count in 32 bits.
    #[error("hidden {hidden} or intermediate {intermediate} is beyond {limit}")]
    TooLarge {
        /// Width of the residual stream.
        hidden: u32,
        /// Width between the products.
        intermediate: u32,
        /// The largest width.
        limit: u32,
    },
}

/// Columns that a lane takes at a time: a row's width and its groups are multiples of it.
const LANE_COLUMNS: u32 = 16;

/// The largest width of a row. (Above any model's; keeps every product of sizes inside a u32.)
pub(super) const MAX_WIDTH: u32 = 1 << 16;

/// Simdgroups of a threadgroup of `gate_up` and `down`.
pub(super) const SIMDGROUPS: i32 = 4;

/// Inner columns that a simdgroup of `gate_up` makes: as many gate rows and as many up rows.
const GATE_UP_ROWS: i32 = 2;

/// Output columns that a simdgroup of `down` makes.
const DOWN_ROWS: i32 = 4;

/// Output columns that a threadgroup of `down_compose` makes.
const DOWN_COMPOSE_ROWS: i32 = 8;

/// Simdgroups of a threadgroup of `down_compose`, ranks at work at the same time: for few ranks, and for more.
const COMPOSE_SIMDGROUPS: [i32; 2] = [4, 8];

/// How one projection is stored, as template arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stored {
    bits: i32,
    group: i32,
    signed: bool,
    scales: FloatType,
}

impl Stored {
    fn of(geometry: &ExpertGeometry, projection: Projection) -> Result<Self, UnsupportedGeometry> {
        let shape = geometry.projection(projection);
        let (columns, quantisation) = (shape.columns, shape.quantisation);
        let (bits, group, signed, scales) = match quantisation {
            Quantisation::Affine { bits: bits @ (4 | 8), group, scales } => (bits, group, false, scales),
            Quantisation::Signed { bits: bits @ (4 | 8), group } => {
                (bits, group.unwrap_or(columns).min(columns), true, FloatType::F32)
            }
            _ => return Err(UnsupportedGeometry::Format { projection, quantisation }),
        };
        if columns % LANE_COLUMNS != 0 {
            return Err(UnsupportedGeometry::Columns { projection, columns, multiple: LANE_COLUMNS });
        }
        if group == 0 || group % LANE_COLUMNS != 0 {
            return Err(UnsupportedGeometry::Group { projection, group, multiple: LANE_COLUMNS });
        }
        if signed && geometry.bias.is_some() {
            return Err(UnsupportedGeometry::SignedWithBias { projection });
        }
        Ok(Self { bits: small(bits), group: small(group), signed, scales })
    }

    fn parameters(self, into: &mut Vec<(&'static str, Parameter)>) {
        into.extend([
            ("S", Parameter::Type(self.scales)),
            ("BITS", Parameter::Int(self.bits)),
            ("GROUP", Parameter::Int(self.group)),
            ("SIGNED", Parameter::Bool(self.signed)),
        ]);
    }
}

/// An expert geometry that the kernels can compute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuExpert {
    hidden: i32,
    inner: i32,
    gate_up: Stored,
    down: Stored,
    bias: Option<FloatType>,
    activation: Activation,
}

impl GpuExpert {
    /// # Errors
    /// Why the kernels cannot compute `geometry`.
    pub(crate) fn new(geometry: &ExpertGeometry) -> Result<Self, UnsupportedGeometry> {
        let ExpertGeometry { hidden, intermediate, .. } = *geometry;
        if hidden > MAX_WIDTH || intermediate > MAX_WIDTH {
            return Err(UnsupportedGeometry::TooLarge { hidden, intermediate, limit: MAX_WIDTH });
        }
        let [down, gate, up] = geometry.quantisation;
        let stored = Stored::of(geometry, Projection::Gate)?;
        if gate != up {
            return Err(UnsupportedGeometry::GateAndUpDiffer { gate, up });
        }
        if !matches!(geometry.activation, Activation::SwiGlu | Activation::ClampedSwiGlu { .. }) {
            return Err(UnsupportedGeometry::Format { projection: Projection::Down, quantisation: down });
        }
        Ok(Self {
            hidden: small(hidden),
            inner: small(intermediate),
            gate_up: stored,
            down: Stored::of(geometry, Projection::Down)?,
            bias: geometry.bias,
            activation: geometry.activation,
        })
    }

    /// Width of input and output rows.
    #[cfg(feature = "mlx")]
    pub(crate) const fn hidden(&self) -> i32 {
        self.hidden
    }

    /// The array `layout` of the kernels: words before the first slot, words of a slot, then where in a slot gate, up and
    /// down begin, each with weights, scales, biases and the projection's own bias (0 for a part that is not there).
    pub(crate) fn layout_words(layout: &SlotLayout, skipped_bytes: usize) -> [u32; 14] {
        let mut words = [0; 14];
        words[0] = word(skipped_bytes as u64);
        words[1] = word(layout.slot_bytes());
        let parts = [Projection::Gate, Projection::Up, Projection::Down].into_iter().flat_map(|projection| {
            Part::ALL.map(|part| layout.range(projection, part).map_or(0, |range| word(range.start)))
        });
        for (place, offset) in words[2..].iter_mut().zip(parts) {
            *place = offset;
        }
        words
    }

    /// How many pairs of one expert share a tile when a wave has `pairs` pairs of `jobs` experts. Speed alone depends on
    /// it: a pair's bits are the same in every tile.
    #[cfg(feature = "mlx")]
    pub(crate) const fn pairs_per_tile(pairs: usize, jobs: usize) -> usize {
        match pairs.checked_div(jobs) {
            None | Some(0..=2) => 1,
            Some(3..=15) => 2,
            _ => 4,
        }
    }

    /// `gate_up`: x `[rows, hidden]` of `x_type` to inner `[pairs, intermediate]` f32.
    pub(crate) fn gate_up(&self, x_type: FloatType, pairs: usize, tiles: usize, per_tile: usize) -> Call {
        let (alpha, limit, clamped) = match self.activation {
            Activation::ClampedSwiGlu { alpha, limit } => (alpha, limit, true),
            _ => (0.0, 0.0, false),
        };
        let mut parameters = vec![("T", Parameter::Type(x_type))];
        self.sizes(&mut parameters);
        self.gate_up.parameters(&mut parameters);
        parameters.extend([
            ("ROWS", Parameter::Int(GATE_UP_ROWS)),
            ("PAIRS", Parameter::Int(index(per_tile))),
            ("CLAMPED", Parameter::Bool(clamped)),
            ("ALPHA", Parameter::Int(alpha.to_bits().cast_signed())),
            ("LIMIT", Parameter::Int(limit.to_bits().cast_signed())),
        ]);
        Call {
            kernel: KernelName::GateUp,
            parameters,
            inputs: vec![
                float("x", x_type),
                unsigned("bank"),
                unsigned("layout"),
                unsigned("tiles"),
                unsigned("pair_rows"),
            ],
            output: FloatType::F32,
            shape: [index(pairs), self.inner],
            grid: [32, blocks(self.inner, GATE_UP_ROWS, SIMDGROUPS), index(tiles)],
            threadgroup: [32, SIMDGROUPS, 1],
        }
    }

    /// `down`: inner `[pairs, intermediate]` to weighted rows `[pairs, hidden]`, both f32.
    pub(crate) fn down(&self, pairs: usize, tiles: usize, per_tile: usize) -> Call {
        let mut parameters = Vec::new();
        self.sizes(&mut parameters);
        self.down.parameters(&mut parameters);
        parameters.extend([("ROWS", Parameter::Int(DOWN_ROWS)), ("PAIRS", Parameter::Int(index(per_tile)))]);
        Call {
            kernel: KernelName::Down,
            parameters,
            inputs: vec![
                float("inner", FloatType::F32),
                unsigned("bank"),
                unsigned("layout"),
                unsigned("tiles"),
                float("weights", FloatType::F32),
            ],
            output: FloatType::F32,
            shape: [index(pairs), self.hidden],
            grid: [32, blocks(self.hidden, DOWN_ROWS, SIMDGROUPS), index(tiles)],
            threadgroup: [32, SIMDGROUPS, 1],
        }
    }

    /// `down_compose`: inner `[pairs, intermediate]` f32 to `[rows, hidden]` of `out_type`, for rows of at most `ranks`
    /// ranks.
    pub(crate) fn down_compose(&self, out_type: FloatType, rows: usize, ranks: usize, shared: bool) -> Call {
        let [few, many] = COMPOSE_SIMDGROUPS;
        let simdgroups = if index(ranks) <= few { few } else { many };
        let ranks = index(ranks.max(1).next_multiple_of(8));
        let mut parameters = vec![("T", Parameter::Type(out_type))];
        self.sizes(&mut parameters);
        self.down.parameters(&mut parameters);
        parameters.extend([
            ("ROWS", Parameter::Int(DOWN_COMPOSE_ROWS)),
            ("RANKS", Parameter::Int(ranks)),
            ("SIMDGROUPS", Parameter::Int(simdgroups)),
            ("SHARED", Parameter::Bool(shared)),
        ]);
        Call {
            kernel: KernelName::DownCompose,
            parameters,
            inputs: vec![
                float("inner", FloatType::F32),
                unsigned("bank"),
                unsigned("layout"),
                unsigned("offsets"),
                unsigned("terms"),
                float("weights", FloatType::F32),
                float("shared_rows", out_type),
            ],
            output: out_type,
            shape: [index(rows), self.hidden],
            grid: [32, blocks(self.hidden, DOWN_COMPOSE_ROWS, 1) * simdgroups, index(rows)],
            threadgroup: [32, simdgroups, 1],
        }
    }

    /// `compose`: weighted rows `[pairs, hidden]` f32 to `[rows, hidden]` of `out_type`.
    pub(crate) fn compose(&self, out_type: FloatType, rows: usize, shared: bool) -> Call {
        Call {
            kernel: KernelName::Compose,
            parameters: vec![
                ("T", Parameter::Type(out_type)),
                ("HIDDEN", Parameter::Int(self.hidden)),
                ("SHARED", Parameter::Bool(shared)),
            ],
            inputs: vec![
                float("weighted_rows", FloatType::F32),
                unsigned("offsets"),
                unsigned("terms"),
                float("shared_rows", out_type),
            ],
            output: out_type,
            shape: [index(rows), self.hidden],
            grid: [self.hidden, index(rows), 1],
            threadgroup: [256, 1, 1],
        }
    }

    fn sizes(&self, into: &mut Vec<(&'static str, Parameter)>) {
        into.extend([
            ("HIDDEN", Parameter::Int(self.hidden)),
            ("INNER", Parameter::Int(self.inner)),
            ("BIAS", Parameter::Bool(self.bias.is_some())),
            ("L", Parameter::Type(self.bias.unwrap_or(FloatType::F32))),
        ]);
    }
}

pub(super) const fn float(name: &'static str, float: FloatType) -> Argument {
    Argument { name, scalar: Scalar::Float(float) }
}

pub(super) const fn unsigned(name: &'static str) -> Argument {
    Argument { name, scalar: Scalar::U32 }
}

/// Simdgroups that `columns` outputs take, rounded up to whole threadgroups.
pub(super) fn blocks(columns: i32, rows: i32, simdgroups: i32) -> i32 {
    ceiling(ceiling(columns, rows), simdgroups) * simdgroups
}

pub(super) const fn ceiling(count: i32, by: i32) -> i32 {
    (count + by - 1) / by
}

#[expect(clippy::cast_possible_wrap, reason = "at most MAX_WIDTH, as GpuExpert::new checks")]
pub(super) const fn small(size: u32) -> i32 {
    size as i32
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "the work checked its limits"
)]
pub(super) const fn index(count: usize) -> i32 {
    count as i32
}

/// Bytes to u32 words: a slot has at most 2^32 bytes, and its parts begin on word boundaries.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a slot of at most MAX_SLOT_BYTES has fewer than 2^32 words"
)]
const fn word(bytes: u64) -> u32 {
    (bytes / 4) as u32
}
