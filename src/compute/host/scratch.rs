//! Memory that calls work in, kept from one call to the next.

use std::cell::RefCell;

use crate::sync::{Mutex, lock};

use super::{job::PairSet, kernels::ProductScratch, schedule::Unit};

/// Values of a cache line, and of the widest vector.
const LINE: usize = 16;

/// `len` values from the beginning of a cache line on, so that no vector lies across two of them. `values` is made longer
/// if need be. What they hold is what some earlier use left: all are written before they are read.
pub(super) fn grown(values: &mut Vec<f32>, len: usize) -> &mut [f32] {
    let needed = len + LINE - 1;
    if values.len() < needed {
        values.resize(needed, 0.0);
    }
    let first = values.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE - 1);
    &mut values[first..first + len]
}

/// What one call works in.
#[derive(Debug, Default)]
pub(super) struct CallScratch {
    pub(super) pairs: PairSet,
    /// The units of the round at hand.
    pub(super) units: Vec<Unit>,
    /// The round's input rows, packed for the gate; and for the up projection where that is another form.
    pub(super) inputs: [Vec<f32>; 2],
    /// The round's activations.
    pub(super) activated: Vec<f32>,
    /// The round's activations, packed.
    pub(super) packed: Vec<f32>,
}

/// Call scratches that no call is using. As many are made as calls have run at once.
#[derive(Debug, Default)]
pub(super) struct ScratchShelf(Mutex<Vec<CallScratch>>);

impl ScratchShelf {
    /// Runs `work` with a scratch from the shelf and puts it back.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut CallScratch) -> R) -> R {
        let mut scratch = lock(&self.0).pop().unwrap_or_default();
        let result = work(&mut scratch);
        lock(&self.0).push(scratch);
        result
    }
}

/// What one thread works in during a task.
#[derive(Debug, Default)]
pub(super) struct TaskScratch {
    pub(super) product: ProductScratch,
    /// The task's products, before they go on.
    pub(super) gate: Vec<f32>,
    pub(super) up: Vec<f32>,
}

thread_local! {
    static TASK: RefCell<TaskScratch> = RefCell::default();
}

/// Runs `work` with this thread's scratch. Tasks do not start tasks, so it is never taken twice.
pub(super) fn with_task_scratch<R>(work: impl FnOnce(&mut TaskScratch) -> R) -> R {
    TASK.with_borrow_mut(work)
}
