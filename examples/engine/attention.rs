//! Grouped-query attention over the cache, with what the architectures add: norms of q and k, sinks, a sliding window.

use streamed_experts::mlx_rs::{
    Array,
    error::Exception,
    fast::{ScaledDotProductAttentionMask as Mask, scaled_dot_product_attention},
};

use super::{
    Failure,
    cache::LayerCache,
    config::{Architecture, Config},
    repository::Repository,
    rope::Rope,
    weights::{Linear, Norm, wide},
};

/// One layer's attention.
#[derive(Clone, Debug)]
pub struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    output: Linear,
    norms: Option<[Norm; 2]>,
    sinks: Option<Array>,
    window: Option<i32>,
    rope: Rope,
    heads: i32,
    kv_heads: i32,
    head_width: i32,
}

impl Attention {
    pub fn read(repository: &Repository, layer: u32) -> Result<Self, Failure> {
        let config: &Config = &repository.config;
        let path = format!("model.layers.{layer}.self_attn");
        let linear = |name: &str| Linear::read(repository, &format!("{path}.{name}_proj"));
        let norm = |name: &str| Norm::read(repository, &format!("{path}.{name}_norm"));
        let norms = if config.qk_norm { Some([norm("q")?, norm("k")?]) } else { None };
        let sinks = match config.architecture {
            Architecture::GptOss => Some(wide(repository, &format!("{path}.sinks"))?),
            _ => None,
        };
        Ok(Self {
            q: linear("q")?,
            k: linear("k")?,
            v: linear("v")?,
            output: linear("o")?,
            norms,
            sinks,
            window: config.window(layer)?,
            rope: config.rope.clone(),
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_width: config.head_width,
        })
    }

    /// `x` is `[1, tokens, hidden]`, its first token at position `offset`; its keys and values go into the cache.
    pub fn forward(&self, x: &Array, cache: &mut LayerCache, offset: i32) -> Result<Array, Exception> {
        let tokens = x.dim(1);
        let [q_norm, k_norm] = match &self.norms {
            Some([q, k]) => [Some(q), Some(k)],
            None => [None, None],
        };
        let q = self.heads_of(&self.q.forward(x)?, self.heads, q_norm)?;
        let k = self.heads_of(&self.k.forward(x)?, self.kv_heads, k_norm)?;
        let v = self.heads_of(&self.v.forward(x)?, self.kv_heads, None)?;
        let (q, k) = (self.rope.turn(&q, offset)?, self.rope.turn(&k, offset)?);
        cache.put(&k, &v, offset)?;
        let end = offset + tokens;
        // The first token of `x` sees itself and the window − 1 before it.
        let begin = self.window.map_or(0, |window| (offset + 1 - window).max(0));
        let (keys, values) = cache.get(begin, end);
        let scale = (self.head_width as f32).sqrt().recip();
        let banded = self.window.filter(|&window| tokens > 1 && end - begin > window);
        let band = banded.map(|window| band(offset, tokens, begin, window));
        let mask = match &band {
            Some(band) => Some(Mask::Array(band)),
            None if tokens > 1 => Some(Mask::Causal),
            None => None,
        };
        let mixed = scaled_dot_product_attention(q, keys, values, scale, mask, &self.sinks)?;
        let rows =
            mixed.transpose_axes(&[0, 2, 1, 3])?.reshape(&[1, tokens, self.heads * self.head_width])?;
        self.output.forward(&rows)
    }

    /// `[1, tokens, heads × width]` to `[1, heads, tokens, width]`. A norm is over a head or, as OLMoE has it, over all.
    fn heads_of(&self, x: &Array, heads: i32, norm: Option<&Norm>) -> Result<Array, Exception> {
        let split = [1, x.dim(1), heads, self.head_width];
        let x = match norm {
            None => x.reshape(&split)?,
            Some(norm) if norm.width() == self.head_width => norm.forward(&x.reshape(&split)?)?,
            Some(norm) => norm.forward(x)?.reshape(&split)?,
        };
        x.transpose_axes(&[0, 2, 1, 3])
    }

    pub fn arrays(&self) -> Vec<&Array> {
        let linears = [&self.q, &self.k, &self.v, &self.output].into_iter().flat_map(Linear::arrays);
        linears.chain(self.norms.iter().flatten().map(Norm::array)).chain(&self.sinks).collect()
    }
}

/// Which of the keys from position `begin` on each of `tokens` queries from `offset` on may see.
fn band(offset: i32, tokens: i32, begin: i32, window: i32) -> Array {
    let end = offset + tokens;
    let sees = |query: i32, key: i32| key <= query && query - key < window;
    let all: Vec<bool> =
        (offset..end).flat_map(|query| (begin..end).map(move |key| sees(query, key))).collect();
    Array::from_slice(&all, &[tokens, end - begin])
}

/// What is added to the scores of keys `0..offset + tokens`: 0 where a query may see the key, else −∞.
pub fn visible(offset: i32, tokens: i32) -> Array {
    let end = offset + tokens;
    let added = |query: i32, key: i32| if key <= query { 0.0 } else { f32::NEG_INFINITY };
    let all: Vec<f32> = (offset..end).flat_map(|query| (0..end).map(move |key| added(query, key))).collect();
    Array::from_slice(&all, &[tokens, end])
}
