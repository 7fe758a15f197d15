//! The stock family in half precision. MLX's CPU product is imprecise in bf16 (2 % at width 256, 7 % at 4096), so there the
//! reference is MLX's own product on the same inputs: if this fails, an engine that moves its experts here gets other
//! numbers than it had from MLX.
#![cfg(feature = "mlx")]

#[path = "common/fixture.rs"]
mod fixture;
#[path = "common/pass.rs"]
mod pass;

use fixture::Fixture;
use half::{bf16, f16};
use pass::{Setting, cases, open, relative_error, source, whole_budget};
use streamed_experts::{
    Activation, Family, FloatType, Part, Projection, Quantisation, SlotLayout, StreamedExpertExecutor,
    mlx_rs::{
        Array, Dtype,
        ops::{quantized_matmul, sigmoid},
    },
};

fn stock(name: &str) -> StreamedExpertExecutor {
    let source = source(name);
    let budget_bytes = whole_budget(&*source);
    open(&source, &Setting { family: Family::Stock, budget_bytes, working: 64, readers: 2 })
}

fn array(rows: &[f32], hidden: usize, dtype: Dtype) -> Array {
    let shape = [1, (rows.len() / hidden) as i32, hidden as i32];
    Array::from_slice(rows, &shape).as_dtype(dtype).unwrap()
}

fn values(array: &Array) -> Vec<f32> {
    array.as_dtype(Dtype::Float32).unwrap().as_slice::<f32>().to_vec()
}

/// One part of an affine expert as an MLX array of its own.
fn part(
    slot: &[u8],
    layout: &SlotLayout,
    projection: Projection,
    part: Part,
    rows: i32,
    kind: FloatType,
) -> Array {
    let range = layout.range(projection, part).unwrap();
    let bytes = &slot[range.start as usize..range.end as usize];
    let pairs = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match (part, kind) {
        (Part::Weight, _) => {
            let words: Vec<u32> =
                bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
            Array::from_slice(&words, &[rows, words.len() as i32 / rows])
        }
        (_, FloatType::F16) => {
            let halves: Vec<f16> = pairs.map(f16::from_bits).collect();
            Array::from_slice(&halves, &[rows, halves.len() as i32 / rows])
        }
        (_, FloatType::Bf16) => {
            let halves: Vec<bf16> = pairs.map(bf16::from_bits).collect();
            Array::from_slice(&halves, &[rows, halves.len() as i32 / rows])
        }
        (_, FloatType::F32) => panic!("this test is about half precision"),
    }
}

/// What MLX computes for one row when the expert is an ordinary resident layer.
fn mlx_alone(fixture: &Fixture, layer: u32, expert: u32, x: &Array) -> Array {
    let geometry = fixture.geometry(layer);
    assert_eq!(geometry.activation, Activation::SwiGlu);
    let layout = SlotLayout::new(&geometry).unwrap();
    let slot = fixture.slot(layer, expert);
    let product = |x: &Array, projection| {
        let shape = geometry.projection(projection);
        let Quantisation::Affine { bits, group, scales } = shape.quantisation else { panic!("affine only") };
        let get = |each| part(&slot, &layout, projection, each, shape.rows as i32, scales);
        let (weight, scales, biases) = (get(Part::Weight), get(Part::Scales), get(Part::Biases));
        quantized_matmul(x, weight, scales, &biases, true, group as i32, bits as i32).unwrap()
    };
    let gate = product(x, Projection::Gate);
    let activated = gate.multiply(sigmoid(&gate).unwrap()).unwrap();
    product(&activated.multiply(product(x, Projection::Up)).unwrap(), Projection::Down)
}

#[test]
fn half_precision_equals_mlxs_own_products_bit_for_bit() {
    for (name, dtype) in [
        ("qwen3_moe-affine4-g64-bf16", Dtype::Bfloat16),
        ("qwen3_moe-affine4-wide-bf16", Dtype::Bfloat16),
        ("olmoe-affine4-g64-f16", Dtype::Float16),
        ("qwen3_moe-affine6-g64-f16", Dtype::Float16),
        // Activations of another type than the scales: MLX computes in f32.
        ("qwen3_moe-affine8-g64-f16", Dtype::Bfloat16),
    ] {
        let fixture = Fixture::open(name);
        let mut executor = stock(name);
        for case in cases(&fixture) {
            let x = array(&case.repeated(), case.hidden, dtype);
            let ours = executor.execute(case.layer, &x, &case.alone, None).unwrap();
            assert_eq!((ours.dtype(), ours.shape()), (dtype, x.shape()), "{name}");
            let ours = values(&ours);
            let rows = case.repeated();
            for row in 0..case.alone.rows() {
                let expert = case.alone.row(row).next().unwrap().expert;
                let x = array(&rows[row * case.hidden..][..case.hidden], case.hidden, dtype);
                let theirs = mlx_alone(&fixture, case.layer.0, expert.0, &x).as_dtype(dtype).unwrap();
                assert_eq!(
                    ours[row * case.hidden..][..case.hidden],
                    values(&theirs),
                    "{name} row {row} {expert}"
                );
            }
        }
    }
}

#[test]
fn f16_activations_stay_within_a_hundredth_of_the_answers() {
    for name in pass::fixtures() {
        let fixture = Fixture::open(&name);
        let mut executor = stock(&name);
        for case in cases(&fixture) {
            let x = array(&case.input, case.hidden, Dtype::Float16);
            let shared = case.shared.as_deref().map(|rows| array(rows, case.hidden, Dtype::Float16));
            let out = executor.execute(case.layer, &x, &case.plan, shared.as_ref()).unwrap();
            assert_eq!((out.dtype(), out.shape()), (Dtype::Float16, x.shape()), "{name}");
            let error = relative_error(&values(&out), &case.output);
            assert!(error <= 1e-2, "{name} {}: {error:.1e}", case.layer);
        }
    }
}

#[test]
fn batches_keep_their_shape_and_a_lazy_shared_row_is_added() {
    let name = "glm4_moe-affine4-g64-bf16";
    let fixture = Fixture::open(name);
    let mut executor = stock(name);
    for case in cases(&fixture) {
        let rows = case.plan.rows() as i32;
        let shape = [2, rows / 2, case.hidden as i32];
        assert_eq!(rows % 2, 0);
        let input = Array::from_slice(&case.input, &shape);
        let half =
            Array::from_slice(case.shared.as_ref().unwrap(), &shape).multiply(Array::from_f32(0.5)).unwrap();
        let shared = half.add(&half).unwrap();
        let out = executor.execute(case.layer, &input, &case.plan, Some(&shared)).unwrap();
        assert_eq!(out.shape(), shape);
        assert!(relative_error(out.as_slice::<f32>(), &case.output) <= 1e-5);
    }
}
