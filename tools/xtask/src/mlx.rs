//! Prepares real MLX for mlx-sys on Linux, where mlx-sys's own build script cannot link (it asks for Apple frameworks).
//!
//! Everything comes from crates.io and PyPI:
//! * mlx-c and its headers: the mlx-sys source that Cargo.lock pins;
//! * MLX itself: the PyPI wheel of the release that this mlx-c names;
//! * libclang, for bindgen: its PyPI wheel, so that no system package is needed.
//!
//! The result takes the place of mlx-sys's build script through Cargo's documented build-script override
//! (`[target.<triple>.<links>]`), in a generated config file that `.cargo/config.toml` includes. Nothing is patched; macOS never sees it.
//!
//! ```text
//! target/mlx-linux/mlx.toml                      the config file: points to one prepared wheel
//! target/mlx-linux/lock                          held while preparing
//! target/mlx-linux/libclang-18.1.1/              the wheel, unpacked
//! target/mlx-linux/mlx-cpu-0.32.2/               the wheel, unpacked, and beside its files:
//!     mlx/lib/libmlxc.so  bindings.rs            what we made
//!     prepared                                   the stamp: what it was made from; written last
//! ```
//! Whatever is large or long in the making is made under another name and renamed: a killed run leaves nothing that a
//! later run takes for finished.

use std::{
    env,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use serde_json::Value;

use crate::{Result, cargo_command, mlx_c};

/// The generated config file, below the workspace's root.
pub(crate) const CONFIG: &str = "target/mlx-linux/mlx.toml";

const TARGET: &str =
    match (cfg!(target_env = "gnu"), cfg!(target_arch = "x86_64"), cfg!(target_arch = "aarch64")) {
        (true, true, _) => "x86_64-unknown-linux-gnu",
        (true, _, true) => "aarch64-unknown-linux-gnu",
        _ => "",
    };

const WHEELS: [&str; 2] = ["mlx-cpu", "mlx-cuda-13"];
const LIBCLANG: &str = "18.1.1";
const PRELUDE: &str = include_str!("../shim/prelude.h");
const MACH_SHIM: &str = include_str!("../shim/mach_shim.cpp");
const STAMP: &str = "prepared";

/// Prepares MLX from `wheel`, or from the wheel chosen before, unless that is done already.
pub(crate) fn prepare(root: &Path, wheel: Option<&str>) -> Result<()> {
    if TARGET.is_empty() {
        return Err("MLX's wheels exist for x86_64 and aarch64 Linux with glibc only; \
                    build with --no-default-features here"
            .into());
    }
    if let Some(other) = wheel.filter(|name| !WHEELS.contains(name)) {
        return Err(format!("`{other}` is not one of the wheels {}", WHEELS.join(" and ")).into());
    }
    let config = root.join(CONFIG);
    let wheel = wheel.map_or_else(|| chosen_wheel(&config), str::to_owned);
    let inputs = Inputs::collect(root, wheel)?;
    if inputs.is_prepared(&config) {
        return Ok(());
    }
    fs::create_dir_all(&inputs.dir).map_err(|e| format!("cannot create {}: {e}", inputs.dir.display()))?;
    let _lock = lock(&inputs.dir)?;
    if inputs.is_prepared(&config) {
        return Ok(()); // Another xtask did it while we waited.
    }
    build(root, &inputs, &config)
}

/// The wheel that the generated config names, so that a choice made once holds.
fn chosen_wheel(config: &Path) -> String {
    let text = fs::read_to_string(config).unwrap_or_default();
    let named = WHEELS.iter().find(|name| text.lines().any(|line| line == wheel_line(name)));
    (*named.unwrap_or(&WHEELS[0])).to_owned()
}

fn wheel_line(wheel: &str) -> String {
    format!("# wheel: {wheel}")
}

/// What a preparation is made from.
struct Inputs {
    /// `target/mlx-linux`, absolute.
    dir: PathBuf,
    wheel: String,
    /// Version and checksum of mlx-sys in Cargo.lock.
    mlx_sys: String,
}

impl Inputs {
    fn collect(root: &Path, wheel: String) -> Result<Self> {
        let lock = fs::read_to_string(root.join("Cargo.lock"))?;
        let mlx_sys = locked_package(&lock, "mlx-sys").ok_or("Cargo.lock names no mlx-sys")?;
        Ok(Self { dir: root.join("target/mlx-linux"), wheel, mlx_sys })
    }

    /// Everything that the prepared files depend on, in plain text. The directory is in it because the soname, the
    /// bindings' place and the config are absolute: a checkout that was moved is prepared again.
    fn stamp(&self) -> String {
        let Self { dir, wheel, mlx_sys } = self;
        let dir = dir.display();
        format!(
            "mlx-sys {mlx_sys}\nwheel {wheel}\nlibclang {LIBCLANG}\ntarget {TARGET}\ndir {dir}\n\
             {PRELUDE}\n{MACH_SHIM}\n"
        )
    }

    /// Whether `config` points to a finished preparation from these inputs.
    fn is_prepared(&self, config: &Path) -> bool {
        let Some(site) = fs::read_to_string(config).ok().and_then(|text| site_in(&text)) else {
            return false;
        };
        let named = format!("{}-", self.wheel);
        site.parent() == Some(&self.dir)
            && site.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&named))
            && self.is_complete(&site)
    }

    fn is_complete(&self, site: &Path) -> bool {
        fs::read_to_string(site.join(STAMP)).is_ok_and(|stamp| stamp == self.stamp())
            && ["mlx/lib/libmlx.so", "mlx/lib/libmlxc.so", "bindings.rs"]
                .iter()
                .all(|f| site.join(f).is_file())
    }
}

