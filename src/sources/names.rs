//! Which tensors are experts', by their names.

use crate::formats::{Part, Projection};

/// The parts of a checkpoint's projection by the ends of their names.
pub(super) const CHECKPOINT_PARTS: &[(&str, Part)] =
    &[(".weight", Part::Weight), (".scales", Part::Scales), (".biases", Part::Biases), (".bias", Part::Bias)];

/// The parts of a Colibri projection by the ends of their names.
pub(super) const COLIBRI_PARTS: &[(&str, Part)] = &[(".weight", Part::Weight), (".weight.qs", Part::Scales)];

/// The projections by name: mlx-lm's and most models' names first, then Mixtral's.
const PROJECTIONS: [(&str, Projection); 6] = [
    ("gate_proj", Projection::Gate),
    ("up_proj", Projection::Up),
    ("down_proj", Projection::Down),
    ("w1", Projection::Gate),
    ("w3", Projection::Up),
    ("w2", Projection::Down),
];

/// What the name of an expert's tensor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpertName<'a> {
    /// The path of the layer's experts, such as `model.layers.3.mlp.switch_mlp`.
    pub(super) block: &'a str,
    /// The layer.
    pub(super) layer: u32,
    /// The expert; `None` if the tensor holds all of them, stacked.
    pub(super) expert: Option<u32>,
    /// The projection.
    pub(super) projection: Projection,
    /// Whether it goes by one of Mixtral's names.
    pub(super) numbered: bool,
    /// Which of the projection's arrays.
    pub(super) part: Part,
}

impl<'a> ExpertName<'a> {
    /// Reads a name; `None` if it is no routed expert's.
    ///
    /// `….layers.L.….experts.E.gate_proj.weight` is one expert's; `….layers.L.….switch_mlp.gate_proj.weight`, or gpt-oss's
    /// `….layers.L.….experts.gate_proj.weight`, all experts' of a layer. Dense layers (`mlp.gate_proj`) and
    /// `shared_experts` are neither.
    pub(super) fn parse(name: &'a str, parts: &[(&str, Part)]) -> Option<Self> {
        let (path, part) = parts.iter().find_map(|&(end, part)| Some((name.strip_suffix(end)?, part)))?;
        let (experts, last) = path.rsplit_once('.')?;
        let position = PROJECTIONS.iter().position(|(name, _)| *name == last)?;
        let (parent, own) = experts.rsplit_once('.')?;
        let (block, expert) = match own {
            "switch_mlp" | "switch_glu" | "experts" => (experts, None),
            number if parent.ends_with(".experts") => (parent, Some(plain_number(number)?)),
            _ => return None,
        };
        let after = block.rfind(".layers.").map(|at| at + ".layers.".len());
        let after = after.or_else(|| block.starts_with("layers.").then_some("layers.".len()))?;
        let layer = plain_number(block[after..].split('.').next()?)?;
        let (_, projection) = PROJECTIONS[position];
        Some(Self { block, layer, expert, projection, numbered: position >= 3, part })
    }
}

/// The name of a projection.
pub(super) fn projection_name(projection: Projection, numbered: bool) -> &'static str {
    let names = if numbered { &PROJECTIONS[3..] } else { &PROJECTIONS[..3] };
    names.iter().find(|(_, p)| *p == projection).map_or("", |(name, _)| name)
}

/// A number as people write it: no sign, no leading zeros, so that no two names mean the same.
fn plain_number(text: &str) -> Option<u32> {
    let plain = text == "0" || !text.starts_with('0');
    (plain && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str) -> Option<(&str, u32, Option<u32>, Projection, Part)> {
        ExpertName::parse(name, CHECKPOINT_PARTS).map(|n| (n.block, n.layer, n.expert, n.projection, n.part))
    }

    #[test]
    fn the_layouts_of_every_family_are_known() {
        use Part::{Bias, Biases, Scales, Weight};
        use Projection::{Down, Gate, Up};
        let cases = [
            (
                "model.layers.3.mlp.switch_mlp.gate_proj.weight",
                "model.layers.3.mlp.switch_mlp",
                3,
                None,
                Gate,
                Weight,
            ),
            (
                "language_model.model.layers.0.mlp.switch_mlp.up_proj.scales",
                "language_model.model.layers.0.mlp.switch_mlp",
                0,
                None,
                Up,
                Scales,
            ),
            (
                "layers.11.block_sparse_moe.switch_mlp.down_proj.biases",
                "layers.11.block_sparse_moe.switch_mlp",
                11,
                None,
                Down,
                Biases,
            ),
            ("model.layers.1.mlp.experts.down_proj.bias", "model.layers.1.mlp.experts", 1, None, Down, Bias),
            (
                "model.layers.1.mlp.experts.17.up_proj.weight",
                "model.layers.1.mlp.experts",
                1,
                Some(17),
                Up,
                Weight,
            ),
            (
                "model.layers.1.block_sparse_moe.experts.0.w2.scales",
                "model.layers.1.block_sparse_moe.experts",
                1,
                Some(0),
                Down,
                Scales,
            ),
        ];
        for (name, block, layer, expert, projection, part) in cases {
            assert_eq!(parse(name), Some((block, layer, expert, projection, part)), "{name}");
        }
    }

    #[test]
    fn dense_layers_shared_experts_and_routers_are_no_experts() {
        for name in [
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.1.mlp.shared_experts.gate_proj.weight",
            "model.layers.1.mlp.gate.weight",
            "model.layers.1.mlp.experts.01.up_proj.weight",
            "model.layers.1.mlp.experts.+1.up_proj.weight",
            "model.layers.x.mlp.experts.1.up_proj.weight",
            "model.layers.1.mlp.experts.1.up_proj.weight.qs",
            "model.layers.1.mlp.experts.4294967296.up_proj.weight",
            ".weight",
            "",
        ] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn colibri_s_scales_have_the_weight_s_name_and_qs() {
        let name = "model.layers.78.mlp.experts.255.down_proj.weight.qs";
        let parsed = ExpertName::parse(name, COLIBRI_PARTS).unwrap();
        assert_eq!((parsed.layer, parsed.expert, parsed.part), (78, Some(255), Part::Scales));
    }
}
