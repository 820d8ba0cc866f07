//! The metadata of a GGUF file, as the config of the model that it holds.
//!
//! The format and the keys are those of ggml's specification of GGUF; what llama.cpp's code decides for an architecture
//! and the metadata does not say is in [`families`].

mod bytes;
mod families;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;

use serde_json::{Map, Value, json};

use qkvault_graph::Refusal;
use qkvault_graph::registry::codes;

use super::Model;

pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// Reads the model of a GGUF file of this many bytes.
pub(crate) fn model(file: File, size: u64) -> Result<Model, Refusal> {
    let metadata = bytes::metadata(BufReader::new(file), size, is_wanted)?;
    let mut model = crate::read::model(&config(&metadata)?)?;
    // GGUF files store weights in formats of their own; engines compute attention in 16 bits.
    model.notes.retain(|note| !note.contains("names no dtype"));
    model.notes.push("a GGUF file names no dtype of attention: bf16 is assumed".to_owned());
    Ok(model)
}

/// Keys beside those of [`families::FIELDS`] that say something about attention, without the architecture before them.
const KEYS: &[&str] = &[
    "attention.causal",
    "attention.max_alibi_bias",
    "attention.kv_lora_rank",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "attention.sliding_window_pattern",
    "rope.dimension_count",
    "rope.scaling.factor",
    "rope.scaling.yarn_log_multiplier",
];

/// The key of the architecture.
const ARCHITECTURE: &str = "general.architecture";

/// Whether an entry says something about attention. The architecture, with which its keys begin, may come later.
fn is_wanted(key: &str) -> bool {
    let names = families::FIELDS.iter().map(|(name, _)| *name).chain(KEYS.iter().copied());
    let ends = |name: &str| key.strip_suffix(name).is_some_and(|before| before.ends_with('.'));
    key == ARCHITECTURE || names.into_iter().any(ends)
}

fn fault(field: &str, given: impl Into<String>, needed: &str) -> Refusal {
    codes::CONFIG_GGUF.reason(given).at(field.to_owned()).with_needed(needed).into()
}

/// The config that the metadata says, in the names of Hugging Face.
fn config(metadata: &BTreeMap<String, Value>) -> Result<Map<String, Value>, Refusal> {
    let architecture = metadata.get(ARCHITECTURE).and_then(Value::as_str);
    let architecture =
        architecture.ok_or_else(|| fault(ARCHITECTURE, "absent", "the name of an architecture, such as llama"))?;
    let get = |name: &str| {
        debug_assert!(is_wanted(&format!("{architecture}.{name}")), "{name} is read and not kept");
        metadata.get(&format!("{architecture}.{name}"))
    };
    let int = |name: &str| get(name).and_then(Value::as_i64);
    let mut config = Map::new();
    config.insert("model_type".to_owned(), json!(families::model_type(architecture)));
    for (name, field) in families::FIELDS {
        if let Some(value) = get(name).filter(|value| !value.is_array()) {
            config.insert((*field).to_owned(), value.clone());
        }
    }
    per_layer(&mut config, &get);
    if get("attention.causal").and_then(Value::as_bool) == Some(false) {
        config.insert("is_causal".to_owned(), json!(false));
    }
    if let Some(bias) = get("attention.max_alibi_bias").and_then(Value::as_f64).filter(|&bias| bias > 0.0) {
        config.insert("alibi".to_owned(), json!(true));
        config.insert("alibi_bias_max".to_owned(), json!(bias));
    }
    if let Some(rank) = int("attention.kv_lora_rank") {
        let rope = int("rope.dimension_count").unwrap_or(0);
        let (key, value) = ("attention.key_length_mla", "attention.value_length_mla");
        let whole = int(key).or_else(|| int("attention.key_length")).unwrap_or(0);
        let nope = whole.checked_sub(rope).filter(|&nope| nope > 0 && rope > 0).ok_or_else(|| {
            let needed = "more than rope.dimension_count, which is above 0";
            fault(&format!("{architecture}.{key}"), whole.to_string(), needed)
        })?;
        let v = int(value).or_else(|| int("attention.value_length")).unwrap_or(0);
        config.insert("kv_lora_rank".to_owned(), json!(rank));
        config.insert("qk_rope_head_dim".to_owned(), json!(rope));
        config.insert("qk_nope_head_dim".to_owned(), json!(nope));
        config.insert("v_head_dim".to_owned(), json!(v));
        config.remove("head_dim");
        config.remove("num_key_value_heads");
        // llama.cpp writes 0.1 * mscale_all_dim.
        let log = get("rope.scaling.yarn_log_multiplier").and_then(Value::as_f64);
        if let (Some(log), Some(factor)) = (log, get("rope.scaling.factor").and_then(Value::as_f64)) {
            let rope = json!({"rope_type": "yarn", "factor": factor, "mscale_all_dim": log * 10.0});
            config.insert("rope_scaling".to_owned(), rope);
        }
    }
    families::decided(architecture, &mut config);
    Ok(config)
}

/// Lists with a value for each layer: heads, and which layers have a window. Layers with no key/value heads have no
/// attention.
fn per_layer<'m>(config: &mut Map<String, Value>, get: &impl Fn(&str) -> Option<&'m Value>) {
    let list = |name: &str| get(name).and_then(Value::as_array);
    let mut layers: BTreeMap<usize, Map<String, Value>> = BTreeMap::new();
    let mut sorts: BTreeMap<usize, &str> = BTreeMap::new();
    let pairs = [("attention.head_count", "num_attention_heads"), ("attention.head_count_kv", "num_key_value_heads")];
    for (name, field) in pairs {
        for (index, value) in list(name).into_iter().flatten().enumerate() {
            if value.as_i64() == Some(0) {
                sorts.insert(index, "linear_attention");
            } else {
                layers.entry(index).or_default().insert(field.to_owned(), value.clone());
                config.entry(field).or_insert_with(|| value.clone());
            }
        }
    }
    for (index, slides) in list("attention.sliding_window_pattern").into_iter().flatten().enumerate() {
        let sort = if slides.as_bool() == Some(true) { "sliding_attention" } else { "full_attention" };
        sorts.entry(index).or_insert(sort);
    }
    if let Some(last) = sorts.keys().next_back().copied() {
        let count = config.get("num_hidden_layers").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let count = count.unwrap_or(last + 1).clamp(last + 1, 1 << 16);
        let words = (0..count).map(|i| sorts.get(&i).copied().unwrap_or("full_attention"));
        config.insert("layer_types".to_owned(), words.collect::<Vec<_>>().into());
    }
    if !layers.is_empty() {
        let layers: Map<String, Value> = layers.into_iter().map(|(i, map)| (i.to_string(), map.into())).collect();
        config.insert("per_layer_config".to_owned(), layers.into());
    }
}

#[cfg(test)]
mod tests;