/// `version checksum` of a package in a Cargo.lock.
fn locked_package(lock: &str, name: &str) -> Option<String> {
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{name}\"")).skip(1);
    let mut fields = lines.by_ref().take_while(|line| !line.is_empty());
    let mut field =
        |key: &str| fields.find_map(|line| line.strip_prefix(key).map(|v| v.trim_matches('"').to_owned()));
    Some(format!("{} {}", field("version = ")?, field("checksum = ")?))
}

/// The prepared wheel that a generated config points to.
fn site_in(config: &str) -> Option<PathBuf> {
    config.lines().find_map(|line| line.strip_prefix("# site: ")).map(PathBuf::from)
}

/// One preparation at a time; the lock goes when the process does, however it ends.
fn lock(dir: &Path) -> Result<File> {
    use rustix::fs::{FlockOperation, flock};
    let file = File::create(dir.join("lock"))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        eprintln!("waiting for another xtask to finish preparing MLX");
        flock(&file, FlockOperation::LockExclusive)?;
    }
    Ok(file)
}

fn build(root: &Path, inputs: &Inputs, config: &Path) -> Result<()> {
    let started = Instant::now();
    let steps = Steps { started, total: 5 };
    eprintln!("Preparing MLX for Linux (one to two minutes, once)");
    steps.begin(1, "checking python3, pip and the C++ compiler");
    let tools = Tools::find()?;
    let source = mlx_sys_source(root)?.join("src/mlx-c");
    let cmake = fs::read_to_string(source.join("CMakeLists.txt"))?;
    let version = mlx_c::mlx_version(&cmake).ok_or("mlx-c's CMakeLists.txt names no MLX release")?;

    let site = inputs.dir.join(format!("{}-{version}", inputs.wheel));
    if !inputs.is_complete(&site) {
        steps.begin(2, &format!("fetching MLX {version} (PyPI wheel {})", inputs.wheel));
        tools.pip_install(&format!("{}=={version}", inputs.wheel), &site, "mlx/lib/libmlx.so")?;
        steps.begin(3, &format!("fetching libclang {LIBCLANG} (PyPI wheel)"));
        let libclang = inputs.dir.join(format!("libclang-{LIBCLANG}"));
        tools.pip_install(&format!("libclang=={LIBCLANG}"), &libclang, "clang/native/libclang.so")?;

        let shim = Shim::write(&inputs.dir)?;
        steps.begin(4, "compiling mlx-c (about a minute)");
        tools.compile_mlx_c(&source, &mlx_c::sources(&cmake), &shim, &site)?;
        steps.begin(5, "generating the Rust bindings");
        tools.bindings(&source, &shim, &libclang.join("clang/native"), &site.join("bindings.rs"))?;
        write_whole(&site.join(STAMP), &inputs.stamp())?;
    }
    write_whole(config, &config_text(&inputs.wheel, version, &site, &source)?)?;
    eprintln!("MLX {version} is prepared ({:.0} s)", started.elapsed().as_secs_f32());
    Ok(())
}

