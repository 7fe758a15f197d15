//! The kernels' text: what a type checker with address spaces and the lint say of it.

use msl_cpu::{Strict, lint, type_check};

use super::{
    super::{Call, GpuLinear, GpuSwiGlu, KernelName, LinearSpec, Rounding},
    bench::{BF16, Bench, F16, F32, Size, signature_text},
};
use crate::formats::{Activation, ExpertGeometry, FloatType, Quantisation};

/// The calls of the kernels for resident matrices, of every width of code.
fn matrix_calls(kind: FloatType) -> Vec<Call> {
    let spec = |bits, scales| LinearSpec { rows: 40, columns: 96, bits, group: 32, scales };
    let linear = GpuLinear::new(spec(2, kind)).unwrap().call(kind, 5).unwrap();
    let swiglu = GpuSwiGlu::new(spec(4, F32), spec(8, BF16)).unwrap();
    let swiglu = [Rounding::F32, Rounding::Match].map(|rounding| swiglu.call(kind, 1, rounding).unwrap());
    std::iter::once(linear).chain(swiglu).collect()
}

fn texts(geometry: ExpertGeometry, kind: FloatType) -> Vec<msl_cpu::KernelText> {
    let bench = Bench::new(geometry, kind, Size { rows: 2, ranks: 2, experts: 3, shared: true, seed: 1 });
    let tiles = bench.all_tiles(2);
    let pairs = tiles.rows.len();
    let inner = vec![0; pairs * geometry.intermediate as usize * 4];
    let rows = vec![0; pairs * geometry.hidden as usize * 4];
    let calls = [
        (bench.expert.gate_up(kind, pairs, tiles.count(), 2), bench.gate_up_inputs(&tiles)),
        (bench.expert.down(pairs, tiles.count(), 2), bench.down_inputs(&tiles, &inner)),
        bench.down_compose_call(&tiles, &inner),
        bench.compose_call(&[(&tiles, rows)]),
    ];
    calls.iter().map(|(call, inputs)| signature_text(call, inputs, None)).collect()
}

#[test]
fn address_spaces_and_types_hold() {
    let signed = |bits, group| Quantisation::Signed { bits, group };
    let affine = |bits, scales| Quantisation::Affine { bits, group: 32, scales };
    let clamped = ExpertGeometry {
        bias: Some(BF16),
        activation: Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 },
        ..ExpertGeometry::uniform(64, 32, affine(4, BF16))
    };
    let geometries = [
        (ExpertGeometry::uniform(64, 32, signed(4, None)), F32),
        (ExpertGeometry::uniform(64, 32, signed(8, None)), BF16),
        (ExpertGeometry::uniform(64, 32, affine(8, F16)), F16),
        (clamped, BF16),
    ];
    for (geometry, kind) in geometries {
        for text in texts(geometry, kind) {
            match type_check(&text) {
                Strict::Passed => {}
                Strict::Skipped(reason) => println!("skipped: {reason}"),
                Strict::Refused(messages) => panic!("{geometry:?} {kind:?}:\n{messages}"),
            }
        }
    }
}

#[test]
fn address_spaces_and_types_hold_for_matrices() {
    for kind in [F32, BF16, F16] {
        for call in matrix_calls(kind) {
            // As large as no array is smaller than: MLX then hands all of them over in the address space `device`.
            let inputs = vec![vec![0; 64]; call.inputs.len()];
            match type_check(&signature_text(&call, &inputs, None)) {
                Strict::Passed => {}
                Strict::Skipped(reason) => println!("skipped: {reason}"),
                Strict::Refused(messages) => panic!("{:?} {kind:?}:\n{messages}", call.kernel),
            }
        }
    }
}

#[test]
fn the_lint_has_nothing_to_say() {
    for kernel in KernelName::ALL {
        assert_eq!(lint(kernel.header(), kernel.body()), Vec::<String>::new(), "{kernel:?}");
    }
}

#[test]
fn the_contract_names_every_kernel_and_input() {
    let contract = include_str!("../../../../kernels/README.md");
    let geometry = ExpertGeometry::uniform(64, 32, Quantisation::Signed { bits: 4, group: None });
    let expert = super::super::GpuExpert::new(&geometry).unwrap();
    let calls = [
        expert.gate_up(F32, 1, 1, 1),
        expert.down(1, 1, 1),
        expert.down_compose(F32, 1, 1, true),
        expert.compose(F32, 1, true),
    ];
    for call in calls.into_iter().chain(matrix_calls(F32)) {
        let inputs = call.inputs.iter().map(|input| input.name);
        for name in inputs.chain(call.parameters.iter().map(|(name, _)| *name)).chain([call.kernel.output()])
        {
            assert!(contract.contains(&format!("`{name}`")), "kernels/README.md does not name `{name}`");
        }
    }
}
