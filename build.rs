//! Says in plain words when MLX is still to be prepared on Linux. Emits nothing else.

use std::{env, path::Path};

/// Set by the config file that `cargo xtask mlx` generates: the folder of libmlxc.so.
const PREPARED: &str = "STREAMED_EXPERTS_MLX";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={PREPARED}");
    let linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    if !linux || env::var_os("CARGO_FEATURE_MLX").is_none() {
        return;
    }
    let what = match env::var_os(PREPARED) {
        None => "MLX is not prepared for Linux yet".to_owned(),
        Some(folder) => {
            let library = Path::new(&folder).join("libmlxc.so");
            // A watched file that is missing makes cargo ask again each time.
            println!("cargo::rerun-if-changed={}", library.display());
            if library.is_file() {
                return;
            }
            format!("the MLX prepared for Linux is gone ({} does not exist)", library.display())
        }
    };
    let do_this = "run `cargo xtask mlx` in a checkout of streamed-experts (another workspace then includes the file that it \
         names in its .cargo/config.toml), or build with --no-default-features";
    println!("cargo::error={what}: {do_this}");
}