struct Steps {
    started: Instant,
    total: u32,
}

impl Steps {
    fn begin(&self, number: u32, what: &str) {
        eprintln!("[{number}/{} {:>4.0} s] {what}", self.total, self.started.elapsed().as_secs_f32());
    }
}

/// Our two C++ files, where the compiler can read them.
struct Shim {
    prelude: PathBuf,
    mach_shim: PathBuf,
    dir: PathBuf,
}

impl Shim {
    fn write(dir: &Path) -> Result<Self> {
        let shim = Self {
            prelude: dir.join("prelude.h"),
            mach_shim: dir.join("mach_shim.cpp"),
            dir: dir.to_path_buf(),
        };
        write_whole(&shim.prelude, PRELUDE)?;
        write_whole(&shim.mach_shim, MACH_SHIM)?;
        Ok(shim)
    }
}

/// The programs a preparation calls, found and tried before anything long begins.
struct Tools {
    compiler: String,
    /// Where the compiler keeps stddef.h and the like.
    compiler_include: String,
}

impl Tools {
    fn find() -> Result<Self> {
        let needs = "is needed once, to prepare MLX on Linux";
        capture(Command::new("python3").arg("--version"))
            .map_err(|e| format!("python3 {needs}, and could not be run ({e}); install it and try again"))?;
        capture(Command::new("python3").args(["-m", "pip", "--version"])).map_err(|_| {
            format!("pip {needs}, and `python3 -m pip` does not work; install it (Debian: python3-pip) and try again")
        })?;

        let compiler = env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
        let include = capture(Command::new(&compiler).arg("-print-file-name=include")).map_err(|e| {
            format!(
                "{compiler} {needs}, and could not be run ({e}); install it, or name a C++ compiler in CXX"
            )
        })?;
        let mut probe = Command::new(&compiler);
        probe.args([
            "-std=c++20",
            "-fsyntax-only",
            "-include",
            "concepts",
            "-include",
            "span",
            "-x",
            "c++",
            "/dev/null",
        ]);
        capture(&mut probe).map_err(|_| {
            format!("{compiler} is too old to compile MLX's headers: C++20 is needed (g++ 10 or later)")
        })?;
        Ok(Self { compiler, compiler_include: include.trim().to_owned() })
    }

