//! A bank of random experts, random rows and routes, and kernels run on them.

use std::{collections::HashMap, path::PathBuf, sync::Mutex};

use fastrand::Rng;
use half::{bf16, f16};
use msl_cpu::{Dtype, Kernel, Launch, Mode, Signature, Template};

use super::super::{Call, ComposeTerms, GpuExpert, Parameter, Scalar, Terms, Tiles, padded};
use crate::{
    compute::oracle,
    formats::{ExpertGeometry, ExpertView, FloatType, Part, Projection, Quantisation, SlotLayout},
    ids::SlotId,
    routing::{BatchPlan, Routes},
};

/// Bytes before the first slot, so that a kernel which forgets them fails.
const SKIPPED_BYTES: usize = 256;

pub(super) const F32: FloatType = FloatType::F32;
pub(super) const F16: FloatType = FloatType::F16;
pub(super) const BF16: FloatType = FloatType::Bf16;

/// Rows, routes and experts of one layer.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) geometry: ExpertGeometry,
    pub(super) expert: GpuExpert,
    pub(super) layout: SlotLayout,
    pub(super) plan: BatchPlan,
    pub(super) x_type: FloatType,
    /// `[rows, hidden]`, each a value of `x_type`.
    pub(super) x: Vec<f32>,
    pub(super) shared: Option<Vec<f32>>,
    /// The slot of each expert.
    slots: Vec<SlotId>,
    bank: Vec<u8>,
}

/// How large, and which random numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) ranks: usize,
    pub(super) experts: u32,
    pub(super) shared: bool,
    pub(super) seed: u64,
}

impl Bench {
    pub(super) fn new(geometry: ExpertGeometry, x_type: FloatType, size: Size) -> Self {
        let mut rng = Rng::with_seed(size.seed);
        let layout = SlotLayout::new(&geometry).unwrap();
        let expert = GpuExpert::new(&geometry).unwrap();
        let mut slots: Vec<SlotId> = (0..size.experts + 1).map(SlotId).collect();
        rng.shuffle(&mut slots);
        let slot_bytes = usize::try_from(layout.slot_bytes()).unwrap();
        let mut bank = vec![0xff; SKIPPED_BYTES + slots.len() * slot_bytes];
        for &slot in &slots[..size.experts as usize] {
            let first = SKIPPED_BYTES + slot.index() * slot_bytes;
            fill_expert(&mut rng, &geometry, &layout, &mut bank[first..first + slot_bytes]);
        }
        let mut ids: Vec<u32> = (0..size.experts).collect();
        let (mut experts, mut weights) = (Vec::new(), Vec::new());
        for _ in 0..size.rows {
            rng.shuffle(&mut ids);
            experts.extend_from_slice(&ids[..size.ranks]);
            weights.extend((0..size.ranks).map(|_| rng.f32()));
        }
        let routes = Routes::from_top_k(size.rows, size.ranks, &experts, &weights, size.experts).unwrap();
        let plan = BatchPlan::new(&routes, size.experts).unwrap();
        let mut row = || {
            (0..size.rows * geometry.hidden as usize).map(|_| round(x_type, rng.f32() * 2.0 - 1.0)).collect()
        };
        let x = row();
        let shared = size.shared.then(&mut row);
        Self { geometry, expert, layout, plan, x_type, x, shared, slots, bank }
    }

    /// The same experts and rows, with the batch cut to one row.
    pub(super) fn one_row(&self, row: usize) -> Self {
        let hidden = self.geometry.hidden as usize;
        let terms: Vec<_> = self.plan.row(row).map(|term| (term.expert, term.weight)).collect();
        let experts = self.plan.routes().experts_in_layer();
        let cut = |rows: &Vec<f32>| rows[row * hidden..(row + 1) * hidden].to_vec();
        Self {
            plan: BatchPlan::new(&Routes::from_ragged(&[terms], experts).unwrap(), experts).unwrap(),
            x: cut(&self.x),
            shared: self.shared.as_ref().map(cut),
            slots: self.slots.clone(),
            bank: self.bank.clone(),
            layout: self.layout.clone(),
            ..*self
        }
    }

