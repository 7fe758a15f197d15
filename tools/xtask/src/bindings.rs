//! mlx-sys's Rust bindings, made with the settings of its own build script.
//!
//! This runs in a process of its own (`xtask bindings MLX_C PRELUDE COMPILER_INCLUDE OUT`): bindgen loads libclang at run
//! time from LIBCLANG_PATH, and panics where it cannot.

use std::{fs, path::Path};

use crate::Result;

pub(crate) fn generate(args: &[String]) -> Result<()> {
    let [mlx_c, prelude, compiler_include, out] = args else {
        return Err("bindings: expected MLX_C PRELUDE COMPILER_INCLUDE OUT".into());
    };
    let mut headers = Vec::new();
    for entry in fs::read_dir(Path::new(mlx_c).join("mlx/c"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "h") {
            headers.push(path.to_string_lossy().into_owned());
        }
    }
    headers.sort();
    bindgen::Builder::default()
        .rust_target("1.73.0".parse().map_err(|_| "bindgen does not know Rust 1.73")?)
        .formatter(bindgen::Formatter::None)
        .clang_arg(format!("-I{mlx_c}"))
        .clang_args(["-include", prelude])
        // libclang from a wheel comes without the compiler's own headers (stddef.h and the like).
        .clang_args(["-isystem", compiler_include])
        .blocklist_function("malloc")
        .blocklist_function("realloc")
        .headers(headers)
        .generate()?
        .write_to_file(out)?;
    Ok(())
}
