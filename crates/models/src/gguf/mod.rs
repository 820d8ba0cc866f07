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

use crate::codes;
use qkvault_graph::{Reason, Refusal};

use super::{Model, Skipped};

pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// Reads the model of a GGUF file of this many bytes.
pub(crate) fn model(file: File, size: u64) -> Result<Model, Refusal> {
    let metadata = bytes::metadata(BufReader::new(file), size, is_wanted)?;
    let mut model = read(&metadata)?;
    // GGUF files store weights in formats of their own; engines compute attention in 16 bits.
    model.notes.retain(|note| !note.contains("names no dtype"));
    model.notes.push("a GGUF file names no dtype of attention: bf16 is assumed".to_owned());
    Ok(model)
}

/// The model that the metadata says.
fn read(metadata: &BTreeMap<String, Value>) -> Result<Model, Refusal> {
    let (mut config, architecture) = config(metadata)?;
    let nextn = metadata.get(&format!("{architecture}.{NEXTN}")).and_then(Value::as_i64);
    let further = further(&config, nextn);
    if let Some(further) = further {
        without(&mut config, further);
    }
    let mut model = crate::read::model(&config).map_err(|refusal| {
        let reasons: Vec<Reason> = Vec::from(refusal).into_iter().map(|reason| in_keys(reason, architecture)).collect();
        Refusal::from_reasons(reasons).unwrap_or_else(|| fault(ARCHITECTURE, architecture, "a model with attention"))
    })?;
    if let Some((layers, blocks)) = further {
        let (what, why) = (NEXTN.to_owned(), "these blocks predict tokens beyond the next one".to_owned());
        model.skipped.push(Skipped { what, why, count: blocks - layers, indices: (layers..blocks).collect() });
    }
    Ok(model)
}

/// How many blocks, the last ones, predict tokens beyond the next one.
const NEXTN: &str = "nextn_predict_layers";

/// Keys beside those of [`families::FIELDS`] that say something about attention, without the architecture before them.
const KEYS: &[&str] = &[
    "attention.causal",
    "attention.max_alibi_bias",
    "attention.kv_lora_rank",
    "attention.key_length_mla",
    "attention.value_length_mla",
    NEXTN,
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
fn config(metadata: &BTreeMap<String, Value>) -> Result<(Map<String, Value>, &str), Refusal> {
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
        if let Some(value) = get(name) {
            config.insert((*field).to_owned(), value.clone());
        }
    }
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
    Ok((config, architecture))
}

/// The blocks behind those of the model, which predict further tokens: `block_count` counts them, as do lists.
fn further(config: &Map<String, Value>, nextn: Option<i64>) -> Option<(usize, usize)> {
    let size = |n: Option<i64>| n.and_then(|n| usize::try_from(n).ok());
    let (blocks, nextn) = (size(config.get("num_hidden_layers").and_then(Value::as_i64))?, size(nextn)?);
    // A file of these blocks alone has no others.
    (nextn > 0 && nextn < blocks).then(|| (blocks - nextn, blocks))
}

/// Leaves the further blocks out of the count and of the lists that have an entry for each.
fn without(config: &mut Map<String, Value>, (layers, blocks): (usize, usize)) {
    config.insert("num_hidden_layers".to_owned(), json!(layers));
    for list in config.values_mut().filter_map(Value::as_array_mut).filter(|list| list.len() == blocks) {
        list.truncate(layers);
    }
}

/// A reason in the names of the file: those of the config that it was read as mean nothing to its user.
fn in_keys(mut reason: Reason, architecture: &str) -> Reason {
    let (field, place) = reason.field.split_at(reason.field.find('[').unwrap_or(reason.field.len()));
    if let Some((name, _)) = families::FIELDS.iter().find(|(_, known)| *known == field) {
        let key = format!("{architecture}.{name}");
        if reason.code == codes::CONFIG_MISSING {
            reason.needed = format!("{key} is needed to plan attention");
        }
        reason.field = format!("{key}{place}").into();
    }
    reason.with_fix("give a GGUF file whose metadata is that of its model, such as its publisher's, or its config.json")
}

#[cfg(test)]
mod tests;