    /// The layer in f64.
    pub(super) fn oracle(&self) -> Vec<f64> {
        let slot_bytes = usize::try_from(self.layout.slot_bytes()).unwrap();
        let shared: Option<Vec<f64>> =
            self.shared.as_ref().map(|rows| rows.iter().map(|&value| f64::from(value)).collect());
        oracle::layer(&self.geometry, &self.plan, &self.x, shared.as_deref(), |expert| {
            let first = SKIPPED_BYTES + self.slots[expert.index()].index() * slot_bytes;
            let bytes = &self.bank[first..first + slot_bytes];
            ExpertView::new(&self.geometry, &self.layout, bytes).unwrap();
            Ok(bytes)
        })
        .unwrap()
    }

    /// Tiles of the plan's jobs from `jobs` on.
    pub(super) fn tiles(&self, per_tile: usize, jobs: std::ops::Range<usize>) -> Tiles {
        let jobs =
            self.plan.jobs()[jobs].iter().map(|job| (self.slots[job.expert.index()], self.plan.uses(job)));
        Tiles::new(jobs, per_tile, self.slots.len() as u32, self.plan.rows()).unwrap()
    }

    pub(super) fn all_tiles(&self, per_tile: usize) -> Tiles {
        self.tiles(per_tile, 0..self.plan.jobs().len())
    }

    pub(super) fn gate_up_inputs(&self, tiles: &Tiles) -> Vec<Vec<u8>> {
        let x = encode(self.x_type, &self.x);
        vec![
            x,
            self.bank.clone(),
            self.layout_bytes(),
            words(&padded(&tiles.tiles)),
            words(&padded(&tiles.rows)),
        ]
    }

    /// inner `[pairs, intermediate]`.
    pub(super) fn gate_up(&self, run: &Run, tiles: &Tiles, per_tile: usize) -> Vec<u8> {
        let call = self.expert.gate_up(self.x_type, tiles.rows.len(), tiles.count(), per_tile);
        run.call(&call, &self.gate_up_inputs(tiles))
    }

    pub(super) fn down_inputs(&self, tiles: &Tiles, inner: &[u8]) -> Vec<Vec<u8>> {
        let weights = encode(F32, &padded(&tiles.weights));
        vec![inner.to_vec(), self.bank.clone(), self.layout_bytes(), words(&padded(&tiles.tiles)), weights]
    }

    /// Weighted rows `[pairs, hidden]`.
    pub(super) fn down(&self, run: &Run, tiles: &Tiles, per_tile: usize, inner: &[u8]) -> Vec<u8> {
        let call = self.expert.down(tiles.rows.len(), tiles.count(), per_tile);
        run.call(&call, &self.down_inputs(tiles, inner))
    }

    pub(super) fn down_compose_call(&self, tiles: &Tiles, inner: &[u8]) -> (Call, Vec<Vec<u8>>) {
        let terms = Terms::new(&self.plan, tiles).unwrap();
        let call =
            self.expert.down_compose(self.x_type, self.plan.rows(), terms.ranks, self.shared.is_some());
        let inputs = vec![
            inner.to_vec(),
            self.bank.clone(),
            self.layout_bytes(),
            words(&padded(&terms.offsets)),
            words(&padded(&terms.terms)),
            encode(F32, &padded(&terms.weights)),
            self.shared_bytes(),
        ];
        (call, inputs)
    }

    pub(super) fn down_compose(&self, run: &Run, tiles: &Tiles, inner: &[u8]) -> Vec<u8> {
        let (call, inputs) = self.down_compose_call(tiles, inner);
        run.call(&call, &inputs)
    }

    /// `parts` are tiles with their weighted rows.
    pub(super) fn compose_call(&self, parts: &[(&Tiles, Vec<u8>)]) -> (Call, Vec<Vec<u8>>) {
        let pairs: Vec<&[u32]> = parts.iter().map(|(tiles, _)| &tiles.pairs[..]).collect();
        let terms = ComposeTerms::new(&self.plan, &pairs).unwrap();
        let call = self.expert.compose(self.x_type, self.plan.rows(), self.shared.is_some());
        let rows = parts.iter().flat_map(|(_, rows)| rows.iter().copied()).collect();
        (call, vec![rows, words(&padded(&terms.offsets)), words(&padded(&terms.terms)), self.shared_bytes()])
    }

