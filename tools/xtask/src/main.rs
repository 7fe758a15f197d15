//! Project tasks: `cargo xtask <task>`. On Linux the tasks that build the crate prepare MLX first (see `mlx.rs`).

use std::{
    env,
    error::Error,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

#[cfg(target_os = "linux")]
mod bindings;
#[cfg(target_os = "linux")]
mod mlx;
#[cfg(any(target_os = "linux", test))]
mod mlx_c;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "\
usage: cargo xtask <task>

  demo [--] [ARG…]      run the quickstart example in release mode, with ARGs passed to it; then let a small model write
                        a few sentences with a quarter of its experts in memory, and with all of them
  test [ARG…]           run every test of the workspace; ARGs go to cargo test
  mlx [--wheel NAME]    only prepare MLX, from the PyPI wheel NAME: mlx-cpu (default) or mlx-cuda-13;
                        the choice holds for all later builds of this checkout
  soak [--short] [ARG…] a million requests from several threads over a faulty drive and a changing budget, every result
                        compared; --short: at most a minute of them
  fuzz SECONDS          fuzz every reader for so long each (fuzz/README.md); needs a nightly toolchain and cargo-fuzz

On Linux, demo and test prepare MLX first when that is still to be done; on macOS nothing needs preparing.";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[String]) -> Result<ExitCode> {
    let root = workspace_root()?;
    let (task, rest) = args.split_first().ok_or(USAGE)?;
    match task.as_str() {
        "demo" => {
            prepare(&root, None)?;
            demo(&root, rest.strip_prefix(&["--".to_owned()]).unwrap_or(rest))
        }
        "test" => {
            prepare(&root, None)?;
            cargo(&root, &["test", "--workspace"], rest)
        }
        "mlx" => {
            let wheel = match rest {
                [] => None,
                [flag, name] if flag == "--wheel" => Some(name.as_str()),
                _ => return Err(USAGE.into()),
            };
            prepare(&root, wheel)?;
            println!("MLX is ready: {}", ready_for(&root));
            Ok(ExitCode::SUCCESS)
        }
        "soak" => {
            let soak = ["run", "--release", "--package", "soak", "--"];
            match rest.strip_prefix(&["--short".to_owned()]) {
                Some(rest) => {
                    cargo(&root, &[&soak[..], &["--requests=100000", "--seconds=60"]].concat(), rest)
                }
                None => cargo(&root, &soak, rest),
            }
        }
        "fuzz" => match rest {
            [seconds] => fuzz(&root, seconds.parse()?),
            _ => Err(USAGE.into()),
        },
        // Not for people: `mlx` calls it in a process of its own.
        #[cfg(target_os = "linux")]
        "bindings" => bindings::generate(rest).map(|()| ExitCode::SUCCESS),
        "help" | "-h" | "--help" => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        other => Err(format!("there is no task `{other}`\n\n{USAGE}").into()),
    }
}

/// The quickstart with `args`, then text from the small model. The first that fails ends it.
fn demo(root: &Path, args: &[String]) -> Result<ExitCode> {
    let code = cargo(root, &["run", "--release", "--example", "quickstart", "--"], args)?;
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    println!("\nA small model (models/PROVENANCE.md) writes with a quarter of its experts in memory:");
    let write = ["--model", "models/tiny-moe-4bit", "--prompt", "And it came to pass in those days, that"];
    let how = ["--temperature", "0.7", "--seed", "3", "--max-tokens", "96", "--figures"];
    let example = ["run", "--release", "--example", "generate", "--"];
    cargo(root, &[&example[..], &write, &how].concat(), &[])
}

/// Each target in turn, from its seeds and what earlier runs kept. The first that fails ends it.
fn fuzz(root: &Path, seconds: u64) -> Result<ExitCode> {
    let folder = root.join("fuzz");
    let listed =
        Command::new("cargo").args(["run", "--quiet", "--bin", "seeds"]).current_dir(&folder).output()?;
    if !listed.status.success() {
        return Err(String::from_utf8_lossy(&listed.stderr).into_owned().into());
    }
    let targets = String::from_utf8(listed.stdout)?;
    for target in targets.lines() {
        let status = Command::new("cargo")
            .args(["+nightly", "fuzz", "run", "--features", "libfuzzer", target, "--"])
            .args([format!("-max_total_time={seconds}"), "-timeout=10".into(), "-max_len=65536".into()])
            .arg("-print_final_stats=1")
            .current_dir(&folder)
            .status()
            .map_err(|error| format!("could not run cargo: {error}"))?;
        if !status.success() {
            return Err(format!(
                "the target {target} failed: fuzz/artifacts/{target} has the input (or cargo-fuzz is missing: \
                 `cargo install cargo-fuzz`, `rustup toolchain install nightly`)"
            )
            .into());
        }
    }
    println!(
        "figure fuzz_targets {}\nfigure fuzz_seconds {}",
        targets.lines().count(),
        seconds * targets.lines().count() as u64
    );
    Ok(ExitCode::SUCCESS)
}

