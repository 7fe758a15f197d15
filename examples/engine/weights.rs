//! The dense part: linear layers, the embedding, norms. All take and give f32.

use streamed_experts::mlx_rs::{
    Array, Dtype,
    error::Exception,
    fast,
    ops::{dequantize, quantized_matmul, sigmoid},
};

use super::{Failure, config::Packing, repository::Repository};

/// A matrix `[rows, columns]`, or one for each head.
#[derive(Clone, Debug)]
enum Matrix {
    /// In f32.
    Plain(Array),
    /// As stored; MLX widens the scales as it computes.
    Packed { weight: Array, scales: Array, biases: Array, packing: Packing },
}

impl Matrix {
    fn read(repository: &Repository, path: &str) -> Result<Self, Failure> {
        let part = |part: &str| repository.read(&format!("{path}.{part}"));
        if !repository.has(&format!("{path}.scales")) {
            return Ok(Self::Plain(part("weight")?.as_dtype(Dtype::Float32)?));
        }
        let packing = repository.config.packing(path)?;
        Ok(Self::Packed {
            weight: part("weight")?,
            scales: part("scales")?,
            biases: part("biases")?,
            packing,
        })
    }

    /// x · Wᵀ.
    fn product(&self, x: &Array) -> Result<Array, Exception> {
        match self {
            Self::Plain(weight) => x.matmul(weight.swap_axes(-1, -2)?),
            Self::Packed { weight, scales, biases, packing } => {
                quantized_matmul(x, weight, scales, biases, true, packing.group, packing.bits)
            }
        }
    }

    /// Rows `index`, in f32.
    fn rows(&self, index: &Array) -> Result<Array, Exception> {
        match self {
            Self::Plain(weight) => weight.take_axis(index, 0),
            Self::Packed { weight, scales, biases, packing } => {
                let wide = |part: &Array| part.take_axis(index, 0)?.as_dtype(Dtype::Float32);
                let (scales, biases) = (wide(scales)?, wide(biases)?);
                dequantize(weight.take_axis(index, 0)?, scales, &biases, packing.group, packing.bits)
            }
        }
    }

    fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Plain(weight) => vec![weight],
            Self::Packed { weight, scales, biases, .. } => vec![weight, scales, biases],
        }
    }
}

/// x · Wᵀ, + bias where there is one.
#[derive(Clone, Debug)]
pub struct Linear {
    matrix: Matrix,
    bias: Option<Array>,
}

impl Linear {
    pub fn read(repository: &Repository, path: &str) -> Result<Self, Failure> {
        let name = format!("{path}.bias");
        let bias = repository.has(&name).then(|| wide(repository, &name)).transpose()?;
        Ok(Self { matrix: Matrix::read(repository, path)?, bias })
    }

    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        let product = self.matrix.product(x)?;
        match &self.bias {
            Some(bias) => product.add(bias),
            None => Ok(product),
        }
    }

    pub fn arrays(&self) -> Vec<&Array> {
        let mut all = self.matrix.arrays();
        all.extend(&self.bias);
        all
    }
}

/// Ids to rows; where the head is tied to it, rows to logits too.
#[derive(Clone, Debug)]
pub struct Embedding(Linear);

impl Embedding {
    pub fn read(repository: &Repository, path: &str) -> Result<Self, Failure> {
        Ok(Self(Linear::read(repository, path)?))
    }

    /// `[1, tokens, hidden]`.
    pub fn rows(&self, ids: &[u32]) -> Result<Array, Exception> {
        let index = Array::from_slice(ids, &[ids.len() as i32]);
        self.0.matrix.rows(&index)?.expand_dims(0)
    }

    /// Rows to logits, for a model whose head is tied to it.
    pub fn logits(&self, x: &Array) -> Result<Array, Exception> {
        self.0.forward(x)
    }

    pub fn arrays(&self) -> Vec<&Array> {
        self.0.arrays()
    }
}

/// x / rms(x) × weight.
#[derive(Clone, Debug)]
pub struct Norm {
    weight: Array,
    epsilon: f32,
}

impl Norm {
    pub fn read(repository: &Repository, path: &str) -> Result<Self, Failure> {
        Self::read_with(repository, path, repository.config.norm_epsilon)
    }

    pub fn read_with(repository: &Repository, path: &str, epsilon: f32) -> Result<Self, Failure> {
        Ok(Self { weight: wide(repository, &format!("{path}.weight"))?, epsilon })
    }

    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        fast::rms_norm(x, Some(&self.weight), self.epsilon)
    }

    /// How many values it normalises together.
    pub fn width(&self) -> i32 {
        self.weight.dim(0)
    }

    pub const fn array(&self) -> &Array {
        &self.weight
    }
}

/// down(silu(gate(x)) × up(x)): a dense layer's block, and the shared expert.
#[derive(Clone, Debug)]
pub struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Mlp {
    pub fn read(repository: &Repository, path: &str) -> Result<Self, Failure> {
        let linear = |name: &str| Linear::read(repository, &format!("{path}.{name}_proj"));
        Ok(Self { gate: linear("gate")?, up: linear("up")?, down: linear("down")? })
    }

    pub fn forward(&self, x: &Array) -> Result<Array, Exception> {
        let gate = self.gate.forward(x)?;
        self.down.forward(&gate.multiply(sigmoid(&gate)?)?.multiply(self.up.forward(x)?)?)
    }

    pub fn arrays(&self) -> Vec<&Array> {
        [&self.gate, &self.up, &self.down].into_iter().flat_map(Linear::arrays).collect()
    }
}

/// A tensor in f32.
pub fn wide(repository: &Repository, name: &str) -> Result<Array, Failure> {
    Ok(repository.read(name)?.as_dtype(Dtype::Float32)?)
}
