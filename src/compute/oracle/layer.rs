//! A whole layer: every expert of a plan, then the sums.

use std::io;

use super::mlp::Mlp;
use crate::{
    formats::{DecodeError, ExpertGeometry, ExpertView, GeometryError, SlotLayout},
    ids::ExpertId,
    routing::BatchPlan,
};

/// The layer's output `[rows, hidden]` for `input`, `[rows, hidden]`: [`expert_rows`], then [`compose`].
///
/// # Errors
/// As those two.
pub fn layer<X, B>(
    geometry: &ExpertGeometry,
    plan: &BatchPlan,
    input: &[X],
    shared: Option<&[f64]>,
    read: impl FnMut(ExpertId) -> io::Result<B>,
) -> Result<Vec<f64>, OracleError>
where
    X: Copy + Into<f64>,
    B: AsRef<[u8]>,
{
    let rows = expert_rows(geometry, plan, input, read)?;
    compose(plan, geometry.hidden as usize, &rows, shared)
}

/// The unweighted output of every (row, rank) of `plan`, `[pairs, hidden]` in row-major order of the pairs.
///
/// `input` is `[rows, hidden]`. `read` gives an expert's bytes in the slot layout of `geometry`, wherever they are; it is
/// called once for each expert, in the order of the plan's jobs.
///
/// # Errors
/// An input of another shape, an expert that cannot be read or is too short, or a geometry that cannot be stored.
pub fn expert_rows<X, B>(
    geometry: &ExpertGeometry,
    plan: &BatchPlan,
    input: &[X],
    mut read: impl FnMut(ExpertId) -> io::Result<B>,
) -> Result<Vec<f64>, OracleError>
where
    X: Copy + Into<f64>,
    B: AsRef<[u8]>,
{
    let hidden = geometry.hidden as usize;
    check_length("input", plan.rows() * hidden, input.len())?;
    let layout = SlotLayout::new(geometry)?;
    let mut output = vec![0.0; plan.pairs() * hidden];
    let mut gathered = Vec::new();
    for job in plan.jobs() {
        let bytes = read(job.expert).map_err(|source| OracleError::Read { expert: job.expert, source })?;
        let expert = Mlp::of_expert(&ExpertView::new(geometry, &layout, bytes.as_ref())?)?;
        gathered.clear();
        for used in plan.uses(job) {
            let first = used.row as usize * hidden;
            gathered.extend(input[first..first + hidden].iter().map(|&x| x.into()));
        }
        let rows = expert.forward(&gathered)?;
        for (used, row) in plan.uses(job).iter().zip(rows.chunks_exact(hidden)) {
            let first = used.pair as usize * hidden;
            output[first..first + hidden].copy_from_slice(row);
        }
    }
    Ok(output)
}

/// Adds up a layer: for each row Σ weight × expert row in rank order, then its shared row, unweighted.
///
/// `expert_rows` is `[pairs, hidden]` in row-major order of (row, rank), `shared` `[rows, hidden]`. The result is
/// `[rows, hidden]`.
///
/// # Errors
/// Arrays of another shape, or a row that has neither experts nor a shared row.
pub fn compose(
    plan: &BatchPlan,
    hidden: usize,
    expert_rows: &[f64],
    shared: Option<&[f64]>,
) -> Result<Vec<f64>, OracleError> {
    check_length("expert rows", plan.pairs() * hidden, expert_rows.len())?;
    if let Some(shared) = shared {
        check_length("shared rows", plan.rows() * hidden, shared.len())?;
    }
    let mut output = vec![0.0; plan.rows() * hidden];
    for row in 0..plan.rows() {
        let output = &mut output[row * hidden..(row + 1) * hidden];
        for term in plan.row(row) {
            let first = term.pair as usize * hidden;
            for (sum, value) in output.iter_mut().zip(&expert_rows[first..first + hidden]) {
                *sum += f64::from(term.weight) * value;
            }
        }
        match shared {
            Some(shared) => {
                for (sum, value) in output.iter_mut().zip(&shared[row * hidden..]) {
                    *sum += value;
                }
            }
            None if !plan.row_has_experts(row) => return Err(OracleError::EmptyRow { row }),
            None => {}
        }
    }
    Ok(output)
}

pub(super) fn check_length(what: &'static str, needed: usize, given: usize) -> Result<(), OracleError> {
    if needed == given { Ok(()) } else { Err(OracleError::Length { what, needed, given }) }
}

/// How many rows of `columns` values `given` values are.
pub(super) fn check_rows(what: &'static str, given: usize, columns: usize) -> Result<usize, OracleError> {
    let rows = given.checked_div(columns).unwrap_or(0);
    check_length(what, rows * columns, given)?;
    Ok(rows)
}

/// A reference that cannot be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OracleError {
    /// An array of another shape.
    #[error("{what}: {needed} needed, {given} given")]
    Length {
        /// Which array or dimension.
        what: &'static str,
        /// Values that the shape needs.
        needed: usize,
        /// Values given.
        given: usize,
    },
    /// A row that has nothing to add up.
    #[error("row {row} has no experts, and there is no shared row")]
    EmptyRow {
        /// The row.
        row: usize,
    },
    /// An expert that the caller could not read.
    #[error("{expert} cannot be read")]
    Read {
        /// The expert.
        expert: ExpertId,
        /// The caller's error.
        source: io::Error,
    },
    /// A geometry that cannot be stored, or bytes shorter than its slot.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Bytes that are not the weights they are said to be.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}
