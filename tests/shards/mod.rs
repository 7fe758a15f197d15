//! Writes safetensors files for tests: truthful ones without data, and ones that lie.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{fmt::Write as _, fs::File, io::Write as _, path::Path};

/// Name, type, shape.
pub(crate) type Declared = (String, &'static str, Vec<u64>);

/// Bytes of one element.
fn bytes_of(dtype: &str) -> u64 {
    match dtype {
        "U8" | "I8" => 1,
        "F16" | "BF16" => 2,
        "F32" | "U32" | "I32" => 4,
        _ => 8,
    }
}

/// The header that puts tensors one after the other, and the bytes of data it speaks of.
pub(crate) fn header(tensors: &[Declared]) -> (String, u64) {
    let (mut json, mut offset) = (String::from("{"), 0);
    for (name, dtype, shape) in tensors {
        let end = offset + shape.iter().product::<u64>() * bytes_of(dtype);
        let comma = if offset == 0 && json.len() == 1 { "" } else { "," };
        write!(
            json,
            r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{offset},{end}]}}"#
        )
        .unwrap();
        offset = end;
    }
    json.push('}');
    (json, offset)
}

/// Writes a file with a truthful header and no data: its length is set, nothing more. Returns the bytes a reader of
/// headers needs.
pub(crate) fn write_sparse(path: &Path, tensors: &[Declared]) -> u64 {
    let (json, data_bytes) = header(tensors);
    write_raw(path, &json, data_bytes);
    8 + json.len() as u64
}

/// Writes a file with any header, truthful or not, followed by so many zeros (as a hole).
pub(crate) fn write_raw(path: &Path, json: &str, data_bytes: u64) {
    let mut file = File::create(path).unwrap();
    file.write_all(&(json.len() as u64).to_le_bytes()).unwrap();
    file.write_all(json.as_bytes()).unwrap();
    file.set_len(8 + json.len() as u64 + data_bytes).unwrap();
}
