//! The expert tensors of an index, sorted into layers and experts.

use std::collections::BTreeMap;

use super::{
    error::SourceError,
    names::{ExpertName, projection_name},
    tensors::{Tensor, TensorIndex},
};
use crate::{
    formats::{Part, Projection},
    ids::{ExpertId, ExpertKey, LayerId},
};

/// No model may have layers numbered beyond this.
pub(super) const MAX_LAYERS: u32 = 4096;

/// No layer may have more experts than this.
pub(super) const MAX_EXPERTS: u32 = 1 << 14;

/// The tensors of one expert, or of all experts of a layer stacked, by part and projection.
type PartTable<'a> = [[Option<&'a Tensor>; 3]; 4];

/// The expert tensors of one layer.
#[derive(Debug)]
pub(super) struct LayerTensors<'a> {
    /// The path they share, such as `model.layers.3.mlp.switch_mlp`.
    pub(super) block: &'a str,
    /// The layer.
    pub(super) layer: LayerId,
    /// Whether each tensor holds all experts.
    pub(super) stacked: bool,
    /// How the parts' names end.
    ends: &'static [(&'static str, Part)],
    /// Whether projections go by Mixtral's names.
    numbered: bool,
    /// One table per expert, numbered from 0 without gaps; a single one if stacked.
    tables: BTreeMap<u32, PartTable<'a>>,
}

/// Sorts the expert tensors of an index whose parts' names end as given.
///
/// # Errors
/// No expert at all, numbers beyond any model's, or two sets of experts in one layer.
pub(super) fn expert_layers<'a>(
    index: &'a TensorIndex,
    ends: &'static [(&'static str, Part)],
) -> Result<Vec<LayerTensors<'a>>, SourceError> {
    let mut layers = BTreeMap::new();
    for (name, tensor) in index.iter() {
        let Some(parsed) = ExpertName::parse(name, ends) else { continue };
        for (found, limit) in [(parsed.layer, MAX_LAYERS), (parsed.expert.unwrap_or(0), MAX_EXPERTS)] {
            if found >= limit {
                return Err(SourceError::Number { tensor: name.into(), found, limit });
            }
        }
        let layer = layers.entry(parsed.layer).or_insert_with(|| LayerTensors {
            block: parsed.block,
            layer: LayerId(parsed.layer),
            stacked: parsed.expert.is_none(),
            ends,
            numbered: parsed.numbered,
            tables: BTreeMap::new(),
        });
        if layer.block != parsed.block
            || layer.stacked != parsed.expert.is_none()
            || layer.numbered != parsed.numbered
        {
            return Err(SourceError::TwoSets {
                layer: layer.layer,
                block: layer.block.into(),
                tensor: name.into(),
            });
        }
        let table = layer.tables.entry(parsed.expert.unwrap_or(0)).or_default();
        table[parsed.part as usize][parsed.projection as usize] = Some(tensor);
    }
    if layers.is_empty() {
        return Err(SourceError::NoExperts { path: index.root().into() });
    }
    for layer in layers.values() {
        layer.check_numbers()?;
    }
    Ok(layers.into_values().collect())
}

impl<'a> LayerTensors<'a> {
    /// Experts are numbered from 0 without gaps.
    fn check_numbers(&self) -> Result<(), SourceError> {
        match (0..).zip(self.tables.keys()).find(|(expected, found)| expected != *found) {
            Some((missing, _)) => Err(SourceError::TensorMissing {
                tensor: self.name(missing, Projection::Down, Part::Weight),
                layer: self.layer,
            }),
            None => Ok(()),
        }
    }

    /// How many tables of tensors there are: experts, or 1 if they are stacked.
    pub(super) fn tables(&self) -> u32 {
        u32::try_from(self.tables.len()).expect("at most MAX_EXPERTS")
    }

    /// The tensor of one part; `None` if there is no such tensor. `table` is the expert, or 0 if they are stacked.
    pub(super) fn get(&self, table: u32, projection: Projection, part: Part) -> Option<&'a Tensor> {
        self.tables[&table][part as usize][projection as usize]
    }

    /// The tensor of one part, which must be there.
    ///
    /// # Errors
    /// A missing tensor.
    pub(super) fn need(
        &self,
        table: u32,
        projection: Projection,
        part: Part,
    ) -> Result<&'a Tensor, SourceError> {
        self.get(table, projection, part).ok_or_else(|| SourceError::TensorMissing {
            tensor: self.name(table, projection, part),
            layer: self.layer,
        })
    }

    /// The path of a projection, as config.json's `quantization` names it.
    pub(super) fn path(&self, table: u32, projection: Projection) -> String {
        let (block, projection) = (self.block, projection_name(projection, self.numbered));
        if self.stacked { format!("{block}.{projection}") } else { format!("{block}.{table}.{projection}") }
    }

    /// The name of a tensor, whether it is there or not.
    pub(super) fn name(&self, table: u32, projection: Projection, part: Part) -> String {
        let end = self.ends.iter().find(|(_, p)| *p == part).map_or("", |(end, _)| end);
        self.path(table, projection) + end
    }

    /// The key of an expert of this layer.
    pub(super) const fn key(&self, expert: u32) -> ExpertKey {
        ExpertKey::new(self.layer, ExpertId(expert))
    }
}
