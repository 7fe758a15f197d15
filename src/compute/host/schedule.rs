//! How a call is cut into rounds, passes and tasks.
//!
//! A *unit* is a job, or as many of its uses as one task takes at once. A *round* is as many units as the bounded
//! scratch holds. Each round packs its input rows; makes a pass over gate and up, with the activation, into scratch; packs
//! that; and makes a pass over down into the output. A pass is spread over units × chunks of weight rows. None of these cuts
//! has an effect on any result.
//!
//! # Soundness
//! *Type*, *initialisation*, *lifetime*, *bounds*: those of [`SharedRows`]. *Threads*: two tasks of a pass differ in
//! their unit or in their chunk of weight rows. Two units differ in their scratch rows and in their pairs (validation
//! refuses a pair that occurs twice); two chunks of one unit do not overlap. So no two tasks write the same value.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::formats::{ExpertGeometry, Projection};

use super::{
    activation::activate,
    family::Threads,
    job::HostJob,
    kernels::{Inputs, Matrix, Product},
    lanes::Lanes,
    options::HostActivations,
    pack::Pack,
    plan::{Plan, RowLayout},
    rows::SharedRows,
    scratch::{CallScratch, TaskScratch, grown, with_task_scratch},
};

/// Uses that one task multiplies its weight rows with: enough to hide the unpacking, few enough for the caches.
const MAX_UNIT_USES: usize = 64;

/// Values of packed rows and activations that a round may hold (64 MiB), unless one unit alone takes more.
const MAX_ROUND_VALUES: usize = 1 << 24;

/// Weight rows of a task.
const TASK_ROWS: usize = 64;

/// With fewer values to pack than this, waking threads takes longer than packing.
const MIN_PARALLEL_VALUES: usize = 1 << 16;

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
struct Round<'a, L> {
    lanes: L,
    threads: &'a Threads,
    jobs: &'a [HostJob<'a>],
    units: &'a [Unit],
    geometry: &'a ExpertGeometry,
    /// In slot order.
    plans: [Plan; 3],
}

/// A call that has been validated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) geometry: &'a ExpertGeometry,
    pub(super) activations: HostActivations,
    pub(super) jobs: &'a [HostJob<'a>],
    pub(super) input: &'a [f32],
}

