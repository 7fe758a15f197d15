//! Keys and values of the tokens so far.

use streamed_experts::mlx_rs::{
    Array,
    error::Exception,
    ops::{
        indexing::{IndexOp, TryIndexMutOp},
        zeros,
    },
    transforms::eval,
};

use super::config::Config;

/// One request's keys and values, with room for `capacity` tokens, taken at once so that the budget can count it.
#[derive(Debug)]
pub struct Cache {
    layers: Vec<LayerCache>,
    /// Tokens held.
    tokens: i32,
    capacity: i32,
}

/// One layer's part: `[1, heads, capacity, width]` each.
#[derive(Debug)]
pub struct LayerCache {
    keys: Array,
    values: Array,
}

impl Cache {
    pub fn new(config: &Config, capacity: usize) -> Result<Self, Exception> {
        let capacity =
            i32::try_from(capacity).map_err(|_| Exception::custom("a cache larger than MLX counts"))?;
        let [heads, key_width, value_width] = config.cached();
        let make = |width| zeros::<f32>(&[1, heads, capacity, width]);
        let layers = (0..config.layers)
            .map(|_| Ok(LayerCache { keys: make(key_width)?, values: make(value_width)? }))
            .collect::<Result<Vec<LayerCache>, Exception>>()?;
        eval(layers.iter().flat_map(|layer| [&layer.keys, &layer.values]))?;
        Ok(Self { layers, tokens: 0, capacity })
    }

    /// What a cache of `capacity` tokens takes.
    pub fn bytes(config: &Config, capacity: usize) -> u64 {
        let [heads, key_width, value_width] = config.cached();
        let token = heads as u64 * (key_width + value_width) as u64 * size_of::<f32>() as u64;
        u64::from(config.layers) * token * capacity as u64
    }

    /// Tokens held.
    pub const fn tokens(&self) -> i32 {
        self.tokens
    }

    /// How many more tokens fit.
    pub const fn room(&self) -> usize {
        (self.capacity - self.tokens) as usize
    }

    pub fn layer(&mut self, layer: usize) -> &mut LayerCache {
        &mut self.layers[layer]
    }

    /// After all layers have been given `tokens` tokens.
    pub const fn advance(&mut self, tokens: i32) {
        self.tokens += tokens;
    }

    /// Forgets all but the first `tokens`: what a draft that was refused has left.
    pub fn truncate(&mut self, tokens: i32) {
        self.tokens = self.tokens.min(tokens);
    }
}

impl LayerCache {
    /// Puts `[1, heads, tokens, width]` at position `at`.
    pub fn put(&mut self, keys: &Array, values: &Array, at: i32) -> Result<(), Exception> {
        let end = at + keys.dim(2);
        self.keys.try_index_mut((.., .., at..end, ..), keys)?;
        self.values.try_index_mut((.., .., at..end, ..), values)
    }

    /// Keys and values of positions `from..to`.
    pub fn get(&self, from: i32, to: i32) -> (Array, Array) {
        (self.keys.index((.., .., from..to, ..)), self.values.index((.., .., from..to, ..)))
    }
}
