//! Rotary position embedding: plain, with linear scaling, and YaRN (arXiv 2309.00071).

use std::f64::consts::TAU;

use serde_json::Value;
use streamed_experts::mlx_rs::{Array, error::Exception, fast};

use super::{
    Failure,
    config::{number, size},
};

/// How positions turn queries and keys.
#[derive(Clone, Debug)]
pub struct Rope {
    /// How many of a head's leading dimensions are turned.
    rotated: i32,
    /// Whether a pair is two neighbours, not one of each half.
    neighbours: bool,
    kind: Kind,
    attention_gain: f32,
}

#[derive(Clone, Debug)]
enum Kind {
    Plain {
        base: f32,
        scale: f32,
    },
    /// A wavelength (÷ 2π) for each pair of dimensions, and what queries and keys are multiplied with.
    Wavelengths {
        wavelengths: Vec<f32>,
        gain: f32,
    },
}

impl Rope {
    /// From `rope_theta` and `rope_scaling`, or the newer `rope_parameters` that holds both.
    pub fn new(json: &Value, rotated: i32, neighbours: bool) -> Result<Self, Failure> {
        let both = &json["rope_parameters"];
        let base =
            number(if json["rope_theta"].is_null() && both.is_object() { both } else { json }, "rope_theta")?;
        let scaling = if json["rope_scaling"].is_object() { &json["rope_scaling"] } else { both };
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(Value::as_str);
        let kind = match kind.unwrap_or("default") {
            "default" => Kind::Plain { base: base as f32, scale: 1.0 },
            "linear" => Kind::Plain { base: base as f32, scale: number(scaling, "factor")?.recip() as f32 },
            "yarn" => yarn(scaling, base, rotated)?,
            other => {
                return Err(format!(
                    "`{other}` is not a rope scaling that this example knows; default, linear and yarn are"
                )
                .into());
            }
        };
        let all = scaling["mscale_all_dim"].as_f64().unwrap_or(0.0);
        let factor = scaling["factor"].as_f64().unwrap_or(1.0);
        Ok(Self { rotated, neighbours, kind, attention_gain: gain(factor, all) as f32 })
    }

    /// What DeepSeek multiplies attention's scale with, twice, for YaRN's sake.
    pub const fn attention_gain(&self) -> f32 {
        self.attention_gain
    }

    /// Turns `[1, heads, tokens, width]`, whose first token is at position `offset`.
    pub fn turn(&self, x: &Array, offset: i32) -> Result<Array, Exception> {
        match &self.kind {
            &Kind::Plain { base, scale } => {
                fast::rope(x, self.rotated, self.neighbours, base, scale, offset, None)
            }
            Kind::Wavelengths { wavelengths, gain } => {
                let count = self.rotated / 2;
                let freqs = Array::from_slice(wavelengths, &[count]);
                // The gain is for the turned part, which is the whole head wherever YaRN is used here.
                let x = if *gain == 1.0 { x.clone() } else { x.multiply(Array::from_f32(*gain))? };
                fast::rope(&x, self.rotated, self.neighbours, None, 1.0, offset, &freqs)
            }
        }
    }
}

/// Pairs that turn often within the original context keep their wavelength, those that turn less than once are
/// stretched by the factor, and those between are blended along a ramp. The ramp's ends are rounded to whole pairs, as
/// mlx-lm has it.
fn yarn(scaling: &Value, base: f64, rotated: i32) -> Result<Kind, Failure> {
    let or = |key: &str, default: f64| scaling[key].as_f64().unwrap_or(default);
    let factor = number(scaling, "factor")?;
    let original = f64::from(size(scaling, "original_max_position_embeddings").unwrap_or(4096));
    let width = f64::from(rotated);
    let pair_that_turns = |times: f64| width * (original / (times * TAU)).ln() / (2.0 * base.ln());
    let first = pair_that_turns(or("beta_fast", 32.0)).floor().max(0.0);
    let last = pair_that_turns(or("beta_slow", 1.0)).ceil().min(width - 1.0);
    let last = if last == first { last + 0.001 } else { last };
    let wavelengths = (0..rotated / 2).map(|pair| {
        let kept = base.powf(2.0 * f64::from(pair) / width);
        let stretched = factor * kept;
        let ramp = ((f64::from(pair) - first) / (last - first)).clamp(0.0, 1.0);
        (kept * stretched / (stretched * (1.0 - ramp) + kept * ramp)) as f32
    });
    let gain = gain(factor, or("mscale", 1.0)) / gain(factor, or("mscale_all_dim", 0.0));
    Ok(Kind::Wavelengths { wavelengths: wavelengths.collect(), gain: gain as f32 })
}

/// How much YaRN sharpens attention.
fn gain(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}
