//! The few fields of a model's config.json that say how its experts are stored.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::geometry::Activation;

/// No config.json may be longer than this.
const MAX_CONFIG_BYTES: u64 = 16_000_000;

/// No width, count or group in a config.json may be larger than this.
pub(crate) const MAX_CONFIG_NUMBER: u32 = 1 << 24;

/// gpt-oss's activation; mlx-lm and the reference fix the constants in their code, not in the configuration.
const GPT_OSS: Activation = Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 };

/// Models (`model_type`) whose experts are known: [`GPT_OSS`], and SwiGLU for the others.
const MODELS: [&str; 7] =
    ["qwen3_moe", "olmoe", "mixtral", "glm4_moe", "glm_moe_dsa", "deepseek_v3", "gpt_oss"];

/// A config.json.
#[derive(Clone, Debug)]
pub(crate) struct ModelConfig {
    path: PathBuf,
    fields: Map<String, Value>,
}

/// What a config.json says about the storage of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredAs {
    /// `affine`, `mxfp4`, `nvfp4` or `mxfp8`; not checked here.
    pub(crate) mode: String,
    /// Bits per weight.
    pub(crate) bits: u32,
    /// Columns per scale.
    pub(crate) group: u32,
}

impl ModelConfig {
    /// Reads a config.json.
    ///
    /// # Errors
    /// A file that is missing, too long or no JSON object.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let read_error = |source| ConfigError::Read { path: path.into(), source };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(read_error)?;
        file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes).map_err(read_error)?;
        if bytes.len() as u64 > MAX_CONFIG_BYTES {
            return Err(ConfigError::TooLong { path: path.into(), limit_bytes: MAX_CONFIG_BYTES });
        }
        Self::parse(path, &bytes)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ConfigError> {
        let fields = serde_json::from_slice(bytes)
            .map_err(|source| ConfigError::Json { path: path.into(), source })?;
        Ok(Self { path: path.into(), fields })
    }

    /// Where it was read.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A field of the model, or of its text part (`text_config`, in models that also see).
    fn field(&self, name: &str) -> Option<&Value> {
        let text = || self.fields.get("text_config").and_then(|text| text.get(name));
        self.fields.get(name).filter(|v| !v.is_null()).or_else(text).filter(|v| !v.is_null())
    }

    /// A whole number of at least 1; `None` if there is no such field.
    ///
    /// # Errors
    /// A field that is no such number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u32>, ConfigError> {
        self.field(name).map(|value| self.checked_number(name, value)).transpose()
    }

    fn checked_number(&self, field: &str, value: &Value) -> Result<u32, ConfigError> {
        value
            .as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| (1..=MAX_CONFIG_NUMBER).contains(n))
            .ok_or_else(|| self.bad_field(field, value, "a whole number from 1 to 16777216"))
    }

    fn bad_field(&self, field: &str, value: &Value, expected: &'static str) -> ConfigError {
        let mut value = value.to_string();
        if let Some((end, _)) = value.char_indices().nth(80) {
            value.truncate(end);
        }
        ConfigError::Field { path: self.path.clone(), field: field.into(), value, expected }
    }

    /// How many experts a layer has, if the configuration says so under one of its usual names.
    ///
    /// # Errors
    /// A field that is no such number.
    pub(crate) fn experts(&self) -> Result<Option<u32>, ConfigError> {
        for name in ["num_experts", "n_routed_experts", "num_local_experts"] {
            if let Some(experts) = self.number(name)? {
                return Ok(Some(experts));
            }
        }
        Ok(None)
    }

    /// How many layers the model has, those that draft (`num_nextn_predict_layers`) included, if the configuration says so.
    ///
    /// # Errors
    /// A field that is no such number.
    pub(crate) fn layers(&self) -> Result<Option<u32>, ConfigError> {
        let drafting = match self.field("num_nextn_predict_layers") {
            Some(value) if value.as_u64() != Some(0) => {
                self.checked_number("num_nextn_predict_layers", value)?
            }
            _ => 0,
        };
        Ok(self.number("num_hidden_layers")?.map(|layers| layers + drafting))
    }

    /// Checks that the configuration is of a model with routed experts: of one known by its `model_type`, or of one that says
    /// how many experts it has and what function they compute. Without a `model_type` nothing is contradicted.
    ///
    /// # Errors
    /// Any other model: its experts might compute something else.
    pub(crate) fn check_model(&self) -> Result<(), ConfigError> {
        let Some(model) = self.field("model_type") else { return Ok(()) };
        if model.as_str().is_some_and(|name| MODELS.contains(&name)) {
            return Ok(());
        }
        let lacking = match (self.experts()?, self.field("hidden_act")) {
            (None, _) => "how many experts a layer has (num_experts, n_routed_experts or num_local_experts)",
            (_, None) => "what its experts compute (hidden_act)",
            _ => return Ok(()),
        };
        let (path, model) = (self.path.clone(), model.to_string());
        Err(ConfigError::UnknownModel { path, model, lacking })
    }

    /// The function between an expert's products.
    ///
    /// # Errors
    /// A function other than SiLU, or a clamped one in a model that is not gpt-oss: computing another in its place
    /// would give wrong text.
    pub(crate) fn activation(&self) -> Result<Activation, ConfigError> {
        if self.field("model_type").and_then(Value::as_str) == Some("gpt_oss") {
            return Ok(GPT_OSS);
        }
        if let Some(limit) = self.field("swiglu_limit") {
            return Err(self.bad_field("swiglu_limit", limit, "absent outside gpt_oss"));
        }
        match self.field("hidden_act") {
            Some(act) if !matches!(act.as_str(), Some("silu" | "swish")) => {
                Err(self.bad_field("hidden_act", act, "silu"))
            }
            _ => Ok(Activation::SwiGlu),
        }
    }

    /// How the packed weights of the module at `path` are stored.
    ///
    /// A module's own entry takes the place of the general one as a whole: what it leaves out are MLX's defaults
    /// (`to_quantized` in mlx-lm's loader), so an entry without `mode` is affine whatever the rest of the file is.
    ///
    /// # Errors
    /// No `quantization`, one that says the module is not packed, or fields that are no such numbers.
    pub(crate) fn stored_as(&self, path: &str) -> Result<StoredAs, ConfigError> {
        let Some(general) = self.field("quantization") else {
            return Err(ConfigError::Missing {
                path: self.path.clone(),
                field: "quantization",
                purpose: "the storage of packed weights",
            });
        };
        let own_name = || format!("quantization.{path}");
        match general.get(path) {
            None | Some(Value::Bool(true)) => self.entry("quantization", general),
            Some(own @ Value::Bool(false)) => {
                Err(self.bad_field(&own_name(), own, "an object, as the weights are packed"))
            }
            Some(own) => self.entry(&own_name(), own),
        }
    }

    fn entry(&self, name: &str, entry: &Value) -> Result<StoredAs, ConfigError> {
        let Value::Object(entry) = entry else {
            return Err(self.bad_field(name, entry, "an object with group_size, bits and mode"));
        };
        let mode = match entry.get("mode").unwrap_or(&Value::Null) {
            Value::Null => "affine",
            Value::String(mode) => mode,
            other => return Err(self.bad_field(&format!("{name}.mode"), other, "a string")),
        };
        let (bits, group) = match mode {
            "mxfp4" => (4, 32),
            "nvfp4" => (4, 16),
            "mxfp8" => (8, 32),
            _ => (4, 64),
        };
        let number = |field: &str, default| match entry.get(field) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => self.checked_number(&format!("{name}.{field}"), value),
        };
        Ok(StoredAs { mode: mode.into(), bits: number("bits", bits)?, group: number("group_size", group)? })
    }
}

