//! The stock family: MLX's own quantised products over views of the bank.
//!
//! Where MLX can take slot numbers as indices, one `gather_qmm` serves all jobs with the same number of rows; otherwise
//! each job has products of its own. Which of the two depends on the backend, formats, dtypes and the bank's size alone, never
//! on residency, and both give a row the same bits, so a job's bits depend only on its own rows.

use mlx_rs::{
    Array, Dtype,
    error::Exception,
    ops::{clip, concatenate, sigmoid},
};

use super::{
    bank::BankArray,
    kernels::Backend,
    ops::{Format, Packed, dimension, gather_qmm, quantized_matmul, take},
};
use crate::{
    formats::{Activation, ExpertGeometry, FloatType, Part, Projection, Quantisation, SlotLayout},
    ids::SlotId,
};

/// How MLX computes a product with one projection's weights.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    /// The stored arrays are MLX's own; `scales` is the type that x must have for slots to serve as indices.
    Native { format: Format, scales: Option<Dtype> },
    /// Colibri's 4 bits with a scale per row: affine with scale 1 and bias −8, then × row scale.
    SignedRow { format: Format },
    /// Colibri's 4 bits in groups that MLX's divide: each scale repeated, bias = −8 × scale.
    SignedGroup { format: Format, repeat: i32 },
    /// Colibri's 8 bits: the sign bit flipped into an offset of 128, then as `SignedRow`.
    SignedByte { format: Format },
    /// Colibri's formats in widths or groups that MLX has no kernel for: unpacked to f32 first. Slow.
    Unpacked { bits: u32, group: i32 },
}

/// The views and constants of one projection.
#[derive(Clone, Debug)]
struct Product {
    method: Method,
    /// Whether MLX counts far enough to find every slot's weights by number.
    countable: bool,
    rows: i32,
    columns: i32,
    weight: Component,
    scales: Component,
    biases: Option<Component>,
    bias: Option<Component>,
    /// Scales of 1 and biases of −offset, `[rows, groups]`, or `[slots, rows, groups]` without memory for each.
    unit: Option<(Array, Array)>,
}

/// One component of every slot.
#[derive(Clone, Debug)]
struct Component {
    all: Array,
    dtype: Dtype,
    item_bytes: usize,
    offset_bytes: usize,
    shape: Vec<i32>,
}

/// The stock family over one tier's bank. A clone has handles of its own on the same memory, for another thread; every
/// array that clones share was evaluated when the tier was made, so that MLX only reads it.
#[derive(Clone, Debug)]
pub(crate) struct StockTier {
    bank: BankArray,
    products: [Product; 3],
    activation: Activation,
    hidden: i32,
    one_row_at_a_time: bool,
}

/// The rows one submission computes: slots with equally many rows each.
#[derive(Debug)]
pub(crate) struct StockRows<'a> {
    /// The experts' slots.
    pub(crate) slots: &'a [SlotId],
    /// Input rows, job by job, `rows_per_job` each.
    pub(crate) rows: &'a [u32],
}

impl StockTier {
    /// Views over `bank` for experts of `geometry`.
    pub(crate) fn new(
        bank: BankArray,
        geometry: &ExpertGeometry,
        layout: &SlotLayout,
    ) -> Result<Self, Exception> {
        // Metal's gather_qmm multiplies a slot's number by a 64-bit stride; CUDA's takes no weights with gaps between the
        // slots; the CPU's counts items in an int.
        let items = match Backend::of_default_device() {
            Some(Backend::Metal) => i64::MAX,
            Some(Backend::Cuda) => 0,
            None => i64::from(i32::MAX),
        };
        Self::counting_to(items, bank, geometry, layout)
    }

    /// With products of their own for the jobs of a bank in which a component has more than `items` items.
    fn counting_to(
        items: i64,
        bank: BankArray,
        geometry: &ExpertGeometry,
        layout: &SlotLayout,
    ) -> Result<Self, Exception> {
        let [down, gate, up] = Projection::ALL;
        let product = |projection| Product::new(&bank, geometry, layout, projection, items);
        let products = [product(down)?, product(gate)?, product(up)?];
        mlx_rs::transforms::eval(products.iter().flat_map(Product::arrays))?;
        // Once more, one by one: MLX now notes in each that its value is there, and no thread writes that note later.
        products.iter().flat_map(Product::arrays).try_for_each(Array::eval)?;
        let hidden = dimension(geometry.hidden)?;
        let cuda = Backend::of_default_device() == Some(Backend::Cuda);
        let one_row_at_a_time = cuda && products.iter().any(Product::group_is_the_row);
        Ok(Self { bank, products, activation: geometry.activation, hidden, one_row_at_a_time })
    }

