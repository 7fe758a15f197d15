//! If this fails, the crate's rooms have grown into each other: a lower layer needs a higher one, or MLX or the system
//! is named outside its one module, and a port or a new backend means changes everywhere.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Modules by layer, lowest first. Imports go downward or stay within a layer.
const LAYERS: [&[&str]; 7] = [
    &["ids", "sync"],
    &["memory", "os"],
    &["formats", "sources", "policy", "traces", "replay", "usage"],
    &["store", "packing"],
    &["residency"],
    &["routing", "compute", "mlx", "recorder"],
    &["executor"],
];

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The module under src/ and the text of every source file, without comment lines and unit tests.
fn modules() -> Vec<(String, PathBuf, String)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&source, &mut files);
    assert!(files.len() > 20, "only {} files found under {}", files.len(), source.display());
    let with_text = files.into_iter().map(|path| {
        let first = path.strip_prefix(&source).unwrap().components().next().unwrap();
        let module = first.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        (module, path, code.collect::<Vec<_>>().join("\n"))
    });
    with_text.collect()
}

/// The modules named behind `crate::` in `code`, in paths and in braced imports.
fn imported(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with("pub(") {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        let Some(braced) = rest.strip_prefix('{') else {
            names.push(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut start = true;
        for (index, c) in braced.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                c if start && depth == 0 && c.is_alphabetic() => {
                    names.push(word(&braced[index..]));
                    start = false;
                }
                _ => {}
            }
        }
    }
    names
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[test]
fn every_module_has_a_layer() {
    for (module, path, _) in modules() {
        assert!(module == "lib" || layer_of(&module).is_some(), "{} belongs to no layer", path.display());
    }
}

#[test]
fn imports_go_downward() {
    for (module, path, code) in modules() {
        let Some(layer) = layer_of(&module) else { continue };
        for name in imported(&code) {
            let Some(other) = layer_of(&name) else { continue };
            assert!(
                other <= layer,
                "{} (layer {}) uses {name} (layer {})",
                path.display(),
                layer + 1,
                other + 1
            );
        }
    }
}

#[test]
fn mlx_and_the_system_are_named_in_one_module_each() {
    for (module, path, code) in modules() {
        for (word, home) in [("mlx_rs", "mlx"), ("mlx_sys", "mlx"), ("rustix::", "os"), ("libc::", "os")] {
            assert!(
                module == home || module == "lib" || !code.contains(word),
                "{} names {word}",
                path.display()
            );
        }
    }
}

#[test]
fn braced_and_plain_imports_are_both_seen() {
    let code = "use crate::{\n    ids::{LayerId, SlotId},\n    memory::Bank,\n};\npub(crate) fn f() { crate::os::x() }";
    assert_eq!(imported(code), ["ids", "memory", "os"]);
}
