//! The examples as commands. If these fail, somebody who types what README says gets a panic, a wrong exit code, or figures
//! that are lost.

mod shards;
mod slabs;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use shards::{Declared, write_sparse};
use slabs::{copy_fixture, fixture, packed};
use streamed_experts::MemoryInfo;

/// An example, as cargo built it beside this test.
fn program(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let folder = test.ancestors().nth(2).unwrap().join("examples");
    let program = folder.join(format!("{name}{}", env::consts::EXE_SUFFIX));
    let fresh = is_fresh(&program, &folder.join(format!("{name}.d")));
    assert!(
        fresh == Some(true),
        "{} is missing or older than its sources; `cargo build --examples` makes it, as `cargo test` does",
        program.display()
    );
    program
}

/// Whether a program is younger than all that cargo says it is made from.
fn is_fresh(program: &Path, sources: &Path) -> Option<bool> {
    let time = |path: &Path| fs::metadata(path).ok()?.modified().ok();
    let (made, list) = (time(program)?, fs::read_to_string(sources).ok()?);
    let (_, list) = list.split_once(": ")?;
    Some(list.split_whitespace().all(|file| time(Path::new(file)).is_none_or(|changed| changed <= made)))
}

#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn run(name: &str, args: &[&str]) -> Ran {
    let Output { status, stdout, stderr } = Command::new(program(name)).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: status.code().expect("no signal"), out: text(stdout), err: text(stderr) }
}

/// What a command that must succeed writes.
#[track_caller]
fn good(name: &str, args: &[&str]) -> String {
    let ran = run(name, args);
    assert_eq!(ran.code, 0, "{args:?}: {ran:#?}");
    ran.out
}

/// What a command that must refuse says, without a panic and without a word on standard output about success.
#[track_caller]
fn refusal(name: &str, args: &[&str]) -> String {
    let ran = run(name, args);
    assert_eq!(ran.code, 2, "{args:?}: {ran:#?}");
    assert!(ran.err.starts_with("error: "), "{args:?}: {ran:#?}");
    ran.err
}

fn figure(out: &str, name: &str) -> f64 {
    let start = format!("figure {name} ");
    let line = out.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {name} in {out}")).parse().unwrap()
}

const SMALL: &str = "qwen3_moe-affine4-g64-bf16";
const EXAMPLES: &[&str] = &[
    #[cfg(feature = "mlx")]
    "generate",
    "compare",
    "inspect",
    "pack",
    "plan",
    "quickstart",
    "replay",
    "verify",
];

#[test]
fn every_example_explains_itself() {
    for name in EXAMPLES {
        let out = good(name, &["--help"]);
        assert!(out.contains("Usage: "), "{name}: {out}");
    }
    for name in ["inspect", "pack", "plan", "quickstart", "verify"] {
        let out = good(name, &["-h"]);
        assert!(out.contains("a Colibri container, or a slab"), "{name}: {out}");
    }
    for name in EXAMPLES.iter().filter(|name| ["generate", "compare", "quickstart"].contains(name)) {
        let out = good(name, &["--help"]);
        let families = if cfg!(feature = "mlx") { "stock host metal cuda auto" } else { "host auto" };
        for family in families.split(' ') {
            assert!(out.contains(&format!("- {family}:")), "{name} lacks {family}: {out}");
        }
    }
}

#[test]
fn checksums_are_written_by_default_name_or_by_a_given_one_and_compared_later() {
    let directory = tempfile::tempdir().unwrap();
    let model = copy_fixture(directory.path(), SMALL);
    let (path, named) = (model.to_str().unwrap(), directory.path().join("sums.json"));
    let beside = model.join("expert-checksums.json");
    for (write, file) in [
        (vec!["--write"], &beside),
        (vec!["--write", named.to_str().unwrap()], &named),
        (vec![format!("--write={}", named.display()).leak() as &str], &named),
    ] {
        assert!(!file.exists());
        let out = good("verify", &[&[path][..], &write].concat());
        assert!(out.contains(&format!("wrote {}", file.display())) && !out.contains("none"), "{out}");
        let out = good("verify", &[path, "--checksums", file.to_str().unwrap()]);
        assert!(out.contains("16 compared with their checksums, 0 bad"), "{out}");
        if *file == beside {
            assert!(good("verify", &[path]).contains("16 compared"), "what lies beside is found");
        }
        fs::remove_file(file).unwrap();
    }
    let slab = packed(directory.path(), SMALL);
    assert!(refusal("verify", &[slab.to_str().unwrap(), "--write"]).contains("give --write a FILE"));
    assert!(refusal("verify", &[path, "--write="]).contains("--write"));
}

#[test]
fn a_damaged_expert_is_exit_code_1() {
    let directory = tempfile::tempdir().unwrap();
    let slab = packed(directory.path(), SMALL);
    let mut bytes = fs::read(&slab).unwrap();
    let last = bytes.len() - 16_384;
    bytes[last] ^= 1;
    fs::write(&slab, bytes).unwrap();
    let ran = run("verify", &[slab.to_str().unwrap()]);
    assert!(ran.code == 1 && ran.out.contains("1 bad"), "{ran:#?}");
}