    /// Makes each row a job of its own if `fixed`, so that MLX takes the same kernel for it whatever comes with it.
    #[must_use]
    pub(crate) fn one_row_at_a_time(self, fixed: bool) -> Self {
        Self { one_row_at_a_time: self.one_row_at_a_time || fixed, ..self }
    }

    /// Width of input and output rows.
    pub(crate) const fn hidden(&self) -> i32 {
        self.hidden
    }

    /// Expert outputs `[jobs × rows per job, hidden]`, unweighted, unevaluated. `x` is `[rows, hidden]`.
    pub(crate) fn rows(&self, x: &Array, work: &StockRows<'_>) -> Result<Array, Exception> {
        let per_job = work.rows.len() / work.slots.len().max(1);
        if self.one_row_at_a_time && per_job > 1 {
            let slots: Vec<SlotId> =
                work.slots.iter().flat_map(|&slot| std::iter::repeat_n(slot, per_job)).collect();
            return self.rows(x, &StockRows { slots: &slots, rows: work.rows });
        }
        if !self.products.iter().all(|product| product.takes_indices(x.dtype())) && work.slots.len() > 1 {
            let jobs = work.slots.chunks(1).zip(work.rows.chunks(per_job));
            let parts: Result<Vec<_>, _> =
                jobs.map(|(slots, rows)| self.rows(x, &StockRows { slots, rows })).collect();
            return concatenate(&parts?.iter().collect::<Vec<_>>(), 0);
        }
        let jobs = dimension(work.slots.len())?;
        let count = dimension(work.rows.len())?;
        let index = Array::from_slice(work.rows, &[count]);
        let x = take(x, &index, 0)?.reshape(&[jobs, count / jobs.max(1), self.hidden])?;
        let [down, gate, up] = &self.products;
        let slots = Slots::new(work.slots)?;
        let gate = gate.apply(&self.bank, &x, &slots)?;
        let up = up.apply(&self.bank, &x, &slots)?;
        let inner = activate(self.activation, &gate, &up)?;
        down.apply(&self.bank, &inner, &slots)?.reshape(&[count, self.hidden])
    }
}

/// Slot numbers on both sides of the fence.
struct Slots<'a> {
    host: &'a [SlotId],
    device: Array,
}

impl<'a> Slots<'a> {
    fn new(host: &'a [SlotId]) -> Result<Self, Exception> {
        let numbers: Vec<u32> = host.iter().map(|slot| slot.0).collect();
        Ok(Self { host, device: Array::from_slice(&numbers, &[dimension(numbers.len())?]) })
    }
}

fn activate(activation: Activation, gate: &Array, up: &Array) -> Result<Array, Exception> {
    match activation {
        Activation::SwiGlu => gate.multiply(sigmoid(gate)?)?.multiply(up),
        Activation::ClampedSwiGlu { alpha, limit } => {
            let scalar = |value: f32| Array::from_f32(value).as_dtype(gate.dtype());
            let gate = clip(gate, ((), &scalar(limit)?))?;
            let up = clip(up, (&scalar(-limit)?, &scalar(limit)?))?;
            let glu = gate.multiply(sigmoid(&gate.multiply(scalar(alpha)?)?)?)?;
            glu.multiply(up.add(scalar(1.0)?)?)
        }
    }
}