    pub(super) fn compose(&self, run: &Run, parts: &[(&Tiles, Vec<u8>)]) -> Vec<u8> {
        let (call, inputs) = self.compose_call(parts);
        run.call(&call, &inputs)
    }

    /// The layer in two dispatches.
    pub(super) fn fused(&self, run: &Run) -> Vec<u8> {
        let tiles = self.all_tiles(1);
        let inner = self.gate_up(run, &tiles, 1);
        self.down_compose(run, &tiles, &inner)
    }

    /// The layer in parts: jobs before `cut`, then the others.
    pub(super) fn split(&self, run: &Run, per_tile: usize, cut: usize) -> Vec<u8> {
        let parts = [0..cut, cut..self.plan.jobs().len()].map(|jobs| self.tiles(per_tile, jobs));
        let rows = parts.iter().filter(|tiles| tiles.count() > 0).map(|tiles| {
            let inner = self.gate_up(run, tiles, per_tile);
            (tiles, self.down(run, tiles, per_tile, &inner))
        });
        self.compose(run, &rows.collect::<Vec<_>>())
    }

    fn layout_bytes(&self) -> Vec<u8> {
        words(&GpuExpert::layout_words(&self.layout, SKIPPED_BYTES))
    }

    fn shared_bytes(&self) -> Vec<u8> {
        self.shared.as_ref().map_or_else(|| vec![0xff; 32], |rows| encode(self.x_type, rows))
    }
}

fn fill_expert(rng: &mut Rng, geometry: &ExpertGeometry, layout: &SlotLayout, slot: &mut [u8]) {
    let range = |projection, part| {
        layout.range(projection, part).map(|range| range.start as usize..range.end as usize)
    };
    for projection in Projection::ALL {
        let quantisation = geometry.projection(projection).quantisation;
        let (kind, middle) = match quantisation {
            Quantisation::Affine { scales, bits, .. } => (scales, f32::from((1u16 << (bits - 1)) - 1)),
            _ => (F32, 0.0),
        };
        rng.fill(&mut slot[range(projection, Part::Weight).unwrap()]);
        let scales_at = range(projection, Part::Scales).unwrap();
        let count = scales_at.len() / kind.bytes() as usize;
        let step = 0.1 / f32::from(1u16 << quantisation.bits());
        let scales: Vec<f32> = (0..count).map(|_| step * (1.0 + rng.f32())).collect();
        slot[scales_at].copy_from_slice(&encode(kind, &scales));
        if let Some(at) = range(projection, Part::Biases) {
            let biases: Vec<f32> = scales.iter().map(|scale| -scale * (middle + rng.f32())).collect();
            slot[at].copy_from_slice(&encode(kind, &biases));
        }
        if let Some(at) = range(projection, Part::Bias) {
            let kind = geometry.bias.unwrap();
            let bias: Vec<f32> = (0..at.len() / kind.bytes() as usize).map(|_| rng.f32() - 0.5).collect();
            slot[at].copy_from_slice(&encode(kind, &bias));
        }
    }
}

/// A build of the kernels and an order of the fibers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) mode: Mode,
    pub(super) seed: u64,
}

impl Run {
    pub(super) const fn fast(seed: u64) -> Self {
        Self { mode: Mode::Fast, seed }
    }

    pub(super) const fn checked(seed: u64) -> Self {
        Self { mode: Mode::Checked, seed }
    }

    /// The output's bytes.
    ///
    /// # Panics
    /// If the shim reports a fault.
    pub(super) fn call(&self, call: &Call, inputs: &[Vec<u8>]) -> Vec<u8> {
        let (output, errors) = self.try_text(call, inputs, None);
        assert_eq!(errors, 0, "{:?} {:?}: faults", call.kernel, call.parameters);
        output
    }

    /// The output's bytes, and how many faults were reported. `body`, if given, stands in for the kernel's own.
    pub(super) fn try_text(&self, call: &Call, inputs: &[Vec<u8>], body: Option<&str>) -> (Vec<u8>, u64) {
        let kernel = self.kernel(call, inputs, body);
        let launch = Launch {
            grid: call.grid.map(|threads| threads as u32),
            threadgroup: call.threadgroup.map(|threads| threads as u32),
            seed: self.seed,
            os_threads: 2,
        };
        let bytes =
            call.shape.iter().map(|&size| size as usize).product::<usize>() * call.output.bytes() as usize;
        let inputs: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
        let (mut outputs, stats) = kernel.launch(&inputs, &[bytes], &launch);
        (outputs.remove(0), stats.errors)
    }