#[cfg(target_os = "linux")]
fn prepare(root: &Path, wheel: Option<&str>) -> Result<()> {
    mlx::prepare(root, wheel)
}

/// mlx-sys builds MLX by itself on macOS.
#[cfg(not(target_os = "linux"))]
fn prepare(_root: &Path, wheel: Option<&str>) -> Result<()> {
    match wheel {
        None => Ok(()),
        Some(_) => Err("--wheel has a meaning only on Linux; elsewhere mlx-sys builds MLX itself".into()),
    }
}

#[cfg(target_os = "linux")]
fn ready_for(root: &Path) -> String {
    format!(
        "cargo build, run, test and bench now find it here;\n\
         another workspace finds it with this line in its .cargo/config.toml (Cargo 1.94 and later; before, with\n\
         `cargo --config FILE`):\ninclude = [{:?}]",
        root.join(mlx::CONFIG)
    )
}

#[cfg(not(target_os = "linux"))]
fn ready_for(_root: &Path) -> String {
    "mlx-sys builds it with the crate".to_owned()
}

/// Cargo tells a program it runs where that program's package lies; a checkout may have moved since it was compiled.
fn workspace_root() -> Result<PathBuf> {
    let package = env::var_os("CARGO_MANIFEST_DIR").ok_or("run this as `cargo xtask <task>`")?;
    Path::new(&package)
        .ancestors()
        .nth(2)
        .filter(|root| root.join("Cargo.lock").is_file())
        .map(Path::to_path_buf)
        .ok_or_else(|| format!("{} is not in tools/ of a checkout", Path::new(&package).display()).into())
}

/// A cargo command that starts clean: what the cargo that runs us took from `.cargo` may be out of date by now.
fn cargo_command(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).env_remove("STREAMED_EXPERTS_MLX");
    command
}

/// Runs cargo and hands on its exit code.
fn cargo(root: &Path, args: &[&str], more: &[String]) -> Result<ExitCode> {
    let mut command = cargo_command(root);
    if let Some(config) = config_for_old_cargo(root)? {
        command.arg("--config").arg(config);
    }
    let status = command.args(args).args(more).status().map_err(|e| format!("cannot run cargo: {e}"))?;
    Ok(match status.code() {
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => return Err(format!("cargo {}: {status}", args.join(" ")).into()),
    })
}

/// The prepared MLX's config file, where cargo is too old to find it through `include` in `.cargo/config.toml`.
#[cfg(target_os = "linux")]
fn config_for_old_cargo(root: &Path) -> Result<Option<PathBuf>> {
    let output = cargo_command(root).arg("--version").output()?;
    let version = String::from_utf8_lossy(&output.stdout);
    Ok((reads_include(&version) == Some(false)).then(|| root.join(mlx::CONFIG)))
}

#[cfg(not(target_os = "linux"))]
fn config_for_old_cargo(_root: &Path) -> Result<Option<PathBuf>> {
    Ok(None)
}

/// Whether the cargo that calls itself so reads `include`: since 1.94.
#[cfg(any(target_os = "linux", test))]
fn reads_include(version: &str) -> Option<bool> {
    let mut numbers = version.split_whitespace().nth(1)?.split('.').map(str::parse::<u32>);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((major, minor) >= (1, 94))
}

#[cfg(test)]
mod tests {
    //! If these fail, contributors with an older cargo get link errors instead of a built crate.
    use super::reads_include;

    #[cfg(target_os = "linux")]
    #[test]
    fn another_workspace_is_told_the_line_that_it_needs() {
        let text = super::ready_for(std::path::Path::new("/a \"b\"/c"));
        let line = text.lines().last().unwrap();
        assert_eq!(line, r#"include = ["/a \"b\"/c/target/mlx-linux/mlx.toml"]"#);
    }

    #[test]
    fn cargo_before_1_94_is_handed_the_config_file() {
        assert_eq!(reads_include("cargo 1.88.0 (873a06493 2025-05-10)\n"), Some(false));
        assert_eq!(reads_include("cargo 1.93.1 (6a979b3e3 2026-02-11)"), Some(false));
    }

    #[test]
    fn cargo_from_1_94_finds_the_config_file_itself() {
        assert_eq!(reads_include("cargo 1.94.0 (85eff7c80 2026-01-15)"), Some(true));
        assert_eq!(reads_include("cargo 1.97.0-nightly (f60a0f1bc 2026-05-02)"), Some(true));
        assert_eq!(reads_include("something else"), None);
    }
}