impl Product {
    fn new(
        bank: &BankArray,
        geometry: &ExpertGeometry,
        layout: &SlotLayout,
        projection: Projection,
        countable_items: i64,
    ) -> Result<Self, Exception> {
        let shape = geometry.projection(projection);
        let (rows, columns) = (dimension(shape.rows)?, dimension(shape.columns)?);
        let method = Method::of(shape.quantisation, columns)?;
        let component = |part, dtype: Dtype, item_bytes: usize, vector: bool| {
            let Some(range) = layout.range(projection, part) else { return Ok(None) };
            let items = dimension((range.end - range.start) / item_bytes as u64)?;
            let shape = if vector { vec![rows] } else { vec![rows, items / rows] };
            let offset = usize::try_from(range.start).map_err(|_| Exception::custom("slot too large"))?;
            Component::new(bank, dtype, item_bytes, offset, shape).map(Some)
        };
        let missing = || Exception::custom(format!("{projection:?} has no weights or scales in its layout"));
        let (weight_dtype, weight_bytes) = match method {
            Method::Unpacked { .. } => (Dtype::Uint8, 1),
            _ => (Dtype::Uint32, 4),
        };
        let (scale_dtype, scale_bytes) = scale_dtype(shape.quantisation);
        let float = geometry.bias.map(float_dtype);
        let weight = component(Part::Weight, weight_dtype, weight_bytes, false)?.ok_or_else(missing)?;
        let scales = component(Part::Scales, scale_dtype, scale_bytes, false)?.ok_or_else(missing)?;
        let countable = weight.items().max(scales.items()) <= countable_items;
        Ok(Self {
            method,
            countable,
            rows,
            columns,
            weight,
            scales,
            biases: component(Part::Biases, scale_dtype, scale_bytes, false)?,
            bias: match float {
                Some((dtype, bytes)) => component(Part::Bias, dtype, bytes, true)?,
                None => None,
            },
            unit: method.unit(rows, columns, countable.then(|| bank.slots()))?,
        })
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let components = [Some(&self.weight), Some(&self.scales), self.biases.as_ref(), self.bias.as_ref()];
        let unit = self.unit.iter().flat_map(|(scales, biases)| [scales, biases]);
        components.into_iter().flatten().map(|component| &component.all).chain(unit)
    }

    /// Whether slot numbers can serve as indices for an input of `dtype` without copying the whole bank.
    fn takes_indices(&self, dtype: Dtype) -> bool {
        self.countable
            && match self.method {
                Method::Native { scales, .. } => scales.is_none_or(|scales| scales == dtype),
                Method::SignedRow { .. } => true,
                Method::SignedGroup { .. } | Method::SignedByte { .. } | Method::Unpacked { .. } => false,
            }
    }

    /// Whether one group is as wide as the row: MLX 0.32.2's CUDA backend gives wrong products of several rows then (seen on an
    /// H200, in small models alone), and right ones of one.
    fn group_is_the_row(&self) -> bool {
        let format = match self.method {
            Method::Native { format, .. }
            | Method::SignedRow { format }
            | Method::SignedGroup { format, .. }
            | Method::SignedByte { format } => format,
            Method::Unpacked { .. } => return false,
        };
        format.mode == c"affine" && format.group >= self.columns
    }

    /// `[jobs, rows, columns]` to `[jobs, rows, out]`. More than one job only if [`Self::takes_indices`].
    fn apply(&self, bank: &BankArray, x: &Array, slots: &Slots<'_>) -> Result<Array, Exception> {
        let product = match (self.method, slots.host) {
            (Method::Native { format, .. }, &[slot]) if !self.takes_indices(x.dtype()) => {
                let [weight, scales] = [self.weight.one(bank, slot)?, self.scales.one(bank, slot)?];
                let biases = self.biases.as_ref().map(|biases| biases.one(bank, slot)).transpose()?;
                let packed = Packed { weight: &weight, scales: &scales, biases: biases.as_ref(), format };
                quantized_matmul(x, packed)?
            }
            (Method::Native { format, .. }, _) => {
                let (weight, scales) = (&self.weight.all, &self.scales.all);
                let biases = self.biases.as_ref().map(|biases| &biases.all);
                gather_qmm(x, Packed { weight, scales, biases, format }, &slots.device)?
            }
            (Method::SignedRow { format }, &[slot]) if !self.countable => {
                let x = x.as_dtype(Dtype::Float32)?;
                let weight = self.weight.one(bank, slot)?;
                quantized_matmul(&x, self.with_unit(&weight, format)?)?.multiply(self.row_scales(slots)?)?
            }
            (Method::SignedRow { format }, _) => {
                let x = x.as_dtype(Dtype::Float32)?;
                let unscaled = gather_qmm(&x, self.with_unit(&self.weight.all, format)?, &slots.device)?;
                unscaled.multiply(self.row_scales(slots)?)?
            }
            (Method::SignedByte { format }, &[slot]) => {
                let x = x.as_dtype(Dtype::Float32)?;
                // u8 addition wraps, so that adding 128 flips the sign bit.
                let bytes = self.weight.one(bank, slot)?.view_dtype(Dtype::Uint8)?;
                let flipped = bytes.add(Array::from_slice(&[128u8], &[1]))?.view_dtype(Dtype::Uint32)?;
                quantized_matmul(&x, self.with_unit(&flipped, format)?)?.multiply(self.row_scales(slots)?)?
            }
            (Method::SignedGroup { format, repeat }, &[slot]) => {
                let x = x.as_dtype(Dtype::Float32)?;
                let scales = self.scales.one(bank, slot)?;
                let scales = Array::repeat_axis::<f32>(scales, repeat, 1)?;
                let biases = scales.multiply(Array::from_f32(-8.0))?;
                let weight = self.weight.one(bank, slot)?;
                quantized_matmul(
                    &x,
                    Packed { weight: &weight, scales: &scales, biases: Some(&biases), format },
                )?
            }
            (Method::Unpacked { bits, group }, &[slot]) => self.unpacked(bank, x, slot, bits, group)?,
            (method, slots) => {
                return Err(Exception::custom(format!(
                    "{method:?} takes one slot at a time, not {}",
                    slots.len()
                )));
            }
        };
        match &self.bias {
            None => Ok(product),
            Some(bias) => product.add(take(&bias.all, &slots.device, 0)?.expand_dims(1)?),
        }
    }

