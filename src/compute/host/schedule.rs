//! How a call is cut into rounds, passes and tasks.
//!
//! A *unit* is a job, or so many of its uses as one task takes at once. A *round* is as many units as the bounded
//! scratch holds. Each round makes two passes with a barrier between them: gate, up and activation into scratch; then down into
//! the output. A pass is spread over units × chunks of weight rows; neither cut has an effect on any result.
//!
//! # Soundness
//! *Type*, *initialisation*, *lifetime*, *bounds*: those of [`SharedRows`]. *Threads*: two tasks of a pass differ in
//! their unit or in their chunk of weight rows. Two units differ in their scratch rows and in their pairs (validation
//! refuses a pair that occurs twice); two chunks of one unit do not overlap. So no two tasks write the same value.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::formats::{Activation, ExpertGeometry, Projection};

use super::{
    activation::activate,
    family::Threads,
    job::HostJob,
    kernels::{BLOCK, Inputs, Matrix, product},
    lanes::Lanes,
    rows::SharedRows,
    scratch::{CallScratch, with_task_scratch},
};

/// Uses that one task multiplies its weight rows with: enough to hide the unpacking, few enough for the caches.
const MAX_UNIT_USES: usize = 64;

/// Values of packed inputs and activations that a round may hold (64 MiB), unless one unit alone takes more.
const MAX_ROUND_VALUES: usize = 1 << 24;

/// Weight rows of a task: a whole number of blocks, so that tasks write whole blocks of packed activations.
const TASK_ROWS: usize = BLOCK;

/// Some uses of one job, at most [`MAX_UNIT_USES`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    job: usize,
    /// The first use, within the job.
    first: usize,
    uses: usize,
    /// The unit's first row of the round's scratch.
    scratch_row: usize,
}

/// The parts of a call that every task reads.
struct Round<'a> {
    jobs: &'a [HostJob<'a>],
    geometry: &'a ExpertGeometry,
    units: &'a [Unit],
    hidden_padded: usize,
    intermediate_padded: usize,
}

