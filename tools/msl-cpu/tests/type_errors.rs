//! If this fails, kernels that Apple's compiler refuses would pass here.

use msl_cpu::{Argument, Dtype, KernelText, Signature, Strict, Template, lint, type_check};

const HEADER: &str = "
template <typename X>
METAL_FUNC float first_of(const device X* x, uint count) { return count == 0u ? 0.0f : float(x[0]); }
METAL_FUNC void keep(thread float& best, float value) { best = max(best, value); }
METAL_FUNC void put(threadgroup float* staged, float value) { staged[0] = value; }
";

const BODY: &str = "
  threadgroup float staged[N];
  float best = first_of(x, thread_position_in_grid.x);
  keep(best, 1.0f);
  put(staged, best);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[thread_position_in_grid.x] = T(staged[0] + metal::precise::exp(best) + table[1]);
";

fn text(header: &str, body: &str) -> KernelText {
    let inputs = [
        Argument { name: "x", dtype: Dtype::F32, shape: &[64] },
        Argument { name: "table", dtype: Dtype::F32, shape: &[2] },
    ];
    let template = [("T", Template::Type(Dtype::Bf16)), ("N", Template::Int(4))];
    Signature { name: "strict", inputs: &inputs, outputs: &[("y", Dtype::Bf16)], template: &template }
        .wrap(header, body)
}

#[test]
fn a_sound_kernel_passes() {
    match type_check(&text(HEADER, BODY)) {
        Strict::Passed => {}
        Strict::Skipped(reason) => println!("skipped: {reason}"),
        Strict::Refused(messages) => panic!("{messages}"),
    }
    assert_eq!(lint(HEADER, BODY), Vec::<String>::new());
}

#[test]
fn address_space_errors_are_refused() {
    let wrong = [
        ("device for thread", HEADER.to_owned(), BODY.replace("keep(best", "keep(y[0]")),
        ("device for threadgroup", HEADER.to_owned(), BODY.replace("put(staged", "put((device float*)y")),
        ("constant for device", HEADER.to_owned(), BODY.replace("first_of(x", "first_of(table")),
        ("threadgroup for device", HEADER.to_owned(), BODY.replace("first_of(x", "first_of(staged")),
        ("a write to an input", HEADER.to_owned(), BODY.replace("y[thread_position_in_grid.x] =", "x[0] =")),
        ("a float as bfloat", HEADER.to_owned(), BODY.replace("T(staged[0] +", "(staged[0] +")),
        ("double", HEADER.to_owned(), BODY.replace("float best", "double best")),
    ];
    for (what, header, body) in wrong {
        assert!(header != HEADER || body != BODY, "{what}: nothing was planted");
        match type_check(&text(&header, &body)) {
            Strict::Refused(_) => {}
            Strict::Skipped(reason) => println!("{what} skipped: {reason}"),
            Strict::Passed => panic!("{what}: passed"),
        }
    }
}

#[test]
fn what_the_compilers_accept_the_lint_refuses() {
    let wrong = [
        ("a pointer without a space", HEADER.replace("const device X* x", "const X* x"), BODY.to_owned()),
        ("a reference without a space", HEADER.replace("thread float& best", "float& best"), BODY.to_owned()),
        (
            "a lambda",
            HEADER.to_owned(),
            BODY.replace("keep(best", "auto f = [&](float v) { best = v; };\n  keep(best"),
        ),
        (
            "recursion",
            format!("{HEADER}METAL_FUNC uint f(uint n) {{ return n < 2u ? n : f(n - 1u); }}\n"),
            BODY.into(),
        ),
        (
            "a variable outside the kernel",
            format!("{HEADER}METAL_FUNC void g() {{\n  threadgroup float v[4];\n}}\n"),
            BODY.into(),
        ),
    ];
    for (what, header, body) in wrong {
        assert_ne!(lint(&header, &body), Vec::<String>::new(), "{what}: passed");
    }
}
