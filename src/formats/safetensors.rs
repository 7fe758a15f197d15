//! The header of a safetensors file: which tensor lies where. Nothing here reads the data.
//!
//! A file is a u64 (little-endian) header length, that many bytes of JSON, and the data; offsets in the JSON count from
//! the first byte of data (<https://github.com/huggingface/safetensors>, "Format"). Headers come from the world, so
//! every length is checked before it is believed.

use std::{
    fmt,
    marker::PhantomData,
    path::{Path, PathBuf},
};

use safetensors::{Dtype, tensor::TensorInfo};
use serde::{
    Deserialize,
    de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor},
};

/// No header may be longer than this: the format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// No file may hold more tensors than this.
pub(crate) const MAX_TENSORS_PER_FILE: usize = 1_000_000;

/// No tensor may have more dimensions than this.
const MAX_DIMENSIONS: usize = 8;

/// Bytes before the header: its length.
pub(crate) const PREFIX_BYTES: u64 = 8;

/// The key under which a header keeps free text.
const METADATA: &str = "__metadata__";

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderTensor {
    /// Its name.
    pub(crate) name: String,
    /// Type of its elements.
    pub(crate) dtype: Dtype,
    /// Its shape, outermost first.
    pub(crate) shape: Vec<usize>,
    /// Where it begins in the file, counted from the file's first byte. Not aligned to anything.
    pub(crate) offset_bytes: u64,
    /// How many bytes it has: shape × element type.
    pub(crate) len_bytes: u64,
}

/// How long the header of a file of `file_bytes` is, from the file's first eight bytes.
///
/// # Errors
/// A length beyond the format's limit or beyond the file.
pub(crate) fn header_bytes(path: &Path, prefix: [u8; 8], file_bytes: u64) -> Result<u64, HeaderError> {
    let header_bytes = u64::from_le_bytes(prefix);
    if header_bytes > MAX_HEADER_BYTES {
        return Err(HeaderError::Oversized {
            path: path.into(),
            header_bytes,
            limit_bytes: MAX_HEADER_BYTES,
        });
    }
    if PREFIX_BYTES + header_bytes > file_bytes {
        return Err(HeaderError::Truncated { path: path.into(), header_bytes, file_bytes });
    }
    Ok(header_bytes)
}

/// The tensors that `header` (the JSON alone) declares in a file of `file_bytes`, in file order.
///
/// Names are unique, ranges do not overlap, lie inside the file, and hold exactly shape × element type; the last ends where
/// the file ends. Bytes between tensors that belong to none are allowed: writers that align have them.
///
/// # Errors
/// A header that breaks any of this.
pub(crate) fn parse_header(
    path: &Path,
    header: &[u8],
    file_bytes: u64,
) -> Result<Vec<HeaderTensor>, HeaderError> {
    if header.first() != Some(&b'{') {
        return Err(HeaderError::NotSafetensors { path: path.into() });
    }
    let data_start = PREFIX_BYTES + header.len() as u64;
    let entries = unique_entries::<TensorInfo>(header, MAX_TENSORS_PER_FILE).map_err(|e| match e {
        EntriesError::Json { name, source } => HeaderError::Json { path: path.into(), tensor: name, source },
        EntriesError::Twice { name } => HeaderError::Twice { path: path.into(), tensor: name },
    })?;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, info) in entries {
        tensors.push(checked_tensor(path, name, info, data_start, file_bytes)?);
    }
    tensors.sort_unstable_by_key(|t| (t.offset_bytes, t.len_bytes));
    for pair in tensors.windows(2) {
        let [first, second] = pair else { unreachable!("windows of two") };
        if first.offset_bytes + first.len_bytes > second.offset_bytes {
            return Err(HeaderError::Overlap {
                path: path.into(),
                tensor: second.name.clone(),
                start_bytes: second.offset_bytes,
                other: first.name.clone(),
                other_end_bytes: first.offset_bytes + first.len_bytes,
            });
        }
    }
    let data_end_bytes = tensors.iter().map(|t| t.offset_bytes + t.len_bytes).max().unwrap_or(data_start);
    if data_end_bytes != file_bytes {
        return Err(HeaderError::Trailing { path: path.into(), data_end_bytes, file_bytes });
    }
    Ok(tensors)
}

