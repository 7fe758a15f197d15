//! What a host family refuses.

use crate::formats::{GeometryError, Part, Projection};

use super::options::HostIsa;

/// A host family that cannot be made, or a call that it refuses before any work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// An instruction set that this machine does not have.
    #[error("this machine cannot run the {isa:?} kernels")]
    Isa {
        /// The one asked for.
        isa: HostIsa,
    },
    /// The thread pool could not be made.
    #[error("could not start a pool of {threads} threads")]
    Pool {
        /// Threads asked for.
        threads: usize,
        /// What rayon answered.
        source: rayon::ThreadPoolBuildError,
    },
    /// A shape that its quantisation cannot store.
    #[error("job {job} has a geometry that does not exist")]
    Geometry {
        /// Position of the job in the call.
        job: usize,
        /// Why.
        source: GeometryError,
    },
    /// Jobs of different shapes in one call.
    #[error("job {job} has another geometry than job 0: a call takes the experts of one layer")]
    MixedGeometry {
        /// Position of the job in the call.
        job: usize,
    },
    /// A view whose layout belongs to another geometry.
    #[error("job {job}: {projection:?} {part:?} takes {needed_bytes} B, but the view gives {given_bytes} B")]
    PartBytes {
        /// Position of the job in the call.
        job: usize,
        /// The matrix.
        projection: Projection,
        /// The component.
        part: Part,
        /// Bytes that the geometry needs.
        needed_bytes: u64,
        /// Bytes that the view gives.
        given_bytes: u64,
    },
    /// A job that uses no row.
    #[error("job {job} has no rows")]
    NoRows {
        /// Position of the job in the call.
        job: usize,
    },
    /// A job whose lists of rows and pairs differ in length.
    #[error("job {job} has {rows} rows but {pairs} pairs")]
    Uneven {
        /// Position of the job in the call.
        job: usize,
        /// Length of the list of input rows.
        rows: usize,
        /// Length of the list of output rows.
        pairs: usize,
    },
    /// A slice that is not a whole number of rows.
    #[error("{slice} has {values} values, which is no whole number of rows of {hidden}")]
    PartialRow {
        /// `input` or `output`.
        slice: &'static str,
        /// Its length.
        values: usize,
        /// Width of a row.
        hidden: usize,
    },
    /// An input row that does not exist.
    #[error("job {job} reads row {row} of {rows}")]
    RowOutOfRange {
        /// Position of the job in the call.
        job: usize,
        /// The row asked for.
        row: u32,
        /// Rows of the input.
        rows: usize,
    },
    /// An output row that does not exist.
    #[error("job {job} writes pair {pair} of {pairs}")]
    PairOutOfRange {
        /// Position of the job in the call.
        job: usize,
        /// The pair asked for.
        pair: u32,
        /// Rows of the output.
        pairs: usize,
    },
    /// An output row that two uses write.
    #[error("job {job} writes pair {pair}, which the call writes already")]
    PairTwice {
        /// Position of the second job in the call.
        job: usize,
        /// The pair.
        pair: u32,
    },
}