    fn with_unit<'a>(&'a self, weight: &'a Array, format: Format) -> Result<Packed<'a>, Exception> {
        let (scales, biases) =
            self.unit.as_ref().ok_or_else(|| Exception::custom("unit scales were not made"))?;
        Ok(Packed { weight, scales, biases: Some(biases), format })
    }

    /// The scales of the jobs' rows: `[jobs, 1, rows]`.
    fn row_scales(&self, slots: &Slots<'_>) -> Result<Array, Exception> {
        let jobs = dimension(slots.host.len())?;
        take(&self.scales.all, &slots.device, 0)?.reshape(&[jobs, 1, self.rows])
    }

    fn unpacked(
        &self,
        bank: &BankArray,
        x: &Array,
        slot: SlotId,
        bits: u32,
        group: i32,
    ) -> Result<Array, Exception> {
        let bytes = self.weight.one(bank, slot)?;
        let values = if bits == 8 {
            bytes.view_dtype(Dtype::Int8)?.as_dtype(Dtype::Float32)?
        } else {
            let low = bytes.remainder(Array::from_slice(&[16u8], &[1]))?.expand_dims(2)?;
            let high = bytes.floor_divide(Array::from_slice(&[16u8], &[1]))?.expand_dims(2)?;
            let nibbles = concatenate(&[&low, &high], 2)?.reshape(&[self.rows, -1])?;
            let columns = take(&nibbles, &columns_by(self.columns, |column| column), 1)?;
            columns.as_dtype(Dtype::Float32)?.subtract(Array::from_f32(8.0))?
        };
        let scales =
            take(&self.scales.one(bank, slot)?, &columns_by(self.columns, |column| column / group), 1)?;
        x.as_dtype(Dtype::Float32)?.matmul(values.multiply(scales)?.transpose()?)
    }
}

/// An index array over the columns of a row.
fn columns_by(columns: i32, index: impl Fn(i32) -> i32) -> Array {
    Array::from_slice(&(0..columns).map(index).collect::<Vec<_>>(), &[columns])
}

impl Component {
    fn new(
        bank: &BankArray,
        dtype: Dtype,
        item_bytes: usize,
        offset_bytes: usize,
        shape: Vec<i32>,
    ) -> Result<Self, Exception> {
        let all = bank.all_slots(dtype, item_bytes, offset_bytes, &shape)?;
        Ok(Self { all, dtype, item_bytes, offset_bytes, shape })
    }

    /// Items in all slots together.
    fn items(&self) -> i64 {
        self.all.shape().iter().map(|&items| i64::from(items)).product()
    }

    fn one(&self, bank: &BankArray, slot: SlotId) -> Result<Array, Exception> {
        bank.one_slot(slot, self.dtype, self.item_bytes, self.offset_bytes, &self.shape)
    }
}

