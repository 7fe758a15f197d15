//! A mixture-of-experts block: **this is where the library plugs in.**
//!
//! The router and the shared expert are dense, resident, and the engine's own. The routed experts belong to the
//! executor, which knows them by layer and number; the engine never sees their weights.

use streamed_experts::{
    BatchPlan, LayerId, Router, Routes, StreamedExpertExecutor,
    mlx_rs::{Array, Dtype},
};

use super::{
    Failure,
    repository::Repository,
    rows::Rows,
    weights::{Linear, Mlp},
};

/// One layer's block.
#[derive(Clone, Debug)]
pub struct Experts {
    layer: LayerId,
    /// How many the layer has.
    count: u32,
    /// Rows to logits.
    gate: Linear,
    /// Logits to routes.
    router: Router,
    shared: Option<Mlp>,
}

impl Experts {
    /// `count` is what the source says that the layer has.
    pub fn read(repository: &Repository, layer: LayerId, count: u32) -> Result<Self, Failure> {
        let (block, gate) = repository.config.architecture.block();
        let path = format!("model.layers.{}.{block}", layer.0);
        let correction = format!("{path}.{gate}.e_score_correction_bias");
        let correction =
            if repository.has(&correction) { host_rows(&repository.read(&correction)?)? } else { Vec::new() };
        let shared = format!("{path}.shared_experts");
        let has_shared = repository.has(&format!("{shared}.down_proj.weight"));
        Ok(Self {
            layer,
            count,
            gate: Linear::read(repository, &format!("{path}.{gate}"))?,
            router: repository.config.router(correction)?,
            shared: if has_shared { Some(Mlp::read(repository, &shared)?) } else { None },
        })
    }

    /// The block's output for `x` `[1, tokens, hidden]`, and the routes it took.
    ///
    /// All tokens of `x` are planned together: an expert that several of them chose is read once.
    pub fn forward(
        &self,
        x: &Array,
        rows: Rows,
        executor: &mut StreamedExpertExecutor,
    ) -> Result<(Array, Routes), Failure> {
        let logits = rows.each(x, |x, _| Ok(self.gate.forward(x)?))?;
        let routes = self.router.route(&host_rows(&logits)?, x.dim(1) as usize)?;
        let plan = BatchPlan::new(&routes, self.count)?;
        // Not evaluated yet: the executor starts it before it reads the first miss.
        let shared = self.shared.as_ref().map(|shared| rows.each(x, |x, _| Ok(shared.forward(x)?)));
        let output = executor.execute(self.layer, x, &plan, shared.transpose()?.as_ref())?;
        Ok((output, routes))
    }

    pub fn arrays(&self) -> Vec<&Array> {
        let mut all = self.gate.arrays();
        all.extend(self.shared.iter().flat_map(Mlp::arrays));
        all
    }
}

/// An array's values as f32.
pub fn host_rows(array: &Array) -> Result<Vec<f32>, Failure> {
    Ok(array.as_dtype(Dtype::Float32)?.contiguous()?.try_as_slice::<f32>()?.to_vec())
}