/// Runs a call that has been validated.
pub(super) fn run<L: Lanes>(
    lanes: L,
    threads: &Threads,
    geometry: &ExpertGeometry,
    jobs: &[HostJob<'_>],
    input: &[f32],
    output: &mut [f32],
    scratch: &mut CallScratch,
) {
    let hidden = geometry.hidden as usize;
    let hidden_padded = hidden.next_multiple_of(BLOCK);
    let intermediate_padded = (geometry.intermediate as usize).next_multiple_of(BLOCK);
    let max_uses = (MAX_ROUND_VALUES / (hidden_padded + intermediate_padded)).max(MAX_UNIT_USES);
    let output = SharedRows::new(output, hidden);
    let mut next = (0, 0);
    while next.0 < jobs.len() {
        next = fill_round(jobs, next, max_uses, &mut scratch.units);
        let uses = scratch.units.last().map_or(0, |unit| unit.scratch_row + unit.uses);
        // Growing is all that matters: every value that is read is written first in this round.
        grow(&mut scratch.input, uses * hidden_padded);
        grow(&mut scratch.activated, uses * intermediate_padded);
        let round = Round { jobs, geometry, units: &scratch.units, hidden_padded, intermediate_padded };
        let packed = &mut scratch.input[..uses * hidden_padded];
        let activated = &mut scratch.activated[..uses * intermediate_padded];
        round.pack(input, packed);
        round.gate_and_up(lanes, threads, packed, activated);
        round.down(lanes, threads, activated, output);
    }
}

fn grow(values: &mut Vec<f32>, len: usize) {
    if values.len() < len {
        values.resize(len, 0.0);
    }
}

/// Fills `units` from use `first` of job `job` on with at most `max_uses` uses; returns where the next round begins.
fn fill_round(
    jobs: &[HostJob<'_>],
    (mut job, mut first): (usize, usize),
    max_uses: usize,
    units: &mut Vec<Unit>,
) -> (usize, usize) {
    units.clear();
    let mut scratch_row = 0;
    while job < jobs.len() && scratch_row < max_uses {
        let uses = (jobs[job].rows.len() - first).min(MAX_UNIT_USES).min(max_uses - scratch_row);
        units.push(Unit { job, first, uses, scratch_row });
        scratch_row += uses;
        first += uses;
        if first == jobs[job].rows.len() {
            (job, first) = (job + 1, 0);
        }
    }
    (job, first)
}

/// `chunk`, rounded up to whole blocks.
fn padded(chunk: &Range<usize>) -> Range<usize> {
    chunk.start..chunk.end.next_multiple_of(BLOCK)
}

/// Writes the activations of a chunk, then zeros up to the end of its last block.
fn activate_padded(activation: Activation, gate: &[f32], up: &[f32], to: &mut [f32]) {
    let (values, padding) = to.split_at_mut(gate.len());
    for ((value, &gate), &up) in values.iter_mut().zip(gate).zip(up) {
        *value = activate(activation, gate, up);
    }
    padding.fill(0.0);
}

impl Round<'_> {
    /// Copies every use's input row into its row of scratch, padded with zeros.
    fn pack(&self, input: &[f32], packed: &mut [f32]) {
        let hidden = self.geometry.hidden as usize;
        for unit in self.units {
            let rows = &self.jobs[unit.job].rows[unit.first..unit.first + unit.uses];
            let to = packed[unit.scratch_row * self.hidden_padded..].chunks_exact_mut(self.hidden_padded);
            for (&row, to) in rows.iter().zip(to) {
                to[..hidden].copy_from_slice(&input[row as usize * hidden..(row as usize + 1) * hidden]);
                to[hidden..].fill(0.0);
            }
        }
    }

    /// The task `task` of a pass whose matrices have `rows` rows: its unit and its weight rows.
    fn task(&self, task: usize, rows: usize) -> (Unit, Range<usize>) {
        let chunks = rows.div_ceil(TASK_ROWS);
        let first = task % chunks * TASK_ROWS;
        (self.units[task / chunks], first..(first + TASK_ROWS).min(rows))
    }

    /// Packed rows of a unit.
    fn inputs<'b>(&self, unit: Unit, values: &'b [f32], padded: usize) -> Inputs<'b> {
        Inputs { values: &values[unit.scratch_row * padded..(unit.scratch_row + unit.uses) * padded], padded }
    }

    fn gate_and_up<L: Lanes>(&self, lanes: L, threads: &Threads, packed: &[f32], activated: &mut [f32]) {
        let rows = self.geometry.intermediate as usize;
        let activated = SharedRows::new(activated, self.intermediate_padded);
        threads.for_each(self.units.len() * rows.div_ceil(TASK_ROWS), &|task| {
            let (unit, chunk) = self.task(task, rows);
            let expert = &self.jobs[unit.job].expert;
            let inputs = self.inputs(unit, packed, self.hidden_padded);
            with_task_scratch(|scratch| {
                let products = unit.uses * chunk.len();
                grow(&mut scratch.gate, products);
                grow(&mut scratch.up, products);
                let gate = &mut scratch.gate[..products];
                let up = &mut scratch.up[..products];
                let thread = &mut scratch.thread;
                product(lanes, &Matrix::new(expert, Projection::Gate), chunk.clone(), inputs, gate, thread);
                product(lanes, &Matrix::new(expert, Projection::Up), chunk.clone(), inputs, up, thread);
                let pairs = gate.chunks_exact(chunk.len()).zip(up.chunks_exact(chunk.len()));
                for (use_, (gate, up)) in pairs.enumerate() {
                    // SAFETY: units have scratch rows of their own, and the tasks of a unit have chunks of their own;
                    // a chunk ends at a whole block or at the end of the row, so padding one does not touch another.
                    let to = unsafe { activated.part(unit.scratch_row + use_, padded(&chunk)) };
                    activate_padded(self.geometry.activation, gate, up, to);
                }
            });
        });
    }

    fn down<L: Lanes>(&self, lanes: L, threads: &Threads, activated: &[f32], output: SharedRows<'_>) {
        let rows = self.geometry.hidden as usize;
        threads.for_each(self.units.len() * rows.div_ceil(TASK_ROWS), &|task| {
            let (unit, chunk) = self.task(task, rows);
            let job = &self.jobs[unit.job];
            let inputs = self.inputs(unit, activated, self.intermediate_padded);
            with_task_scratch(|scratch| {
                let products = unit.uses * chunk.len();
                grow(&mut scratch.gate, products);
                let out = &mut scratch.gate[..products];
                let matrix = Matrix::new(&job.expert, Projection::Down);
                product(lanes, &matrix, chunk.clone(), inputs, out, &mut scratch.thread);
                let pairs = &job.pairs[unit.first..unit.first + unit.uses];
                for (&pair, out) in pairs.iter().zip(out.chunks_exact(chunk.len())) {
                    // SAFETY: validation saw each pair once, and the tasks of a unit have chunks of their own.
                    unsafe { output.part(pair as usize, chunk.clone()) }.copy_from_slice(out);
                }
            });
        });
    }
}
