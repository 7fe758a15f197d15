//! If this fails, a document names a test that is not there.

use std::{collections::BTreeSet, fs, path::Path};

/// The names between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn files_under(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_under(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_test_and_file_that_the_promises_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("docs/RELIABILITY.md")).unwrap();
    let mut code = String::new();
    for folder in ["src", "tests"] {
        files_under(&root.join(folder), &mut code);
    }
    let tests: BTreeSet<&str> = code.split("fn ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
    let (mut named, mut files) = (0, 0);
    for name in quoted(&document) {
        let is_path = ["tests/", "src/", "tools/", "fuzz/"].iter().any(|folder| name.starts_with(folder));
        if is_path {
            assert!(root.join(name).exists(), "{name} does not exist");
            files += 1;
        } else if name.len() > 20
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        {
            assert!(tests.contains(name), "there is no test {name}");
            named += 1;
        }
    }
    assert!(named > 30 && files > 20, "{named} tests and {files} files were found in the document");
}