/// Runs a call.
pub(super) fn run<L: Lanes>(
    lanes: L,
    threads: &Threads,
    call: Call<'_>,
    output: &mut [f32],
    scratch: &mut CallScratch,
) {
    let Call { geometry, activations, jobs, input } = call;
    let plans = Projection::ALL.map(|projection| Plan::new(geometry, projection, activations, L::CENTRED));
    let layouts = plans.map(|plan| plan.layout);
    let [down, gate, up] = layouts.map(|layout| layout.stride());
    let max_uses = (MAX_ROUND_VALUES / (down + gate + up)).max(MAX_UNIT_USES);
    let output = SharedRows::new(output, geometry.hidden as usize);
    let mut next = (0, 0);
    while next.0 < jobs.len() {
        next = fill_round(jobs, next, max_uses, &mut scratch.units);
        let uses = scratch.units.last().map_or(0, |unit| unit.scratch_row + unit.uses);
        let round = Round { lanes, threads, jobs, units: &scratch.units, geometry, plans };
        let [gate_inputs, up_inputs] = &mut scratch.inputs;
        let gate_inputs = grown(gate_inputs, uses * gate);
        round.pack_inputs(input, layouts[Projection::Gate as usize], gate_inputs);
        let up_inputs = if layouts[Projection::Up as usize] == layouts[Projection::Gate as usize] {
            &*gate_inputs
        } else {
            let up_inputs = grown(up_inputs, uses * up);
            round.pack_inputs(input, layouts[Projection::Up as usize], up_inputs);
            up_inputs
        };
        let activated = grown(&mut scratch.activated, uses * geometry.intermediate as usize);
        round.gate_and_up([gate_inputs, up_inputs], activated);
        let packed = grown(&mut scratch.packed, uses * down);
        round.pack_activations(activated, packed);
        round.down(packed, output);
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

impl<L: Lanes> Round<'_, L> {
    /// Packs every use's input row into its row of scratch.
    fn pack_inputs(&self, input: &[f32], layout: RowLayout, packed: &mut [f32]) {
        self.pack(layout, packed, &|unit, use_| {
            let row = self.jobs[unit.job].rows[unit.first + use_] as usize;
            &input[row * layout.columns..(row + 1) * layout.columns]
        });
    }

    /// Packs every use's activations into its row of scratch.
    fn pack_activations(&self, activated: &[f32], packed: &mut [f32]) {
        let layout = self.plans[Projection::Down as usize].layout;
        self.pack(layout, packed, &|unit, use_| {
            let row = unit.scratch_row + use_;
            &activated[row * layout.columns..(row + 1) * layout.columns]
        });
    }

    fn pack<'v>(
        &self,
        layout: RowLayout,
        packed: &mut [f32],
        row: &(dyn Fn(&Unit, usize) -> &'v [f32] + Sync),
    ) {
        let parallel = packed.len() >= MIN_PARALLEL_VALUES;
        let rows = SharedRows::new(packed, layout.stride());
        let pack = |unit: usize| {
            let unit = &self.units[unit];
            for use_ in 0..unit.uses {
                // SAFETY: units have scratch rows of their own, and a unit is packed by one task.
                let packed = unsafe { rows.part(unit.scratch_row + use_, 0..layout.stride()) };
                self.lanes.run(Pack { layout, row: row(unit, use_), packed });
            }
        };
        if parallel {
            self.threads.for_each(self.units.len(), &pack);
        } else {
            (0..self.units.len()).for_each(pack);
        }
    }

    /// Runs `task` for every unit and every chunk of `rows` weight rows.
    fn for_each_chunk(&self, rows: usize, task: &(dyn Fn(&Unit, Range<usize>, &mut TaskScratch) + Sync)) {
        let chunks = rows.div_ceil(TASK_ROWS);
        self.threads.for_each(self.units.len() * chunks, &|index| {
            let first = index % chunks * TASK_ROWS;
            let chunk = first..(first + TASK_ROWS).min(rows);
            with_task_scratch(|scratch| task(&self.units[index / chunks], chunk, scratch));
        });
    }

    /// A unit's rows among the packed rows of all.
    fn inputs<'b>(&self, unit: &Unit, packed: &'b [f32], projection: Projection) -> Inputs<'b> {
        let layout = self.plans[projection as usize].layout;
        let rows = unit.scratch_row * layout.stride()..(unit.scratch_row + unit.uses) * layout.stride();
        Inputs::new(&packed[rows], layout)
    }

    fn gate_and_up(&self, packed: [&[f32]; 2], activated: &mut [f32]) {
        let intermediate = self.geometry.intermediate as usize;
        let activated = SharedRows::new(activated, intermediate);
        self.for_each_chunk(intermediate, &|unit, chunk, scratch| {
            let expert = &self.jobs[unit.job].expert;
            let TaskScratch { product, gate, up } = scratch;
            let gate = grown(gate, unit.uses * chunk.len());
            let up = grown(up, unit.uses * chunk.len());
            for (out, packed, projection) in
                [(&mut *gate, packed[0], Projection::Gate), (&mut *up, packed[1], Projection::Up)]
            {
                let matrix = Matrix::new(expert, projection, self.plans[projection as usize]);
                let inputs = self.inputs(unit, packed, projection);
                self.lanes.run(Product { matrix, rows: chunk.clone(), inputs, out, scratch: product });
            }
            let pairs = gate.chunks_exact(chunk.len()).zip(up.chunks_exact(chunk.len()));
            for (use_, (gate, up)) in pairs.enumerate() {
                // SAFETY: units have scratch rows of their own, and the tasks of a unit have chunks of their own.
                let to = unsafe { activated.part(unit.scratch_row + use_, chunk.clone()) };
                for ((to, &gate), &up) in to.iter_mut().zip(gate).zip(up) {
                    *to = activate(self.geometry.activation, gate, up);
                }
            }
        });
    }

    fn down(&self, packed: &[f32], output: SharedRows<'_>) {
        self.for_each_chunk(self.geometry.hidden as usize, &|unit, chunk, scratch| {
            let job = &self.jobs[unit.job];
            let matrix = Matrix::new(&job.expert, Projection::Down, self.plans[Projection::Down as usize]);
            let inputs = self.inputs(unit, packed, Projection::Down);
            let TaskScratch { product, gate: out, .. } = scratch;
            let out = grown(out, unit.uses * chunk.len());
            self.lanes.run(Product { matrix, rows: chunk.clone(), inputs, out, scratch: product });
            let pairs = &job.pairs[unit.first..unit.first + unit.uses];
            for (&pair, out) in pairs.iter().zip(out.chunks_exact(chunk.len())) {
                // SAFETY: validation saw each pair once, and the tasks of a unit have chunks of their own.
                unsafe { output.part(pair as usize, chunk.clone()) }.copy_from_slice(out);
            }
        });
    }
}
