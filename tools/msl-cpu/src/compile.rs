//! Kernel text to a loaded library, by the system's C++ compiler.

use std::{
    collections::hash_map::DefaultHasher,
    fs,
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{lower::lower, signature::KernelText};

/// How a kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Optimised, for numbers. Out-of-bounds accesses and races go unseen.
    Fast,
    /// Every access to memory is checked: races, bounds, initialisation, outputs never written. About 10 times slower.
    Checked,
}

/// Why a kernel could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The compiler refused the text.
    #[error("the compiler refused the kernel:\n{messages}")]
    Refused {
        /// What it said.
        messages: String,
    },
    /// A file could not be read or written, or the compiler not started.
    #[error("could not use {path}")]
    Io {
        /// The file or program.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The result could not be loaded.
    #[error("could not load the compiled kernel")]
    Load(#[from] libloading::Error),
}

/// A compiled kernel.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) library: libloading::Library,
}

const SHIM_FILES: [&str; 6] = [
    "include/msl_cpu.h",
    "include/msl_rt.h",
    "src/msl_check.cpp",
    "src/msl_internal.h",
    "src/msl_nocheck.cpp",
    "src/msl_rt.cpp",
];

/// The folder of the stand-in for `metal_stdlib`.
pub(crate) fn shim() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("shim")
}

impl Kernel {
    /// Compiles `text`, or loads what an earlier call with the same text left in `folder`.
    ///
    /// # Errors
    /// If the compiler (`$CXX`, else `c++`) refuses the text or cannot be run, or if `folder` cannot be written.
    pub fn compile(text: &KernelText, mode: Mode, folder: &Path) -> Result<Self, CompileError> {
        let source = format!(
            "#include <metal_stdlib>\nusing namespace metal;\ntypedef bfloat bfloat16_t; typedef half float16_t;\n\
             #line 1 \"kernel.metal\"\n{}\n{}",
            lower(&text.metal),
            text.trampoline
        );
        let library = Build { source, mode, folder }.library()?;
        // SAFETY: the library was made by this function from the shim; loading it runs no code of its own but the
        // constructors of a few empty containers.
        Ok(Self { library: unsafe { libloading::Library::new(library) }? })
    }
}

struct Build<'a> {
    source: String,
    mode: Mode,
    folder: &'a Path,
}

impl Build<'_> {
    fn library(&self) -> Result<PathBuf, CompileError> {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        fs::create_dir_all(self.folder).map_err(at(self.folder))?;
        let base = self.folder.join(format!("msl_{:016x}", self.fingerprint(&compiler)?));
        let library = base.with_extension("so");
        if library.exists() {
            return Ok(library);
        }
        // Names of this call's own: another thread or process may be building the same kernel.
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let call = format!("{}_{}", std::process::id(), CALLS.fetch_add(1, Ordering::Relaxed));
        let file = |extension: &str| base.with_extension(format!("{call}.{extension}"));
        let (text, object, linked) = (file("cpp"), file("o"), file("tmp"));
        fs::write(&text, &self.source).map_err(at(&text))?;
        run(self.compiler(&compiler).args(self.flags()).arg("-c").arg(&text).arg("-o").arg(&object))?;
        let runtime = self.runtime(&compiler, &call)?;
        run(Command::new(&compiler)
            .args(["-shared", "-o"])
            .arg(&linked)
            .arg(&object)
            .args(runtime)
            .args(["-lpthread", "-ldl"]))?;
        fs::rename(&linked, &library).map_err(at(&library))?;
        if self.mode == Mode::Fast {
            // The checked build's debug information names its source; nothing needs the others.
            let _ = fs::remove_file(&text);
        }
        let _ = fs::remove_file(&object);
        Ok(library)
    }

    /// The objects of the fibers and the checker, compiled once for all kernels of the folder.
    fn runtime(&self, compiler: &str, call: &str) -> Result<Vec<PathBuf>, CompileError> {
        let check = if self.mode == Mode::Checked { "msl_check" } else { "msl_nocheck" };
        let mut objects = Vec::new();
        for name in ["msl_rt", check] {
            let object = self.folder.join(format!("{name}_{:016x}.o", shim_fingerprint(compiler)?));
            if !object.exists() {
                let unfinished = object.with_extension(call);
                let source = shim().join(format!("src/{name}.cpp"));
                run(self.compiler(compiler).args(["-O2", "-c"]).arg(source).arg("-o").arg(&unfinished))?;
                fs::rename(&unfinished, &object).map_err(at(&object))?;
            }
            objects.push(object);
        }
        Ok(objects)
    }

    fn compiler(&self, compiler: &str) -> Command {
        let mut command = Command::new(compiler);
        command.args([
            "-std=c++17",
            "-fPIC",
            "-fno-strict-aliasing",
            "-ffp-contract=off",
            "-Wno-unknown-pragmas",
        ]);
        command.arg(format!("-I{}", shim().join("include").display()));
        command
    }

    const fn flags(&self) -> &'static [&'static str] {
        match self.mode {
            Mode::Fast => &["-O2", "-march=native"],
            Mode::Checked => &[
                "-O1",
                "-g",
                "-fsanitize=thread",
                "-DMSL_CHECK",
                "-fno-tree-vectorize",
                "-fno-tree-slp-vectorize",
            ],
        }
    }

    fn fingerprint(&self, compiler: &str) -> Result<u64, CompileError> {
        let mut hasher = DefaultHasher::new();
        (&self.source, self.mode, shim_fingerprint(compiler)?).hash(&mut hasher);
        Ok(hasher.finish())
    }
}

/// Changes with the compiler's name and with every file of the shim.
fn shim_fingerprint(compiler: &str) -> Result<u64, CompileError> {
    let mut hasher = DefaultHasher::new();
    compiler.hash(&mut hasher);
    for name in SHIM_FILES {
        let path = shim().join(name);
        fs::read(&path).map_err(at(&path))?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> CompileError {
    let path = path.to_owned();
    move |source| CompileError::Io { path, source }
}

fn run(command: &mut Command) -> Result<(), CompileError> {
    let output = command.output().map_err(at(Path::new(command.get_program())))?;
    if output.status.success() {
        return Ok(());
    }
    Err(CompileError::Refused { messages: String::from_utf8_lossy(&output.stderr).into_owned() })
}