#[test]
fn a_streamed_run_is_compared_with_a_resident_one() {
    let model = fixture(SMALL);
    let all = ["--model", model.to_str().unwrap(), "--tokens", "3", "--working", "8", "--budget", "2MB"];
    let out = good("quickstart", &all);
    assert_eq!(figure(&out, "output_equal"), 1.0, "{out}");
    assert!(figure(&out, "peak_bytes") <= figure(&out, "budget_bytes") + figure(&out, "overhead_bytes"));
    assert!(figure(&out, "overhead_bytes") < 50e6 || out.contains("GPU"), "{out}");
    assert!(figure(&out, "read_gbps") > 0.0 && !out.contains("BROKEN"), "{out}");
    assert!(out.contains("of its 9 components is rounded up to 16 KiB"), "{out}");
    let part = good("quickstart", &[&all[..], &["--layers", "1"]].concat());
    assert!(part.contains("T0: 1 layers") && figure(&part, "output_equal") == 1.0, "{part}");
    assert!(figure(&part, "read_bytes") < figure(&out, "read_bytes"));
}

/// Layers of experts that take more than twice the machine's memory, on no disk space.
fn too_large(directory: &Path) -> u32 {
    let machine = MemoryInfo::measure().total_bytes().unwrap();
    let (layers, experts) = (16, 1 << 12);
    let sizes = (8..).map(|power| 1u64 << power);
    let width = sizes.into_iter().find(|w| layers * experts * w * w * 3 / 2 > 2 * machine).unwrap();
    let mut tensors: Vec<Declared> = Vec::new();
    for layer in 0..layers {
        for projection in ["gate", "up", "down"] {
            for (part, dtype, last) in
                [("weight", "U32", width / 8), ("scales", "BF16", width / 64), ("biases", "BF16", width / 64)]
            {
                let name = format!("model.layers.{layer}.mlp.switch_mlp.{projection}_proj.{part}");
                tensors.push((name, dtype, vec![experts, width, last]));
            }
        }
    }
    write_sparse(&directory.join("model.safetensors"), &tensors);
    let config = r#"{"model_type":"qwen3_moe","quantization":{"group_size":64,"bits":4,"mode":"affine"}}"#;
    fs::write(directory.join("config.json"), config).unwrap();
    u32::try_from(layers).unwrap()
}

#[test]
fn figures_of_a_model_too_large_to_be_resident_are_printed_and_nothing_is_called_equal() {
    let directory = tempfile::tempdir().unwrap();
    let layers = too_large(directory.path());
    let arguments = ["--model", directory.path().to_str().unwrap(), "--tokens", "1", "--working", "8"];
    let budget = |more: &[&str]| good("quickstart", &[&arguments[..], &["--budget", "1GiB"], more].concat());
    let out = budget(&["--family", "host"]);
    assert!(figure(&out, "read_bytes") > 0.0 && figure(&out, "peak_bytes") > 0.0, "{out}");
    assert!(
        out.contains(&format!("not compared: {layers} layers with every expert resident take ")),
        "{out}"
    );
    assert!(out.contains("more than the ") && out.contains("`--layers "), "{out}");
    assert!(!out.contains("output_equal") && !out.contains("does not change"), "{out}");
}

#[cfg(feature = "mlx")]
mod text {
    use super::{figure, good, refusal, run};

    const MODEL: [&str; 8] = [
        "--model",
        "models/tiny-moe-4bit",
        "--prompt",
        "KING HENRY:",
        "--max-tokens",
        "8",
        "--family",
        "host",
    ];

    #[test]
    fn one_json_object_is_all_that_stands_on_standard_output() {
        let ran = run("generate", &[&MODEL[..], &["--json", "--stats"]].concat());
        assert_eq!(ran.code, 0, "{ran:#?}");
        let lines: Vec<&str> = ran.out.lines().collect();
        assert_eq!(lines.len(), 1, "{ran:#?}");
        let object: serde_json::Value = serde_json::from_str(lines[0]).unwrap();
        assert_eq!(object["ids"].as_array().unwrap().len(), 8);
        assert!(ran.err.lines().all(|line| !line.is_empty()), "{ran:#?}");
    }

    #[test]
    fn figures_say_whether_memory_and_text_were_kept() {
        let out = good("generate", &[&MODEL[..], &["--figures"]].concat());
        assert!(out.contains("memory: peak ") && !out.contains("BROKEN"), "{out}");
        assert!(out.contains("components is rounded up to 16 KiB"), "{out}");
        assert_eq!(figure(&out, "generate_equal"), 1.0, "{out}");
        assert!(figure(&out, "peak_bytes") <= figure(&out, "budget_bytes") + figure(&out, "overhead_bytes"));
        let out = good("generate", &[&MODEL[..], &["--figures", "--against", "12MB"]].concat());
        assert_eq!(figure(&out, "generate_equal"), 1.0, "{out}");
    }

