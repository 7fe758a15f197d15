//! A type check that knows address spaces: clang reads the kernel as C++ for OpenCL, which has the same four.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use crate::{
    compile::shim,
    lower::{blank_comments, pattern, replace_threadgroup_variables},
    signature::KernelText,
};

/// What the strict type check says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strict {
    /// No complaint.
    Passed,
    /// The compiler's messages.
    Refused(String),
    /// Nothing was checked, and why.
    Skipped(String),
}

/// Type-checks `text` twice: with the generic address space, and without it.
///
/// Skipped where there is no clang (`$MSL_CLANG`, `clang-14` or `clang`).
#[must_use]
pub fn type_check(text: &KernelText) -> Strict {
    let candidates =
        std::env::var("MSL_CLANG").map_or_else(|_| vec!["clang-14".into(), "clang".into()], |one| vec![one]);
    let Some(clang) = candidates.iter().find(|name| runs(name)) else {
        return Strict::Skipped(format!("none of {candidates:?} runs here"));
    };
    const NO_GENERIC_SPACE: &str =
        "-cl-ext=-__opencl_c_generic_address_space,-__opencl_c_pipes,-__opencl_c_device_enqueue";
    for pass in [&[][..], &["-DMSL_NO_GENERIC", "-Xclang", NO_GENERIC_SPACE]] {
        match check(clang, pass, &opencl(&text.metal)) {
            Ok(None) => {}
            Ok(Some(messages)) => return Strict::Refused(messages),
            Err(error) => return Strict::Skipped(format!("{clang} could not be run: {error}")),
        }
    }
    Strict::Passed
}

fn runs(name: &str) -> bool {
    Command::new(name)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// The messages of one pass, if there are any.
fn check(clang: &str, pass: &[&str], source: &str) -> std::io::Result<Option<String>> {
    let mut child = Command::new(clang)
        .args([
            "-x",
            "cl",
            "-cl-std=clc++2021",
            "-fsyntax-only",
            "-Werror=implicit-function-declaration",
            "-Wno-unused-value",
        ])
        .args(pass)
        .arg("-include")
        .arg(shim().join("include/msl_strict.h"))
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(source.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((!output.status.success()).then_some(messages))
}

/// Attributes that mean nothing to OpenCL are dropped. It has local variables in functions that are no templates alone:
/// references with the same type stand in for them.
fn opencl(metal: &str) -> String {
    let plain = blank_comments(metal);
    let plain = pattern(r"\[\[[^\]]*\]\]").replace_all(&plain, "");
    replace_threadgroup_variables(&plain, |count, kind, name, extent| {
        format!(
            "typedef {kind} msl_t{count} {extent}; threadgroup msl_t{count}& {name} = msl_threadgroup<msl_t{count}>();"
        )
    })
}