    /// Unpacks one wheel with its dependencies into `to`, unless `landmark` in it shows that this was done.
    fn pip_install(&self, requirement: &str, to: &Path, landmark: &str) -> Result<()> {
        if to.join(landmark).is_file() {
            return Ok(());
        }
        let partial = to.with_extension("partial");
        remove(&partial)?;
        remove(to)?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "-qq", "--root-user-action=ignore", "--disable-pip-version-check"]);
        pip.args(["--only-binary=:all:", "--target"]).arg(&partial).arg(requirement);
        pip.stdin(Stdio::null());
        if !pip.status().is_ok_and(|status| status.success()) {
            return Err(format!("pip could not install {requirement} (its own message is above)").into());
        }
        if !partial.join(landmark).is_file() {
            return Err(format!("the wheel {requirement} does not contain {landmark}").into());
        }
        fs::rename(&partial, to)?;
        Ok(())
    }

    /// mlx-c as one shared library, beside libmlx.so, whose own run path finds its BLAS.
    fn compile_mlx_c(&self, source: &Path, files: &[&str], shim: &Shim, site: &Path) -> Result<()> {
        let unit = shim.dir.join("mlxc.cpp");
        let text: String = files.iter().map(|file| format!("#include \"{file}\"\n")).collect();
        write_whole(&unit, &text)?;
        let lib = site.join("mlx/lib");
        let partial = lib.join("libmlxc.partial.so");
        let mut command = Command::new(&self.compiler);
        command.args(["-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-include"]).arg(&shim.prelude);
        command.arg("-I").arg(source).arg("-isystem").arg(site.join("mlx/include"));
        command.arg(&unit).arg(&shim.mach_shim);
        command.arg("-L").arg(&lib).args(["-lmlx", "-Wl,-rpath,$ORIGIN"]);
        // An absolute soname: binaries, tests, examples and doctests all find it, with no LD_LIBRARY_PATH or run path.
        command.args(["-Xlinker", "-soname", "-Xlinker"]).arg(lib.join("libmlxc.so"));
        command.arg("-o").arg(&partial);
        if !command.status().is_ok_and(|status| status.success()) {
            return Err(
                format!("{} could not compile mlx-c (its own message is above)", self.compiler).into()
            );
        }
        fs::rename(&partial, lib.join("libmlxc.so"))?;
        Ok(())
    }

    /// Runs `xtask bindings`, which see.
    fn bindings(&self, source: &Path, shim: &Shim, libclang: &Path, out: &Path) -> Result<()> {
        let partial = out.with_extension("partial.rs");
        let mut command = Command::new(env::current_exe()?);
        command.arg("bindings").arg(source).arg(&shim.prelude).arg(&self.compiler_include).arg(&partial);
        command.env("LIBCLANG_PATH", libclang).env("RUST_BACKTRACE", "0");
        if !command.status().is_ok_and(|status| status.success()) {
            return Err("bindgen could not read mlx-c's headers (its own message is above)".into());
        }
        fs::rename(&partial, out)?;
        Ok(())
    }
}

/// The directory of the mlx-sys package that Cargo.lock resolves to.
fn mlx_sys_source(root: &Path) -> Result<PathBuf> {
    let mut command = cargo_command(root);
    command.args(["metadata", "--format-version=1", "--filter-platform", TARGET]).stderr(Stdio::inherit());
    let output = command.output().map_err(|e| format!("cannot run cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err("cargo metadata failed (its own message is above)".into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let manifest = packages
        .iter()
        .find(|package| package["name"] == "mlx-sys")
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or("mlx-sys is not in the dependency graph")?;
    Ok(Path::new(manifest).with_file_name(""))
}

/// The override, and where the crate's build script looks for it.
fn config_text(wheel: &str, version: &str, site: &Path, source: &Path) -> Result<String> {
    let string = |path: &Path| -> Result<String> {
        let text = path.to_str().ok_or_else(|| format!("{} is not UTF-8", path.display()))?;
        Ok(Value::from(text).to_string()) // JSON's escapes are TOML's.
    };
    let lib = site.join("mlx/lib");
    let include = env::join_paths([site.join("mlx/include"), source.to_path_buf()])?;
    Ok(format!(
        "# Generated by `cargo xtask mlx`; its paths hold for this machine only.\n\
         {wheel_line}\n\
         # site: {site}\n\
         \n\
         [env]\n\
         STREAMED_EXPERTS_MLX = {{ value = {lib}, force = true }}\n\
         \n\
         [target.{TARGET}.mlx]\n\
         rustc-link-lib = [\"dylib=mlxc\"]\n\
         rustc-link-search = [{search}]\n\
         rustc-env = {{ OUT_DIR = {out_dir} }}\n\
         include = {include}\n\
         version = \"{version}\"\n",
        wheel_line = wheel_line(wheel),
        site = site.display(),
        lib = string(&lib)?,
        search = Value::from(format!("native={}", lib.display())),
        out_dir = string(site)?,
        include = string(Path::new(&include))?,
    ))
}

/// A file is there as a whole or not at all.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let partial = path.with_extension("partial");
    let mut file = File::create(&partial).map_err(|e| format!("cannot write {}: {e}", partial.display()))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    Ok(())
}

fn remove(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(|e| format!("cannot remove {}: {e}", dir.display()))?;
    }
    Ok(())
}

