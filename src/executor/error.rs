//! What can go wrong in a forward pass.

use crate::{
    compute::ComputeError,
    ids::LayerId,
    memory::BankError,
    recorder::RecorderError,
    residency::{LeaseError, OpenError, PlanError, PressureError},
    store::LoadErrors,
    usage::LedgerError,
};

/// A forward pass that could not be made. The executor stays usable unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// An input that is not `[batch, tokens, hidden]`.
    #[error("the {what} has shape {shape:?}, not [batch, tokens, hidden]")]
    Rank {
        /// Which array.
        what: &'static str,
        /// Its shape.
        shape: Vec<i32>,
    },
    /// An input whose rows are not as wide as the layer's experts.
    #[error("the {what} is {width} wide, but the experts of {layer} take rows of {hidden}")]
    Width {
        /// Which array.
        what: &'static str,
        /// The layer.
        layer: LayerId,
        /// Its last dimension.
        width: usize,
        /// The experts' hidden width.
        hidden: usize,
    },
    /// An input that is not floating point.
    #[error("the {what} is {dtype}; experts take f32, f16 or bf16")]
    Dtype {
        /// Which array.
        what: &'static str,
        /// Its dtype.
        dtype: String,
    },
    /// A plan for another number of rows.
    #[error(
        "the plan routes {plan_rows} rows, but the {what} has {rows} of width {hidden}, which the experts of {layer} take"
    )]
    Rows {
        /// Which array.
        what: &'static str,
        /// The layer.
        layer: LayerId,
        /// Rows of the plan.
        plan_rows: usize,
        /// Rows of the array, each of the layer's width.
        rows: usize,
        /// The experts' hidden width.
        hidden: usize,
    },
    /// A plan made for a layer with another number of experts.
    #[error("the plan asks for expert {expert} of {layer}, which has {experts}")]
    Expert {
        /// The layer.
        layer: LayerId,
        /// The id.
        expert: u32,
        /// How many experts the layer has.
        experts: u32,
    },
    /// A layer without routed experts.
    #[error("{layer} has no routed experts in this source; the layers that have are {known}")]
    Layer {
        /// The layer asked for.
        layer: LayerId,
        /// Those that the source has.
        known: String,
    },
    /// A row that nothing contributes to.
    #[error("row {row} has neither experts nor a shared row")]
    EmptyRow {
        /// The row.
        row: usize,
    },
    /// The experts could not be leased.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// Experts could not be read. The others stay as they were, and the next request reads these again.
    #[error(transparent)]
    Load(LoadErrors),
    /// The compute family failed before its work was under way.
    #[error("the experts could not be computed")]
    Compute(#[from] ComputeError),
    /// It cannot be proven that work reading the slots has ended: they are given up, so that nothing overwrites them.
    #[error("the work on leased slots could not be fenced, so they are out of use from now on")]
    Fence {
        /// What the family answered.
        source: ComputeError,
    },
    /// Memory could not be given back to the system before the forward. Nothing was computed; the limit holds, and the
    /// next forward runs within it.
    #[error(transparent)]
    Pressure(PressureError),
}

/// An executor that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorOpenError {
    /// The budget cannot hold the source, or the machine cannot hold the budget.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The family is not part of this build.
    #[error("the {family} family is not in this build; it needs the feature `{feature}`")]
    FamilyNotBuilt {
        /// The family.
        family: &'static str,
        /// The feature to build with.
        feature: &'static str,
    },
    /// No memory for the slots.
    #[error(transparent)]
    Bank(#[from] BankError),
    /// The family cannot be set up for the source's formats.
    #[error("the compute family cannot be set up")]
    Compute(#[from] ComputeError),
    /// The manager could not be made.
    #[error(transparent)]
    Manager(#[from] OpenError),
    /// The usage ledger cannot be read. (A damaged one can: see
    /// [`StreamedExpertExecutor::damaged_ledger`](crate::StreamedExpertExecutor::damaged_ledger).)
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The file for routes cannot be made.
    #[error(transparent)]
    Recorder(#[from] RecorderError),
    /// Pinned experts could not be loaded.
    #[error("the pinned experts could not be loaded")]
    Pins(#[from] LeaseError),
}