/// One entry of the header, its range checked against its shape and the file.
fn checked_tensor(
    path: &Path,
    name: String,
    info: TensorInfo,
    data_start: u64,
    file_bytes: u64,
) -> Result<HeaderTensor, HeaderError> {
    let TensorInfo { dtype, shape, data_offsets: (start, end) } = info;
    let (start_bytes, end_bytes) = (start as u64, end as u64);
    if shape.len() > MAX_DIMENSIONS {
        let dimensions = shape.len();
        return Err(HeaderError::Dimensions {
            path: path.into(),
            tensor: name,
            dimensions,
            limit: MAX_DIMENSIONS,
        });
    }
    let Some(len_bytes) = end_bytes.checked_sub(start_bytes) else {
        return Err(HeaderError::Backwards { path: path.into(), tensor: name, start_bytes, end_bytes });
    };
    let elements = shape.iter().try_fold(1u64, |product, &side| product.checked_mul(side as u64));
    let needed_bits = elements.map(|elements| u128::from(elements) * dtype.bitsize() as u128);
    if needed_bits != Some(u128::from(len_bytes) * 8) {
        return Err(HeaderError::Size { path: path.into(), tensor: name, dtype, shape, len_bytes });
    }
    match data_start.checked_add(end_bytes) {
        Some(end) if end <= file_bytes => {
            Ok(HeaderTensor { name, dtype, shape, offset_bytes: data_start + start_bytes, len_bytes })
        }
        end => Err(HeaderError::PastEnd {
            path: path.into(),
            tensor: name,
            end_bytes: end.unwrap_or(u64::MAX),
            file_bytes,
        }),
    }
}

/// What can be wrong with a JSON object whose keys must be unique.
#[derive(Debug)]
enum EntriesError {
    /// Not such an object; `name` is the last key read.
    Json { name: String, source: serde_json::Error },
    /// A key that appears twice.
    Twice { name: String },
}

/// The entries of a JSON object, sorted by key; `__metadata__` is passed over. At most `limit`.
fn unique_entries<V: DeserializeOwned>(json: &[u8], limit: usize) -> Result<Vec<(String, V)>, EntriesError> {
    let mut name = String::new();
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let seed = Entries { last: &mut name, limit, value: PhantomData };
    let result = seed.deserialize(&mut deserializer).and_then(|entries| deserializer.end().map(|()| entries));
    let mut entries = match result {
        Ok(entries) => entries,
        Err(source) => return Err(EntriesError::Json { name, source }),
    };
    entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    match entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(EntriesError::Twice { name: pair[0].0.clone() }),
        None => Ok(entries),
    }
}

/// The entries of a JSON object as they are written, equal keys and all. At most [`MAX_TENSORS_PER_FILE`].
#[derive(Debug)]
pub(crate) struct EntryList<V>(pub(crate) Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for EntryList<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut last = String::new();
        Entries { last: &mut last, limit: MAX_TENSORS_PER_FILE, value: PhantomData }
            .deserialize(deserializer)
            .map(Self)
    }
}

/// Collects a map as it is written, which serde's own maps do not: they keep the last of two equal keys.
struct Entries<'a, V> {
    last: &'a mut String,
    limit: usize,
    value: PhantomData<V>,
}

impl<'de, V: Deserialize<'de>> DeserializeSeed<'de> for Entries<'_, V> {
    type Value = Vec<(String, V)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<'_, V> {
    type Value = Vec<(String, V)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one entry per tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            self.last.clone_from(&name);
            if name == METADATA {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if entries.len() == self.limit {
                return Err(A::Error::custom(format_args!("more than {} tensors", self.limit)));
            }
            entries.push((name, map.next_value()?));
        }
        Ok(entries)
    }
}