impl Method {
    fn of(quantisation: Quantisation, columns: i32) -> Result<Self, Exception> {
        let format = |mode, bits: u32, group: i32| Format { mode, bits: bits as i32, group };
        Ok(match quantisation {
            Quantisation::Affine { bits, group, scales } => {
                let scales = Some(float_dtype(scales).0);
                Self::Native { format: format(c"affine", bits, dimension(group)?), scales }
            }
            Quantisation::Mxfp4 => Self::Native { format: format(c"mxfp4", 4, 32), scales: None },
            Quantisation::Nvfp4 => Self::Native { format: format(c"nvfp4", 4, 16), scales: None },
            Quantisation::Mxfp8 => Self::Native { format: format(c"mxfp8", 8, 32), scales: None },
            Quantisation::Signed { bits, group } => {
                let group = group.map_or(Ok(columns), dimension)?;
                let kernel_group =
                    [128, 64, 32].into_iter().find(|kernel| group % kernel == 0 && columns % kernel == 0);
                match (bits, kernel_group) {
                    (4, Some(kernel)) if group >= columns => {
                        Self::SignedRow { format: format(c"affine", 4, kernel) }
                    }
                    (4, Some(kernel)) if columns % group == 0 => {
                        Self::SignedGroup { format: format(c"affine", 4, kernel), repeat: group / kernel }
                    }
                    (8, Some(kernel)) => Self::SignedByte { format: format(c"affine", 8, kernel) },
                    _ => Self::Unpacked { bits, group },
                }
            }
        })
    }

    /// Scales of 1 and biases of −offset for the methods that scale afterwards.
    ///
    /// For `slots` slots at once where the method takes them.
    fn unit(self, rows: i32, columns: i32, slots: Option<i32>) -> Result<Option<(Array, Array)>, Exception> {
        let (format, offset, slots) = match self {
            Self::SignedRow { format } => (format, -8.0, slots),
            Self::SignedByte { format } => (format, -128.0, None),
            _ => return Ok(None),
        };
        let shape = [rows, columns / format.group];
        let make = |value: f32| {
            let constant = Array::full::<f32>(&shape, Array::from_f32(value))?;
            match slots {
                None => Ok(constant),
                Some(slots) => {
                    let strides = [0, i64::from(shape[1]), 1];
                    constant.as_strided(&[slots, shape[0], shape[1]][..], &strides[..], 0)
                }
            }
        };
        Ok(Some((make(1.0)?, make(offset)?)))
    }
}

const fn float_dtype(float: FloatType) -> (Dtype, usize) {
    match float {
        FloatType::F32 => (Dtype::Float32, 4),
        FloatType::F16 => (Dtype::Float16, 2),
        FloatType::Bf16 => (Dtype::Bfloat16, 2),
    }
}

