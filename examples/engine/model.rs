//! The decoder: the dense part in memory, the experts behind an executor.

use std::sync::Arc;

use streamed_experts::{
    Budget, ExecutorOptions, ExpertSource, LayerId, Routes, StreamedExpertExecutor,
    mlx_rs::{Array, ops::indexing::IndexOp, transforms::eval},
};

use super::{
    Failure,
    attention::Attention,
    cache::Cache,
    config::Config,
    experts::{Experts, host_rows},
    latent::LatentAttention,
    repository::Repository,
    rows::Rows,
    weights::{Embedding, Linear, Mlp, Norm},
};

/// A model that can run: clones of the dense part share its memory, and [`Model::share`] shares the executor's slots.
#[derive(Debug)]
pub struct Model {
    dense: Dense,
    executor: StreamedExpertExecutor,
    /// How the dense part takes several rows.
    pub rows: Rows,
    /// Where each forward's routes go, layer by layer, if anybody wants them.
    pub routes: Option<Vec<(LayerId, Routes)>>,
}

impl Model {
    /// Gives `dense` an executor over `source`. `options.budget.fixed_bytes` should hold [`Dense::bytes`] and the caches'.
    pub fn open(
        dense: Dense,
        source: &Arc<dyn ExpertSource>,
        options: &ExecutorOptions,
    ) -> Result<Self, Failure> {
        let executor = StreamedExpertExecutor::open(Arc::clone(source), options)?;
        Ok(Self { dense, executor, rows: Rows::default(), routes: None })
    }

    /// The same model for a request in another thread: one dense part, one budget, one set of slots.
    pub fn share(&self) -> Self {
        Self { dense: self.dense.clone(), executor: self.executor.share(), rows: self.rows, routes: None }
    }

    pub const fn config(&self) -> &Config {
        &self.dense.config
    }

    pub const fn executor(&self) -> &StreamedExpertExecutor {
        &self.executor
    }

    /// Logits `[tokens, vocabulary]` for `ids`, which follow what `cache` holds and are added to it.
    pub fn logits(&mut self, ids: &[u32], cache: &mut Cache) -> Result<Vec<Vec<f32>>, Failure> {
        let hidden = self.forward(ids, cache)?;
        let logits = self.rows.each(&hidden, |x, _| self.dense.head(x))?;
        let width = logits.dim(-1) as usize;
        Ok(host_rows(&logits)?.chunks(width).map(<[f32]>::to_vec).collect())
    }

    /// Logits for the last of `ids` alone.
    pub fn last_logits(&mut self, ids: &[u32], cache: &mut Cache) -> Result<Vec<f32>, Failure> {
        let hidden = self.forward(ids, cache)?;
        let last = hidden.index((.., hidden.dim(1) - 1.., ..));
        host_rows(&self.dense.head(&last)?)
    }

    /// Adds `ids` to the cache and wants nothing else: all of a prompt but its last chunk.
    pub fn fill(&mut self, ids: &[u32], cache: &mut Cache) -> Result<(), Failure> {
        Ok(self.forward(ids, cache)?.eval()?)
    }

    fn forward(&mut self, ids: &[u32], cache: &mut Cache) -> Result<Array, Failure> {
        if ids.len() > cache.room() {
            return Err(format!(
                "{} more tokens do not fit a cache with room for {}",
                ids.len(),
                cache.room()
            )
            .into());
        }
        let (offset, rows) = (cache.tokens(), self.rows);
        let mut x = self.dense.embedding.rows(ids)?;
        for (number, layer) in self.dense.layers.iter().enumerate() {
            let attended = rows.each(&x, |x, row| {
                let normed = layer.attention_norm.forward(x)?;
                let cache = cache.layer(number);
                Ok(match &layer.attention {
                    AttentionKind::Heads(attention) => attention.forward(&normed, cache, offset + row)?,
                    AttentionKind::Latent(attention) => attention.forward(&normed, cache, offset + row)?,
                })
            })?;
            x = x.add(attended)?;
            let normed = rows.each(&x, |x, _| Ok(layer.feed_forward_norm.forward(x)?))?;
            let fed = match &layer.feed_forward {
                FeedForward::Dense(mlp) => rows.each(&normed, |x, _| Ok(mlp.forward(x)?))?,
                FeedForward::Experts(experts) => {
                    let (fed, routes) = experts.forward(&normed, rows, &mut self.executor)?;
                    if let Some(log) = &mut self.routes {
                        log.push((LayerId(number as u32), routes));
                    }
                    fed
                }
            };
            x = x.add(fed)?;
        }
        cache.advance(x.dim(1));
        Ok(x)
    }
}