/// A file whose header cannot be believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// No safetensors file begins like this.
    #[error("{path} is not a safetensors file: its header does not begin with an object")]
    NotSafetensors {
        /// The file.
        path: PathBuf,
    },
    /// A header length beyond the format's limit.
    #[error(
        "{path} is not a safetensors file: it would have a header of {header_bytes} B, and {limit_bytes} B is the limit"
    )]
    Oversized {
        /// The file.
        path: PathBuf,
        /// What its first eight bytes say.
        header_bytes: u64,
        /// The format's limit.
        limit_bytes: u64,
    },
    /// A file that ends inside its header.
    #[error(
        "{path} ends inside its header: {header_bytes} B of header, {file_bytes} B of file; fetch the file again"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Length of the header.
        header_bytes: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// A header that is not the JSON it should be.
    #[error("the header of {path} cannot be read at tensor {tensor:?}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The last name read; empty if none was.
        tensor: String,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A name that appears twice in one header.
    #[error("tensor {tensor} appears twice in {path}")]
    Twice {
        /// The file.
        path: PathBuf,
        /// The name.
        tensor: String,
    },
    /// A shape with more dimensions than any tensor has.
    #[error("tensor {tensor} in {path} has {dimensions} dimensions, and {limit} is the limit")]
    Dimensions {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// How many it has.
        dimensions: usize,
        /// How many it may have.
        limit: usize,
    },
    /// A range that ends before it begins.
    #[error(
        "tensor {tensor} in {path} runs backwards, from byte {start_bytes} to byte {end_bytes} of the data"
    )]
    Backwards {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it begins in the data.
        start_bytes: u64,
        /// Where it ends in the data.
        end_bytes: u64,
    },
    /// A range that does not hold what the shape says.
    #[error("tensor {tensor} in {path} has {len_bytes} B, which is not {dtype} {shape:?}")]
    Size {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type of its elements.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes between its offsets.
        len_bytes: u64,
    },
    /// A tensor that the file is too short for.
    #[error(
        "tensor {tensor} ends at byte {end_bytes} of {path}, which has only {file_bytes} B; fetch the file again"
    )]
    PastEnd {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it would end in the file.
        end_bytes: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// A file that goes on behind its last tensor.
    #[error(
        "{path} has {file_bytes} B, but its tensors end at byte {data_end_bytes}: {} B follow that belong to nothing; \
         fetch the file again",
        file_bytes - data_end_bytes
    )]
    Trailing {
        /// The file.
        path: PathBuf,
        /// Where the last tensor ends in the file.
        data_end_bytes: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// Two tensors that share bytes.
    #[error(
        "tensors {other} and {tensor} overlap in {path}: one ends at byte {other_end_bytes}, the other begins at {start_bytes}"
    )]
    Overlap {
        /// The file.
        path: PathBuf,
        /// The tensor that begins later.
        tensor: String,
        /// Where it begins in the file.
        start_bytes: u64,
        /// The tensor that begins earlier.
        other: String,
        /// Where that one ends in the file.
        other_end_bytes: u64,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(header: &str, data_bytes: u64) -> Result<Vec<HeaderTensor>, HeaderError> {
        parse_header(Path::new("a.safetensors"), header.as_bytes(), 8 + header.len() as u64 + data_bytes)
    }

    #[test]
    fn offsets_count_from_the_file_s_first_byte_and_may_be_odd() {
        let header = r#"{"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}, "__metadata__":{"format":"mlx"}}"#;
        let start = 8 + header.len() as u64;
        let tensors = parse(header, 7).unwrap();
        let found: Vec<_> = tensors.iter().map(|t| (t.name.as_str(), t.offset_bytes, t.len_bytes)).collect();
        assert_eq!(found, [("a", start, 4), ("b", start + 4, 3)]);
    }

    #[test]
    fn elements_smaller_than_a_byte_are_counted_in_bits() {
        let header = r#"{"a":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]}}"#;
        assert_eq!(parse(header, 3).unwrap()[0].len_bytes, 3);
        let header = r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#;
        assert!(matches!(parse(header, 3), Err(HeaderError::Size { .. })));
    }

    #[test]
    fn a_shape_whose_product_overflows_is_refused() {
        let header =
            r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,0]}}"#;
        assert!(matches!(parse(header, 0), Err(HeaderError::Size { .. })));
    }

    #[test]
    fn more_tensors_than_the_limit_are_refused_while_reading() {
        let error = unique_entries::<u8>(br#"{"a":1,"b":2,"c":3}"#, 2).unwrap_err();
        let EntriesError::Json { name, source } = error else { panic!("{error:?}") };
        assert_eq!(name, "c");
        assert!(source.to_string().contains("more than 2 tensors"), "{source}");
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(header in proptest::collection::vec(any::<u8>(), 0..400), file in any::<u64>()) {
            let _ = parse_header(Path::new("a"), &header, file);
        }

        #[test]
        fn a_header_with_random_numbers_is_refused_or_keeps_every_promise(
            shape in proptest::collection::vec(0u64..6, 0..4), start in 0u64..40, end in any::<u64>(),
            near in 0u64..40, pick in any::<bool>(), file_extra in 0u64..60,
        ) {
            let end = if pick { near } else { end };
            let header = format!(
                r#"{{"a":{{"dtype":"F16","shape":{shape:?},"data_offsets":[{start},{end}]}},"b":{{"dtype":"U8","shape":[4],"data_offsets":[8,12]}}}}"#
            );
            if let Ok(tensors) = parse(&header, file_extra) {
                let file_bytes = 8 + header.len() as u64 + file_extra;
                prop_assert!(tensors.iter().all(|t| t.offset_bytes + t.len_bytes <= file_bytes));
                prop_assert!(tensors.windows(2).all(|p| p[0].offset_bytes + p[0].len_bytes <= p[1].offset_bytes));
            }
        }
    }
}