/// A config.json that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The system did not give the file.
    #[error("could not read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// A file longer than any configuration.
    #[error("{path} is longer than {limit_bytes} B, the limit of a configuration")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit_bytes: u64,
    },
    /// Not a JSON object.
    #[error("{path} is not a JSON object")]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A field with a value that cannot be.
    #[error("{path} has {field} = {value}, which should be {expected}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// Its value (the first 80 characters).
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A model that is not known to have experts, and does not describe them.
    #[error("{path} has model_type = {model}, which is not known here, and does not say {lacking}")]
    UnknownModel {
        /// The file.
        path: PathBuf,
        /// Its `model_type`.
        model: String,
        /// What it would have to say.
        lacking: &'static str,
    },
    /// A field that is needed and not there.
    #[error("{path} has no {field}, without which {purpose} is not known")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// What it is needed for.
        purpose: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> ModelConfig {
        ModelConfig::parse(Path::new("config.json"), json.as_bytes()).unwrap()
    }

    fn stored(mode: &str, bits: u32, group: u32) -> StoredAs {
        StoredAs { mode: mode.into(), bits, group }
    }

    #[test]
    fn an_override_without_mode_is_affine_whatever_the_file_is() {
        let config = config(
            r#"{"quantization":{"group_size":32,"bits":4,"mode":"mxfp4","a.b":{"group_size":64,"bits":8},"a.c":false,"a.d":true}}"#,
        );
        assert_eq!(config.stored_as("a").unwrap(), stored("mxfp4", 4, 32));
        assert_eq!(config.stored_as("a.b").unwrap(), stored("affine", 8, 64));
        assert!(config.stored_as("a.c").is_err());
        assert_eq!(config.stored_as("a.d").unwrap(), stored("mxfp4", 4, 32));
    }

    #[test]
    fn the_text_part_of_a_larger_model_is_found() {
        let config = config(r#"{"text_config":{"hidden_size":7,"model_type":"gpt_oss"},"hidden_size":null}"#);
        assert_eq!(config.number("hidden_size").unwrap(), Some(7));
        assert_eq!(config.activation().unwrap(), GPT_OSS);
    }

    #[test]
    fn an_activation_that_no_kernel_has_is_refused() {
        let error = config(r#"{"hidden_act":"gelu_pytorch_tanh"}"#).activation().unwrap_err();
        assert!(error.to_string().contains(r#"hidden_act = "gelu_pytorch_tanh""#), "{error}");
        assert!(config(r#"{"swiglu_limit":10.0}"#).activation().is_err());
        assert_eq!(config(r#"{"hidden_act":"silu"}"#).activation().unwrap(), Activation::SwiGlu);
    }

    #[test]
    fn a_model_that_is_not_known_must_describe_its_experts() {
        let refusal = |json| config(json).check_model().unwrap_err().to_string();
        assert!(refusal(r#"{"model_type":"llama"}"#).contains("how many experts"));
        assert!(refusal(r#"{"model_type":"new_moe","num_experts":8}"#).contains("hidden_act"));
        assert!(refusal(r#"{"model_type":7}"#).contains("model_type = 7"));
        for accepted in [
            r#"{"model_type":"new_moe","num_experts":8,"hidden_act":"silu"}"#,
            r#"{"model_type":"seeing","text_config":{"num_local_experts":8,"hidden_act":"silu"}}"#,
            r#"{"model_type":"mixtral"}"#,
            "{}",
        ] {
            config(accepted).check_model().unwrap();
        }
    }

    #[test]
    fn layers_that_draft_are_counted_too() {
        let layers = |json| config(json).layers().unwrap();
        assert_eq!(layers(r#"{"num_hidden_layers":61,"num_nextn_predict_layers":1}"#), Some(62));
        assert_eq!(layers(r#"{"num_hidden_layers":61,"num_nextn_predict_layers":0}"#), Some(61));
        assert_eq!(layers(r#"{"num_nextn_predict_layers":1}"#), None);
        assert!(config(r#"{"num_hidden_layers":2,"num_nextn_predict_layers":-1}"#).layers().is_err());
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        for value in ["0", "-1", "1e30", "1.5", "99999999999999999999", "\"8\"", "[8]", "16777217"] {
            let error = config(&format!(r#"{{"hidden_size":{value}}}"#)).number("hidden_size").unwrap_err();
            assert!(error.to_string().contains("hidden_size = "), "{error}");
        }
    }
}