const fn scale_dtype(quantisation: Quantisation) -> (Dtype, usize) {
    match quantisation {
        Quantisation::Affine { scales, .. } => float_dtype(scales),
        Quantisation::Signed { .. } => (Dtype::Float32, 4),
        Quantisation::Mxfp4 | Quantisation::Nvfp4 | Quantisation::Mxfp8 => (Dtype::Uint8, 1),
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        unsafe_code,
        reason = "a test fills slots by hand; each block says why nothing else touches them"
    )]

    use half::{bf16, f16};

    use super::*;
    use crate::{compute::oracle::Mlp, formats::ExpertView, memory::Bank, mlx::bank::mlx_bank};

    const SLOTS: u32 = 5;

    /// Fills every component of every slot with random codes and with scales that a model could have.
    fn fill(bank: &Bank, geometry: &ExpertGeometry, layout: &SlotLayout, random: &mut fastrand::Rng) {
        for slot in 0..SLOTS {
            // SAFETY: one thread, and no MLX work is under way.
            let bytes = unsafe { bank.slot_mut(SlotId(slot)) };
            for part in Part::ALL {
                for projection in Projection::ALL {
                    let Some(range) = layout.range(projection, part) else { continue };
                    let part_bytes = &mut bytes[range.start as usize..range.end as usize];
                    let quantisation = geometry.projection(projection).quantisation;
                    fill_part(part_bytes, part, quantisation, geometry.bias, random);
                }
            }
        }
    }

    fn fill_part(
        bytes: &mut [u8],
        part: Part,
        quantisation: Quantisation,
        bias: Option<FloatType>,
        random: &mut fastrand::Rng,
    ) {
        let float = match (part, quantisation) {
            (Part::Weight, Quantisation::Mxfp8) => {
                // Without the codes that mean NaN.
                bytes.iter_mut().for_each(|byte| *byte = random.u8(..) & 0xf7);
                return;
            }
            (Part::Weight, _) => return random.fill(bytes),
            (Part::Scales, Quantisation::Mxfp4 | Quantisation::Mxfp8) => {
                return bytes.iter_mut().for_each(|byte| *byte = random.u8(120..124));
            }
            (Part::Scales, Quantisation::Nvfp4) => {
                return bytes.iter_mut().for_each(|byte| *byte = random.u8(10..40));
            }
            (Part::Scales | Part::Biases, Quantisation::Affine { scales, .. }) => scales,
            (Part::Bias, _) => bias.unwrap(),
            _ => FloatType::F32,
        };
        for chunk in bytes.chunks_exact_mut(float.bytes() as usize) {
            let value = (random.f32() - 0.5) * 0.05;
            match float {
                FloatType::F32 => chunk.copy_from_slice(&value.to_le_bytes()),
                FloatType::F16 => chunk.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                FloatType::Bf16 => chunk.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            }
        }
    }

    fn formats() -> Vec<ExpertGeometry> {
        let affine = |bits, group, scales| Quantisation::Affine { bits, group, scales };
        let signed = |bits, group| Quantisation::Signed { bits, group };
        let mut all = vec![Quantisation::Mxfp4, Quantisation::Nvfp4, Quantisation::Mxfp8];
        all.extend([2, 3, 4, 5, 6, 8].map(|bits| affine(bits, 64, FloatType::F32)));
        all.extend([FloatType::F16, FloatType::Bf16].map(|scales| affine(4, 32, scales)));
        all.push(affine(8, 128, FloatType::Bf16));
        all.extend([signed(4, None), signed(8, None)]);
        all.extend([16, 32, 48, 64, 128, 256].map(|group| signed(4, Some(group))));
        let mut geometries: Vec<_> =
            all.into_iter().map(|each| ExpertGeometry::uniform(256, 128, each)).collect();
        geometries
            .extend([signed(4, None), signed(8, None)].map(|each| ExpertGeometry::uniform(65, 33, each)));
        geometries.push(ExpertGeometry {
            bias: Some(FloatType::Bf16),
            activation: Activation::ClampedSwiGlu { alpha: 1.702, limit: 0.5 },
            ..ExpertGeometry::uniform(96, 64, Quantisation::Mxfp4)
        });
        geometries
    }

    #[test]
    fn every_format_agrees_with_the_oracle_and_does_not_depend_on_company() {
        let mut random = fastrand::Rng::with_seed(7);
        for geometry in formats() {
            let layout = SlotLayout::new(&geometry).unwrap();
            let (bank, array) = mlx_bank(SLOTS, layout.slot_bytes()).unwrap();
            fill(&bank, &geometry, &layout, &mut random);
            let tier = StockTier::new(array.clone(), &geometry, &layout).unwrap();
            let uncountable = StockTier::counting_to(1, array, &geometry, &layout).unwrap();
            let hidden = geometry.hidden as usize;
            let x: Vec<f32> = (0..3 * hidden).map(|_| random.f32() * 2.0 - 1.0).collect();
            let input = Array::from_slice(&x, &[3, hidden as i32]);
            let slots = [SlotId(4), SlotId(0), SlotId(2)];
            let rows = [0, 1, 2, 0, 2, 1];
            let together = tier.rows(&input, &StockRows { slots: &slots, rows: &rows }).unwrap();
            let one_by_one = uncountable.rows(&input, &StockRows { slots: &slots, rows: &rows }).unwrap();
            assert_eq!(one_by_one.as_slice::<f32>(), together.as_slice::<f32>(), "{geometry:?}");
            for (job, slot) in slots.iter().enumerate() {
                let rows = &rows[2 * job..2 * job + 2];
                let alone = tier.rows(&input, &StockRows { slots: &[*slot], rows }).unwrap();
                let alone = alone.as_slice::<f32>();
                assert_eq!(
                    alone,
                    &together.as_slice::<f32>()[2 * job * hidden..][..2 * hidden],
                    "{geometry:?}"
                );
                // SAFETY: MLX has been evaluated, and nothing writes.
                let bytes = unsafe { bank.slot(*slot) };
                let expert = Mlp::of_expert(&ExpertView::new(&geometry, &layout, bytes).unwrap()).unwrap();
                for (row, out) in rows.iter().zip(alone.chunks(hidden)) {
                    let x: Vec<f64> =
                        x[*row as usize * hidden..][..hidden].iter().map(|&v| v.into()).collect();
                    let want = expert.forward(&x).unwrap();
                    let error: f64 = want.iter().zip(out).map(|(w, &o)| (w - f64::from(o)).powi(2)).sum();
                    let norm: f64 = want.iter().map(|w| w * w).sum();
                    assert!((error / norm).sqrt() < 1e-5, "{geometry:?}: {}", (error / norm).sqrt());
                }
            }
        }
    }
}