    fn kernel(&self, call: &Call, inputs: &[Vec<u8>], body: Option<&str>) -> &'static Kernel {
        static COMPILED: Mutex<Option<HashMap<(String, Mode), &'static Kernel>>> = Mutex::new(None);
        let text = signature_text(call, inputs, body);
        let key = (text.metal.clone(), self.mode);
        if let Some(kernel) = COMPILED.lock().unwrap().get_or_insert_default().get(&key) {
            return kernel;
        }
        let folder: PathBuf = std::env::current_exe().unwrap().parent().unwrap().join("msl-kernels");
        let kernel = Kernel::compile(&text, self.mode, &folder).unwrap_or_else(|error| panic!("{error}"));
        let kernel = Box::leak(Box::new(kernel));
        COMPILED.lock().unwrap().get_or_insert_default().insert(key, kernel);
        kernel
    }
}

/// The text that MLX would hand to Metal for `call` with inputs of these sizes.
pub(super) fn signature_text(call: &Call, inputs: &[Vec<u8>], body: Option<&str>) -> msl_cpu::KernelText {
    let shapes: Vec<[usize; 1]> = call
        .inputs
        .iter()
        .zip(inputs)
        .map(|(argument, bytes)| [bytes.len() / scalar(argument.scalar).1])
        .collect();
    let arguments: Vec<msl_cpu::Argument<'_>> = call
        .inputs
        .iter()
        .zip(&shapes)
        .map(|(argument, shape)| msl_cpu::Argument {
            name: argument.name,
            dtype: scalar(argument.scalar).0,
            shape,
        })
        .collect();
    let template: Vec<(&str, Template)> =
        call.parameters.iter().map(|&(name, value)| (name, parameter(value))).collect();
    Signature {
        name: call.kernel.name(),
        inputs: &arguments,
        outputs: &[(call.kernel.output(), scalar(Scalar::Float(call.output)).0)],
        template: &template,
    }
    .wrap(call.kernel.header(), body.unwrap_or(call.kernel.body()))
}

const fn scalar(scalar: Scalar) -> (Dtype, usize) {
    match scalar {
        Scalar::U32 => (Dtype::U32, 4),
        Scalar::Float(FloatType::F32) => (Dtype::F32, 4),
        Scalar::Float(FloatType::F16) => (Dtype::F16, 2),
        Scalar::Float(FloatType::Bf16) => (Dtype::Bf16, 2),
    }
}

const fn parameter(value: Parameter) -> Template {
    match value {
        Parameter::Type(kind) => Template::Type(scalar(Scalar::Float(kind)).0),
        Parameter::Int(value) => Template::Int(value),
        Parameter::Bool(value) => Template::Bool(value),
    }
}

pub(super) fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(super) fn encode(kind: FloatType, values: &[f32]) -> Vec<u8> {
    match kind {
        FloatType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        FloatType::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
        FloatType::Bf16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
    }
}

pub(super) fn decode(kind: FloatType, bytes: &[u8]) -> Vec<f32> {
    match kind {
        FloatType::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        FloatType::F16 => {
            bytes.chunks_exact(2).map(|b| f16::from_le_bytes(b.try_into().unwrap()).to_f32()).collect()
        }
        FloatType::Bf16 => {
            bytes.chunks_exact(2).map(|b| bf16::from_le_bytes(b.try_into().unwrap()).to_f32()).collect()
        }
    }
}

pub(super) fn round(kind: FloatType, value: f32) -> f32 {
    decode(kind, &encode(kind, &[value]))[0]
}

/// ‖out − reference‖ ÷ ‖reference‖; not a number if any output is.
pub(super) fn relative_error(out: &[f32], reference: &[f64]) -> f64 {
    assert_eq!(out.len(), reference.len());
    let square =
        |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference =
        square(&mut out.iter().zip(reference).map(|(&out, reference)| f64::from(out) - reference));
    difference / square(&mut reference.iter().copied())
}
