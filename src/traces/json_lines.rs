//! A JSON object for each token, request or router call.

use serde::Deserialize;

use super::Builder;

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    /// All layers of a token.
    Token {
        #[serde(default)]
        tok: u64,
        layers: Vec<Vec<u32>>,
    },
    /// One layer of a forward.
    Request { turn: u64, layer: u32, experts: Vec<u32> },
    /// mlx-bun's: one call of a router, `i` being `[batch, tokens, k]`, flat.
    Call {
        #[serde(rename = "c")]
        _call: u64,
        l: u32,
        i: Vec<u32>,
    },
    /// What mlx-bun begins with.
    Meta { meta: String },
}

pub(super) fn read(text: &str, builder: &mut Builder) -> Result<(), String> {
    let line =
        serde_json::from_str(text).map_err(|error| format!("not a line of a routing trace: {error}"))?;
    match line {
        Line::Token { tok, layers } => {
            let layers = layers.iter().enumerate();
            let forward = builder.forward(tok, 0);
            for (layer, experts) in layers {
                let layer = u32::try_from(layer).map_err(|_| format!("{layer} layers"))?;
                builder.add(forward, layer, experts)?;
            }
            Ok(())
        }
        Line::Request { turn, layer, experts } => {
            let forward = builder.forward(turn, layer);
            builder.add(forward, layer, &experts)
        }
        Line::Call { l, i, .. } => {
            let forward = builder.forward(0, l);
            builder.add(forward, l, &i)
        }
        Line::Meta { meta } if meta.starts_with("mlx-bun-expert-trace-v1") => Ok(()),
        Line::Meta { meta } => Err(format!("a trace of the unknown kind `{meta}`")),
    }
}
