//! Opening whatever holds experts.

use std::{path::Path, sync::Arc};

use streamed_experts::{Colibri, ColibriOptions, ExpertId, ExpertKey, ExpertSource, open_source};

use super::Failure;

/// Opens a slab, a checkpoint, or a Colibri container; `group` says what the container's byte counts leave open.
pub fn open(path: &Path, group: Option<u32>) -> Result<Arc<dyn ExpertSource>, Failure> {
    match group {
        Some(_) => {
            Ok(Arc::new(Colibri::open_with(path, &ColibriOptions { group, ..ColibriOptions::default() })?))
        }
        None => Ok(Arc::from(open_source(path)?)),
    }
}

/// Every expert of a source, in its order.
pub fn keys(source: &dyn ExpertSource) -> impl Iterator<Item = ExpertKey> {
    let layers = source.layers().iter();
    layers.flat_map(|layer| (0..layer.experts).map(|expert| ExpertKey::new(layer.layer, ExpertId(expert))))
}