/// A model's dense part, in memory.
#[derive(Clone, Debug)]
pub struct Dense {
    pub config: Config,
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: Norm,
    /// `None`: tied to the embedding.
    head: Option<Linear>,
}

/// One decoder layer.
#[derive(Clone, Debug)]
struct Layer {
    attention_norm: Norm,
    attention: AttentionKind,
    feed_forward_norm: Norm,
    feed_forward: FeedForward,
}

/// How a layer attends.
#[derive(Clone, Debug)]
enum AttentionKind {
    Heads(Attention),
    Latent(LatentAttention),
}

/// What a layer does after attention.
#[derive(Clone, Debug)]
enum FeedForward {
    Dense(Mlp),
    Experts(Experts),
}

impl Dense {
    /// Reads all that is not a routed expert.
    pub fn read(repository: &Repository) -> Result<Self, Failure> {
        let has_head = repository.has("lm_head.weight");
        let layers = (0..repository.config.layers).map(|layer| Layer::read(repository, layer));
        let dense = Self {
            config: repository.config.clone(),
            embedding: Embedding::read(repository, "model.embed_tokens")?,
            layers: layers.collect::<Result<_, _>>()?,
            norm: Norm::read(repository, "model.norm")?,
            head: if has_head { Some(Linear::read(repository, "lm_head")?) } else { None },
        };
        eval(dense.arrays())?;
        // Once more, one by one: MLX notes in each that its value is there, so that threads that share them only read.
        dense.arrays().into_iter().try_for_each(Array::eval)?;
        Ok(dense)
    }

    /// What it takes in memory.
    pub fn bytes(&self) -> u64 {
        self.arrays().iter().map(|array| array.nbytes() as u64).sum()
    }

    /// The budget of `budget_bytes` in all, of which the dense part and a cache of `cache_tokens` are fixed.
    pub fn budget(&self, budget_bytes: u64, cache_tokens: usize, working_slots: u32) -> Budget {
        let fixed_bytes = self.bytes() + Cache::bytes(&self.config, cache_tokens);
        Budget { fixed_bytes, working_slots, ..Budget::new(budget_bytes) }
    }

    /// `[1, tokens, hidden]` to `[1, tokens, vocabulary]`.
    fn head(&self, x: &Array) -> Result<Array, Failure> {
        let x = self.norm.forward(x)?;
        Ok(match &self.head {
            Some(head) => head.forward(&x)?,
            None => self.embedding.logits(&x)?,
        })
    }

    fn arrays(&self) -> Vec<&Array> {
        let mut all = self.embedding.arrays();
        for layer in &self.layers {
            all.extend([layer.attention_norm.array(), layer.feed_forward_norm.array()]);
            all.extend(match &layer.attention {
                AttentionKind::Heads(attention) => attention.arrays(),
                AttentionKind::Latent(attention) => attention.arrays(),
            });
            all.extend(match &layer.feed_forward {
                FeedForward::Dense(mlp) => mlp.arrays(),
                FeedForward::Experts(experts) => experts.arrays(),
            });
        }
        all.push(self.norm.array());
        all.extend(self.head.iter().flat_map(Linear::arrays));
        all
    }
}

impl Layer {
    fn read(repository: &Repository, layer: u32) -> Result<Self, Failure> {
        let path = format!("model.layers.{layer}");
        let sparse = repository.source.layers().iter().find(|each| each.layer.0 == layer);
        let feed_forward = match sparse {
            Some(sparse) => FeedForward::Experts(Experts::read(repository, sparse.layer, sparse.experts)?),
            None => FeedForward::Dense(Mlp::read(repository, &format!("{path}.mlp"))?),
        };
        Ok(Self {
            attention_norm: Norm::read(repository, &format!("{path}.input_layernorm"))?,
            attention: match repository.config.latent {
                Some(widths) => AttentionKind::Latent(LatentAttention::read(repository, layer, widths)?),
                None => AttentionKind::Heads(Attention::read(repository, layer)?),
            },
            feed_forward_norm: Norm::read(repository, &format!("{path}.post_attention_layernorm"))?,
            feed_forward,
        })
    }
}
