//! The answers file, and one layer's part of it.

use std::path::Path;

use streamed_experts::{Dtype, FloatType, TensorIndex, decode_floats};

use crate::common::Failure;

/// Inputs, routes and outputs of one layer.
pub struct Layer {
    pub rows: usize,
    pub ranks: usize,
    /// `[rows, hidden]`
    pub input: Vec<f32>,
    /// `[rows, ranks]`
    pub indices: Vec<u32>,
    /// `[rows, ranks]`
    pub weights: Vec<f32>,
    /// `[rows, hidden]`
    pub shared: Option<Vec<f32>>,
    /// `[rows, ranks, hidden]`
    pub expert_rows: Vec<f64>,
    /// `[rows, hidden]`
    pub output: Vec<f64>,
}

/// An open answers file.
pub struct Answers {
    tensors: TensorIndex,
    /// Whether the file is of a checkpoint (`layers.L.input`), whose routes' weights it lacks.
    pub of_checkpoint: bool,
    layers: Vec<u32>,
}

impl Answers {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let tensors = TensorIndex::open_file(path)?;
        let number = |name: &str, start: &str, end: &str| -> Option<u32> {
            name.strip_prefix(start)?.strip_suffix(end)?.parse().ok()
        };
        let numbers = |start, end| {
            let mut numbers: Vec<u32> =
                tensors.iter().filter_map(|(name, _)| number(name, start, end)).collect();
            numbers.sort_unstable();
            numbers
        };
        let checkpoint = numbers("layers.", ".input");
        let of_checkpoint = !checkpoint.is_empty();
        let layers = if of_checkpoint { checkpoint } else { numbers("", ".x") };
        if layers.is_empty() {
            return Err(format!(
                "{} has neither `layers.L.input` nor `L.x`: not an answers file",
                path.display()
            )
            .into());
        }
        Ok(Self { tensors, of_checkpoint, layers })
    }

    pub fn layers(&self) -> &[u32] {
        &self.layers
    }

    /// Layer `number` if the file has its routes, as a container's answers do.
    pub fn layer(&self, number: u32) -> Result<Option<Layer>, Failure> {
        if self.of_checkpoint {
            return Ok(None);
        }
        let name = |part: &str| format!("{number}.{part}");
        let indices = self.shape(&name("indices"))?;
        let [rows, ranks] = indices[..] else {
            return Err(format!("{number}.indices is not [rows, ranks]").into());
        };
        Ok(Some(Layer {
            rows,
            ranks,
            input: self.floats(&name("x"))?,
            indices: self.indices(&name("indices"))?,
            weights: self.floats(&name("weights"))?,
            shared: Some(self.floats(&name("shared"))?),
            expert_rows: self.doubles(&name("expert"))?,
            output: self.doubles(&name("out"))?,
        }))
    }

    pub fn shape(&self, name: &str) -> Result<Vec<usize>, Failure> {
        let tensor = self.tensors.get(name).ok_or_else(|| format!("the answers lack `{name}`"))?;
        Ok(tensor.shape.clone())
    }

    pub fn floats(&self, name: &str) -> Result<Vec<f32>, Failure> {
        Ok(self.doubles(name)?.into_iter().map(|value| value as f32).collect())
    }

    pub fn doubles(&self, name: &str) -> Result<Vec<f64>, Failure> {
        let tensor = self.tensors.get(name).ok_or_else(|| format!("the answers lack `{name}`"))?;
        let bytes = self.tensors.read(name)?;
        if tensor.dtype == Dtype::F64 {
            return Ok(bytes
                .chunks_exact(8)
                .map(|b| f64::from_le_bytes(b.try_into().unwrap_or_default()))
                .collect());
        }
        floats(tensor.dtype, &bytes)
            .ok_or_else(|| format!("`{name}` is {:?}, not floating point", tensor.dtype).into())
    }

    pub fn indices(&self, name: &str) -> Result<Vec<u32>, Failure> {
        let tensor = self.tensors.get(name).ok_or_else(|| format!("the answers lack `{name}`"))?;
        if !matches!(tensor.dtype, Dtype::I32 | Dtype::U32) {
            return Err(format!("`{name}` is {:?}, not 32-bit integers", tensor.dtype).into());
        }
        let bytes = self.tensors.read(name)?;
        Ok(bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap_or_default())).collect())
    }
}

/// The stored type of plain numbers.
pub fn float_type(dtype: Dtype) -> Option<FloatType> {
    match dtype {
        Dtype::F32 => Some(FloatType::F32),
        Dtype::F16 => Some(FloatType::F16),
        Dtype::BF16 => Some(FloatType::Bf16),
        _ => None,
    }
}

/// Plain numbers, widened.
pub fn floats(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f64>> {
    let kind = float_type(dtype)?;
    let mut values = vec![0.0; bytes.len() / kind.bytes() as usize];
    decode_floats(kind, bytes, &mut values).ok()?;
    Some(values)
}