    #[test]
    fn figures_stay_where_the_second_run_has_no_room() {
        let out = good("generate", &[&MODEL[..], &["--figures", "--against", "900000TB"]].concat());
        assert!(figure(&out, "peak_bytes") > 0.0 && figure(&out, "tokens_per_s") > 0.0, "{out}");
        assert!(out.contains("not compared: a budget of 900000000000000000 B is more than"), "{out}");
        assert!(!out.contains("generate_equal") && !out.contains("does not change"), "{out}");
        assert!(refusal("generate", &[&MODEL[..], &["--against", "12MB"]].concat()).contains("--figures"));
    }
}

/// Sizes and numbers at the ends of what can be written.
#[test]
fn numbers_that_no_machine_has_are_refused_without_a_panic() {
    let model = fixture(SMALL);
    let (model, answers) = (model.to_str().unwrap(), "no such file");
    let sizes = [
        "18446744073709549568",
        "18446744073709551615",
        "16EiB",
        "1e400",
        "-1",
        "nan",
        "1152921504606846977000",
    ];
    for size in sizes {
        let equals = |option: &str| format!("{option}={size}");
        for (name, args) in [
            ("inspect", vec![model.to_owned(), equals("--fixed")]),
            ("inspect", vec![model.to_owned(), equals("--budget")]),
            ("plan", vec![model.to_owned(), equals("--budget")]),
            ("plan", vec![model.to_owned(), "--budget=1GB".into(), equals("--fixed")]),
            ("quickstart", vec![format!("--model={model}"), equals("--budget")]),
            ("compare", vec![model.to_owned(), answers.to_owned(), equals("--budget")]),
            ("replay", vec!["--drive-gbps=1".into(), equals("--expert-bytes")]),
        ] {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let said = refusal(name, &args);
            assert!(said.contains("invalid value"), "{name} {args:?}: {said}");
        }
    }
    // The largest that is taken.
    let most = "1048576TiB";
    for args in [["--fixed", most], ["--budget", most]] {
        let out = good("inspect", &[&[model][..], &args].concat());
        assert!(out.contains("a budget of") || out.contains("more than the"), "{out}");
    }
    assert!(refusal("plan", &[model, "--budget", most, "--fixed", most]).contains("budget"));
}

#[test]
fn rates_and_tolerances_are_finite_numbers() {
    let model = fixture(SMALL);
    let model = model.to_str().unwrap();
    for number in ["nan", "inf", "-1", "1e308", "1e-320", "much"] {
        for (name, args) in [
            ("compare", vec![model, "answers"]),
            ("replay", vec!["--expert-bytes=1MB"]),
            ("plan", vec![model, "--budget=1GB"]),
        ] {
            let option = if name == "compare" { "--tolerance" } else { "--drive-gbps" };
            let option = format!("{option}={number}");
            let said = refusal(name, &[&args[..], &[&option]].concat());
            assert!(said.contains("invalid value"), "{name} {args:?}: {said}");
        }
    }
    assert!(refusal("replay", &["--drive-gbps=1", "--expert-bytes=0"]).contains("less than a byte"));
    let out = good("replay", &["--slots=8", "--drive-gbps=1e12", "--expert-bytes=1"]);
    assert!(out.contains("tokens/s") && !out.contains("inf") && !out.contains("NaN"), "{out}");
}

#[test]
fn layers_to_pack_may_be_an_open_range() {
    let directory = tempfile::tempdir().unwrap();
    let model = fixture(SMALL);
    let model = model.to_str().unwrap();
    for (number, (range, experts)) in
        [("1..", 8), ("..1", 8), ("..=1", 16), ("..", 16), ("0..1", 8), ("0..=1", 16), ("1", 8)]
            .into_iter()
            .enumerate()
    {
        let slab = directory.path().join(format!("{number}.slab"));
        let out = good("pack", &[model, slab.to_str().unwrap(), "--layers", range]);
        assert!(out.contains(&format!(": {experts} experts")), "{range}: {out}");
    }
    let slab = directory.path().join("x.slab");
    let slab = slab.to_str().unwrap();
    for (range, words) in
        [("2..", "L2"), ("1..1", "no layers"), ("..0", "no layers"), ("1...2", "not the number")]
    {
        assert!(refusal("pack", &[model, slab, "--layers", range]).contains(words), "{range}");
    }
}

#[test]
fn a_slab_is_not_packed_onto_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let (model, target) = (fixture(SMALL), directory.path().to_str().unwrap());
    for more in [&[][..], &["--force"]] {
        let said = refusal("pack", &[&[model.to_str().unwrap(), target], more].concat());
        assert!(said.contains("is a directory") && said.contains("model.slab"), "{said}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
