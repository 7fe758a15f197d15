//! DeepSeek's latent attention: the cache holds one narrow row a token for all heads, and a rotated key that they share.
//!
//! A head's key is a matrix times the latent row. Instead of making keys, the matrix is applied to the query, and the
//! values' matrix to the mixed latent rows.

use streamed_experts::mlx_rs::{
    Array, error::Exception, fast::scaled_dot_product_attention, ops::indexing::IndexOp,
};

use super::{
    Failure,
    attention::visible,
    cache::LayerCache,
    repository::Repository,
    rope::Rope,
    weights::{Linear, Norm},
};

/// Widths of the parts of a head and of the latent row.
#[derive(Clone, Copy, Debug)]
pub struct LatentWidths {
    /// Of a head's query: the part that is not rotated.
    pub plain: i32,
    /// Of a head's query: the part that is, and of the shared key.
    pub rotated: i32,
    /// Of a head's output.
    pub value: i32,
    /// Of the latent row.
    pub latent: i32,
}

/// One layer's attention.
#[derive(Clone, Debug)]
pub struct LatentAttention {
    query: Query,
    /// To the latent row and the shared key.
    compress: Linear,
    compress_norm: Norm,
    /// For each head: query to latent, latent to value.
    into_latent: Linear,
    out_of_latent: Linear,
    output: Linear,
    rope: Rope,
    widths: LatentWidths,
    heads: i32,
    scale: f32,
}

/// Rows to queries, through a narrow waist or directly.
#[derive(Clone, Debug)]
enum Query {
    Direct(Linear),
    Waist { narrow: Linear, norm: Norm, wide: Linear },
}

impl LatentAttention {
    pub fn read(repository: &Repository, layer: u32, widths: LatentWidths) -> Result<Self, Failure> {
        let config = &repository.config;
        let path = format!("model.layers.{layer}.self_attn");
        let linear = |name: &str| Linear::read(repository, &format!("{path}.{name}"));
        let norm = |name: &str| Norm::read_with(repository, &format!("{path}.{name}"), 1e-6);
        let query = if repository.has(&format!("{path}.q_proj.weight")) {
            Query::Direct(linear("q_proj")?)
        } else {
            Query::Waist {
                narrow: linear("q_a_proj")?,
                norm: norm("q_a_layernorm")?,
                wide: linear("q_b_proj")?,
            }
        };
        let gain = config.rope.attention_gain();
        Ok(Self {
            query,
            compress: linear("kv_a_proj_with_mqa")?,
            compress_norm: norm("kv_a_layernorm")?,
            into_latent: linear("embed_q")?,
            out_of_latent: linear("unembed_out")?,
            output: linear("o_proj")?,
            rope: config.rope.clone(),
            widths,
            heads: config.heads,
            scale: gain * gain * ((widths.plain + widths.rotated) as f32).sqrt().recip(),
        })
    }

    /// `x` is `[1, tokens, hidden]`, its first token at position `offset`; its latent rows and keys go into the cache.
    pub fn forward(&self, x: &Array, cache: &mut LayerCache, offset: i32) -> Result<Array, Exception> {
        let (tokens, widths) = (x.dim(1), self.widths);
        let q = match &self.query {
            Query::Direct(query) => query.forward(x)?,
            Query::Waist { narrow, norm, wide } => wide.forward(&norm.forward(&narrow.forward(x)?)?)?,
        };
        let q = q
            .reshape(&[1, tokens, self.heads, widths.plain + widths.rotated])?
            .transpose_axes(&[0, 2, 1, 3])?;
        let q_plain = q.index((.., .., .., ..widths.plain));
        let q_rotated = self.rope.turn(&q.index((.., .., .., widths.plain..)), offset)?;
        let compressed = self.compress.forward(x)?.expand_dims(1)?;
        let latent = self.compress_norm.forward(&compressed.index((.., .., .., ..widths.latent)))?;
        let key = self.rope.turn(&compressed.index((.., .., .., widths.latent..)), offset)?;
        cache.put(&latent, &key, offset)?;
        let (latent, keys) = cache.get(0, offset + tokens);
        // What the rotated parts add to the scores goes in where a mask would.
        let scores = q_rotated.multiply(Array::from_f32(self.scale))?.matmul(keys.swap_axes(-1, -2)?)?;
        let scores = scores.add(visible(offset, tokens))?;
        let q_latent = self.into_latent.forward(&q_plain)?;
        let mixed = scaled_dot_product_attention(q_latent, &latent, &latent, self.scale, &scores, None)?;
        let rows = self.out_of_latent.forward(&mixed)?.transpose_axes(&[0, 2, 1, 3])?;
        self.output.forward(&rows.reshape(&[1, tokens, self.heads * widths.value])?)
    }

    pub fn arrays(&self) -> Vec<&Array> {
        let (linears, norms) = match &self.query {
            Query::Direct(query) => (vec![query], vec![]),
            Query::Waist { narrow, norm, wide } => (vec![narrow, wide], vec![norm]),
        };
        let others = [&self.compress, &self.into_latent, &self.out_of_latent, &self.output];
        let linears = linears.into_iter().chain(others).flat_map(Linear::arrays);
        linears.chain(norms.into_iter().chain([&self.compress_norm]).map(Norm::array)).collect()
    }
}
