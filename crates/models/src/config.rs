//! Reads the fields of a Hugging Face `config.json` that determine attention, with a reason for each invalid field.

use serde_json::{Map, Value};

use qkvault_graph::registry::{Code, codes};
use qkvault_graph::{DType, Refusal};

/// A parsed config.
pub(super) struct Config(Map<String, Value>);

fn reason(code: &Code, field: &str, given: impl Into<String>, needed: impl Into<String>) -> Refusal {
    code.reason(given).at(field.to_owned()).with_needed(needed).into()
}

impl Config {
    /// Reads JSON text.
    pub(super) fn parse(text: &str) -> Result<Config, Refusal> {
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(Config(map)),
            Ok(other) => {
                let kind = match other {
                    Value::Array(_) => "an array",
                    Value::String(_) => "a string",
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => "a bare value",
                };
                Err(reason(&codes::CONFIG_JSON, "config", kind, "a JSON object with a model_type"))
            }
            Err(e) => Err(reason(&codes::CONFIG_JSON, "config", e.to_string(), "a JSON object with a model_type")),
        }
    }

    fn get(&self, field: &str) -> Option<&Value> {
        field
            .split('.')
            .try_fold(None, |at: Option<&Value>, key| {
                let found = match at {
                    None => self.0.get(key),
                    Some(value) => value.get(key),
                };
                found.map(Some)
            })?
            .filter(|v| !v.is_null())
    }

    /// A whole number from 1 to 2^31 - 1, or `None` if the field is absent.
    ///
    /// # Errors
    ///
    /// A reason for any other value.
    pub(super) fn int(&self, field: &str) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_i64() {
            Some(n) if (1..=i64::from(i32::MAX)).contains(&n) => Ok(Some(n)),
            _ => Err(reason(&codes::CONFIG_FIELD, field, value.to_string(), "a whole number from 1 to 2147483647")),
        }
    }

    /// A required whole number, under the first of `names` that is present.
    pub(super) fn need(&self, names: &[&str]) -> Result<i64, Refusal> {
        for name in names {
            if let Some(n) = self.int(name)? {
                return Ok(n);
            }
        }
        Err(reason(
            &codes::CONFIG_MISSING,
            names[0],
            "absent",
            format!("{} is needed to plan attention", names.join(" or ")),
        ))
    }

    pub(super) fn float(&self, field: &str) -> Result<Option<f32>, Refusal> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if x.is_finite() && x > 0.0 => Ok(Some(x as f32)),
            _ => Err(reason(&codes::CONFIG_FIELD, field, value.to_string(), "a positive number")),
        }
    }

    pub(super) fn flag(&self, field: &str) -> Result<bool, Refusal> {
        match self.get(field) {
            None => Ok(false),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => Err(reason(&codes::CONFIG_FIELD, field, other.to_string(), "true or false")),
        }
    }

    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.get(field).and_then(Value::as_str)
    }

    /// For each layer, whether it is a sliding layer. A config may give one period of the pattern, which is repeated to
    /// `layers` entries.
    pub(super) fn layer_types(&self, layers: usize) -> Result<Option<Vec<bool>>, Refusal> {
        let Some(value) = self.get("layer_types") else { return Ok(None) };
        let bad = |given: String| {
            reason(&codes::CONFIG_FIELD, "layer_types", given, "a list of sliding_attention and full_attention")
        };
        let list = value.as_array().filter(|l| !l.is_empty()).ok_or_else(|| bad(value.to_string()))?;
        let sliding: Vec<bool> = list
            .iter()
            .map(|v| match v.as_str() {
                Some("sliding_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err(bad(v.to_string())),
            })
            .collect::<Result<_, _>>()?;
        if !layers.is_multiple_of(sliding.len()) {
            return Err(bad(format!("{} entries for {layers} layers", sliding.len())));
        }
        Ok(Some(sliding.into_iter().cycle().take(layers).collect()))
    }

    /// The element type. If the config names none, or names float32, it is bf16, and `notes` gets a line about it.
    pub(super) fn dtype(&self, notes: &mut Vec<String>) -> Result<DType, Refusal> {
        let (field, text) = match (self.text("torch_dtype"), self.text("dtype")) {
            (Some(t), _) => ("torch_dtype", t),
            (None, Some(t)) => ("dtype", t),
            (None, None) => {
                notes.push("the config names no dtype: bf16 is assumed".into());
                return Ok(DType::BF16);
            }
        };
        match text.parse::<DType>() {
            Ok(DType::F32) => {
                notes
                    .push("the config names float32, which cuDNN's attention does not support: bf16 is assumed".into());
                Ok(DType::BF16)
            }
            Ok(dtype) if dtype.is_half() => Ok(dtype),
            _ => Err(reason(&codes::CONFIG_DTYPE, field, text, "bfloat16, float16 or float32")),
        }
    }
}
