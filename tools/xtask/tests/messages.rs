//! If these fail, somebody whose machine lacks a tool is told nothing useful, or a broken download is taken for MLX.
//!
//! The real xtask runs in a made-up checkout, and finds nothing but made-up tools.
#![cfg(target_os = "linux")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

const PYTHON: &str = "exit 0";
const COMPILER: &str = "exit 0";

struct Checkout(TempDir);

impl Checkout {
    fn new() -> Self {
        let checkout = Self(tempfile::tempdir().unwrap());
        for folder in ["bin", "tools/xtask", "mlx-sys/src/mlx-c"] {
            fs::create_dir_all(checkout.path(folder)).unwrap();
        }
        let lock = "[[package]]\nname = \"mlx-sys\"\nversion = \"0.7.0\"\nchecksum = \"00\"\n";
        fs::write(checkout.path("Cargo.lock"), lock).unwrap();
        fs::write(checkout.path("mlx-sys/src/mlx-c/CMakeLists.txt"), "GIT_TAG v0.32.2)\n").unwrap();
        let manifest = checkout.path("mlx-sys/Cargo.toml");
        let packages =
            format!(r#"{{"packages":[{{"name":"mlx-sys","manifest_path":"{}"}}]}}"#, manifest.display());
        checkout.with("cargo", &format!("echo '{packages}'"))
    }

    fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(below)
    }

    /// Adds a tool: a shell script that has only the shell's own commands.
    fn with(self, tool: &str, script: &str) -> Self {
        let path = self.path("bin").join(tool);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn xtask(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(args).env_clear().env("PATH", self.path("bin")).env("RUST_BACKTRACE", "1");
        command.env("CARGO", self.path("bin/cargo")).env("CARGO_MANIFEST_DIR", self.path("tools/xtask"));
        command.output().unwrap()
    }

    /// The one line that says why `cargo xtask mlx` stopped.
    fn refusal(&self) -> String {
        let output = self.xtask(&["mlx"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!self.path("target/mlx-linux/mlx.toml").exists());
        let text = String::from_utf8(output.stderr).unwrap();
        let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{text}");
        assert_eq!(text.lines().last(), Some(errors[0]), "nothing follows the sentence: {text}");
        errors[0].to_owned()
    }
}

#[test]
fn a_missing_python_is_named() {
    let message = Checkout::new().refusal();
    assert!(message.contains("python3 is needed"), "{message}");
}

#[test]
fn a_python_without_pip_is_named() {
    let message = Checkout::new().with("python3", r#"case "$*" in *pip*) exit 1;; esac"#).refusal();
    assert!(message.contains("pip is needed"), "{message}");
}

#[test]
fn a_missing_compiler_is_named() {
    let message = Checkout::new().with("python3", PYTHON).refusal();
    assert!(message.contains("g++ is needed"), "{message}");
}

#[test]
fn a_compiler_without_c_plus_plus_20_is_named() {
    let old = r#"case "$*" in *c++20*) exit 1;; esac"#;
    let message = Checkout::new().with("python3", PYTHON).with("g++", old).refusal();
    assert!(message.contains("g++ is too old"), "{message}");
}

#[test]
fn a_failing_pip_is_named_with_what_it_was_to_install() {
    let pip = r#"case "$*" in *install*) echo "no route to host" >&2; exit 1;; esac"#;
    let message = Checkout::new().with("python3", pip).with("g++", COMPILER).refusal();
    assert!(message.contains("pip could not install mlx-cpu==0.32.2"), "{message}");
}

#[test]
fn what_a_broken_download_left_is_never_taken_for_mlx() {
    // This pip makes half of what it should, then fails, each time it is asked.
    let pip = r#"
        while [ $# -gt 0 ]; do
            [ "$1" = --target ] && /bin/mkdir -p "$2/mlx/lib" && : >"$2/mlx/lib/libmlx.so" && exit 1
            shift
        done"#;
    let checkout = Checkout::new().with("python3", pip).with("g++", COMPILER);
    for _ in 0..2 {
        let message = checkout.refusal();
        assert!(message.contains("pip could not install mlx-cpu==0.32.2"), "{message}");
        assert!(!checkout.path("target/mlx-linux/mlx-cpu-0.32.2").exists());
    }
}

#[test]
fn an_unknown_wheel_or_task_is_refused() {
    let checkout = Checkout::new();
    for (args, words) in
        [(&["mlx", "--wheel", "mlx-tpu"][..], "mlx-cpu and mlx-cuda-13"), (&["tset"], "no task `tset`")]
    {
        let output = checkout.xtask(args);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(words), "{text}");
    }
}