/// A command's standard output; the reason in a few words if it did not run or failed.
fn capture(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(output.status.to_string().into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    //! If these fail, an outdated or half-made MLX is taken for a finished one, or a finished one is made again each time.
    use std::{fs, path::Path};

    use super::{Inputs, STAMP, chosen_wheel, config_text, locked_package, site_in, write_whole};

    const LOCK: &str = "\
[[package]]
name = \"mlx-rs\"
version = \"0.33.0\"
source = \"registry+https://github.com/rust-lang/crates.io-index\"
checksum = \"aa\"

[[package]]
name = \"mlx-sys\"
version = \"0.7.0\"
source = \"registry+https://github.com/rust-lang/crates.io-index\"
checksum = \"bb\"
dependencies = [
 \"bindgen\",
]
";

    fn inputs(dir: &Path) -> Inputs {
        Inputs { dir: dir.to_path_buf(), wheel: "mlx-cpu".to_owned(), mlx_sys: "0.7.0 bb".to_owned() }
    }

    #[test]
    fn the_locked_version_and_checksum_are_those_of_mlx_sys() {
        assert_eq!(locked_package(LOCK, "mlx-sys").as_deref(), Some("0.7.0 bb"));
        assert_eq!(locked_package(LOCK, "mlx"), None);
        assert_eq!(locked_package("", "mlx-sys"), None);
    }

    #[test]
    fn the_stamp_covers_the_wheel_the_locked_source_and_the_place() {
        let stamp = inputs(Path::new("/a")).stamp();
        assert_ne!(stamp, inputs(Path::new("/b")).stamp());
        assert_ne!(stamp, Inputs { wheel: "mlx-cuda-13".to_owned(), ..inputs(Path::new("/a")) }.stamp());
        assert_ne!(stamp, Inputs { mlx_sys: "0.7.0 cc".to_owned(), ..inputs(Path::new("/a")) }.stamp());
    }

    #[test]
    fn prepared_means_that_the_config_the_stamp_and_every_file_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let inputs = inputs(dir.path());
        let (site, config) = (dir.path().join("mlx-cpu-0.32.2"), dir.path().join("mlx.toml"));
        fs::create_dir_all(site.join("mlx/lib")).unwrap();
        for file in ["mlx/lib/libmlx.so", "mlx/lib/libmlxc.so", "bindings.rs"] {
            fs::write(site.join(file), "").unwrap();
        }
        assert!(!inputs.is_prepared(&config), "there is no config");
        write_whole(&config, &config_text("mlx-cpu", "0.32.2", &site, Path::new("/source")).unwrap())
            .unwrap();
        assert!(!inputs.is_prepared(&config), "there is no stamp");
        write_whole(&site.join(STAMP), &inputs.stamp()).unwrap();
        assert!(inputs.is_prepared(&config));

        let other_wheel = Inputs { wheel: "mlx-cuda-13".to_owned(), ..self::inputs(dir.path()) };
        assert!(!other_wheel.is_prepared(&config));
        fs::remove_file(site.join("mlx/lib/libmlxc.so")).unwrap();
        assert!(!inputs.is_prepared(&config), "the library is gone");
    }

    #[test]
    fn a_config_remembers_its_wheel_and_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("mlx.toml");
        assert_eq!(chosen_wheel(&config), "mlx-cpu", "the default");
        let site = Path::new("/some where/mlx-cuda-13-0.32.2");
        let text = config_text("mlx-cuda-13", "0.32.2", site, Path::new("/source")).unwrap();
        fs::write(&config, &text).unwrap();
        assert_eq!(chosen_wheel(&config), "mlx-cuda-13");
        assert_eq!(site_in(&text).as_deref(), Some(site));
    }
}
