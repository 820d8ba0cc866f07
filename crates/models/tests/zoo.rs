//! What is planned for a family is what its model does.
//!
//! `data/zoo.json` has what transformers' own models did on its meta device, with an attention function that writes
//! down what it is called with: for each family its config, and each distinct attention with the number of layers that
//! make it, its mask as pairs (query, key, allowed). `zoo` are 96 families of causal language models, recorded apart
//! from this project; `more` are those that `data/record.py` records in the same way, encoders and image models among
//! them. `data/variants.json` has other sizes and options of causal families, as configs say them before any class adds
//! its defaults.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use qkvault_graph::{Corner, validate};
use qkvault_models::{AttentionKind, LayerKind, Model, Phase};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Zoo {
    masks: Vec<Mask>,
    zoo: BTreeMap<String, Family>,
    more: BTreeMap<String, Family>,
}

#[derive(Deserialize)]
struct Family {
    config: Value,
    calls: Vec<Call>,
}

/// One distinct attention of a model. Pairs are (heads, head dim).
#[derive(Deserialize)]
struct Call {
    times: usize,
    q: (i64, i64),
    k: (i64, i64),
    v: i64,
    scaling: f64,
    window: Option<i64>,
    softcap: Option<f64>,
    sinks: Option<i64>,
    mask: Option<usize>,
    /// The layers, if they are others than the first.
    at: Option<Vec<usize>>,
}

#[derive(Deserialize)]
struct Mask {
    local_size: Option<i64>,
    #[serde(default)]
    pairs: Vec<(i64, i64, bool)>,
}

fn zoo() -> Zoo {
    serde_json::from_str(include_str!("data/zoo.json")).unwrap()
}

/// Whether a query sees a key, by the description.
fn sees(layer: &LayerKind, query: i64, key: i64) -> bool {
    let length = query.max(key) + 1;
    let band = layer.band(Corner::TopLeft).is_none_or(|band| band.keeps(query, key, length, length));
    band && layer.chunk.is_none_or(|chunk| query / chunk == key / chunk)
}

/// What differs between a planned layer and a call, or `None`.
fn differs(layer: &LayerKind, call: &Call, masks: &[Mask]) -> Option<String> {
    let LayerKind { heads, kv_heads, d_qk, d_v, scale, softcap, sink, window, chunk, .. } = layer;
    let shapes = ((*heads, *d_qk), (*kv_heads, *d_qk), *d_v);
    if shapes != (call.q, call.k, call.v) {
        return Some(format!("shapes {shapes:?}"));
    }
    if (scale - call.scaling).abs() > 1e-7 * call.scaling {
        return Some(format!("scale {scale}"));
    }
    if (*softcap, *sink) != (call.softcap, call.sinks.is_some()) {
        return Some(format!("softcap {softcap:?} sink {sink}"));
    }
    let mask = call.mask.map(|mask| &masks[mask]);
    if let Some(&(query, key, _)) = mask.iter().flat_map(|m| &m.pairs).find(|(q, k, seen)| sees(layer, *q, *k) != *seen)
    {
        return Some(format!("mask of query {query} and key {key}: window {window:?} chunk {chunk:?}"));
    }
    // Masks that could not be sampled give the length of what a query sees.
    let local =
        call.window.or_else(|| mask.and_then(|m| m.local_size)).filter(|_| mask.is_none_or(|m| m.pairs.is_empty()));
    (local.is_some() && local != window.or(*chunk)).then(|| format!("window {window:?} chunk {chunk:?} for {local:?}"))
}

/// What is wrong with a plan of a family. `whole` asks that the model makes every planned self-attention too.
fn faults(model: &Model, calls: &[Call], masks: &[Mask], whole: bool) -> Vec<String> {
    let mut left: Vec<(usize, &LayerKind)> = model.layers.iter().map(|layer| (layer.count, layer)).collect();
    let mut found = Vec::new();
    for call in calls {
        let mut times = call.times;
        for (count, layer) in &mut left {
            if differs(layer, call, masks).is_none() {
                let taken = times.min(*count);
                (times, *count) = (times - taken, *count - taken);
                let whole = taken > 0 && taken == layer.count && taken == call.times;
                let other = call.at.as_ref().filter(|at| whole && **at != layer.indices);
                found.extend(other.map(|at| format!("layers {at:?} are planned as {:?}", layer.indices)));
            }
        }
        if times > 0 {
            let planned: Vec<String> = model
                .layers
                .iter()
                .map(|l| format!("{} x{} {:?}", l.label, l.count, differs(l, call, masks)))
                .collect();
            found.push(format!(
                "{times} of {} calls {:?} {:?} {} scale {} are not planned: {planned:?}",
                call.times, call.q, call.k, call.v, call.scaling
            ));
        }
    }
    let extra = left.iter().filter(|(count, layer)| whole && *count > 0 && layer.kind == AttentionKind::SelfAttention);
    found.extend(extra.map(|(count, layer)| format!("{count} planned layers {} are not made", layer.label)));
    found
}

#[derive(Deserialize)]
struct Variants {
    masks: Vec<Mask>,
    variants: BTreeMap<String, Family>,
}

/// Variants that are planned as something else, with the reason.
const OTHERWISE: [(&str, &str); 2] = [
    ("dots3_note_text 1", "sizes of its sliding layers that only its class knows"),
    ("minimax 2", "a field of the published model that its class in transformers does not read"),
];

#[test]
fn every_variant_of_a_config_is_planned_as_its_model_does() {
    let Variants { masks, variants } = serde_json::from_str(include_str!("data/variants.json")).unwrap();
    assert!(variants.len() > 200);
    let mut wrong = Vec::new();
    for (name, family) in &variants {
        let faults = match Model::from_config(&family.config.to_string()) {
            Ok(model) => faults(&model, &family.calls, &masks, true),
            Err(refusal) => vec![refusal.to_string()],
        };
        if let Some((_, reason)) = OTHERWISE.iter().find(|(other, _)| other == name) {
            assert!(!faults.is_empty(), "{name} is covered: take it off the list ({reason})");
            continue;
        }
        wrong.extend(faults.iter().map(|fault| format!("{name}: {fault}\n  {}", family.config)));
    }
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), variants.len(), wrong.join("\n"));
}

/// Families of the zoo that are not planned, with the reason.
const UNCOVERED: [(&str, &str); 1] =
    [("deepseek_v4", "keys of a window stand beside sums of older keys; the plan says so and skips the layers")];

/// Families of the zoo whose model has another decoder, which the recorded run does not use.
const OTHER_DECODERS: [&str; 1] = ["moshi"];

#[test]
fn every_family_of_the_zoo_is_planned_as_its_model_does() {
    let zoo = zoo();
    assert_eq!(zoo.zoo.len(), 96);
    let mut wrong = Vec::new();
    for (name, family) in &zoo.zoo {
        let model = Model::from_config(&family.config.to_string()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let whole = !OTHER_DECODERS.contains(&name.as_str());
        let faults = faults(&model, &family.calls, &zoo.masks, whole);
        if UNCOVERED.iter().any(|(uncovered, _)| uncovered == name) {
            assert!(!faults.is_empty(), "{name} is covered: take it off the list");
            assert!(!model.skipped.is_empty(), "{name} is named: {model:?}");
            continue;
        }
        wrong.extend(faults.iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Families that only `data/record.py` recorded and that are not planned as a whole, with the reason.
const PARTLY: [(&str, &str); 7] = [
    ("doge", "the layer chooses keys from values at run time"),
    ("maskformer", "the cross-attention of its mask decoder is not in a config of layers"),
    ("sam2_hiera_det_model", "stages of windows of patches"),
    ("sam2_vision_model", "stages of windows of patches"),
    ("sam3_tracker", "its mask decoder halves the head dim"),
    ("segformer", "stages of windows of patches"),
    ("swin", "stages of windows of patches"),
];

#[test]
fn every_other_recorded_family_is_planned_as_its_model_does() {
    let zoo = zoo();
    let mut wrong = Vec::new();
    for (name, family) in &zoo.more {
        let faults = match Model::from_config(&family.config.to_string()) {
            Ok(model) => faults(&model, &family.calls, &zoo.masks, false),
            Err(refusal) => vec![refusal.to_string()],
        };
        if let Some((_, reason)) = PARTLY.iter().find(|(partly, _)| partly == name) {
            assert!(!faults.is_empty(), "{name} is covered: take it off the list ({reason})");
            continue;
        }
        wrong.extend(faults.iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), zoo.more.len(), wrong.join("\n"));
}

/// The fields that a config of the hub always has: sizes of the model.
const SIZES: [&str; 16] = [
    "model_type",
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "hidden_size",
    "layers_block_type",
    "depth",
];

/// Families whose config with its sizes alone is another model than the default of its class, with the reason.
const NOT_BARE: [(&str, &str); 1] = [("got_ocr2", "its class has its own defaults for the nested config")];

/// A config from the hub leaves out what equals the default of its class, or what its class did not have yet.
#[test]
fn fields_that_a_config_leaves_out_are_those_of_its_class() {
    fn bare(config: &Value, nested: bool) -> Value {
        let fields = config.as_object().unwrap().iter().filter_map(|(name, value)| match value {
            Value::Object(_) if name.ends_with("_config") && name != "per_layer_config" && !nested => {
                Some((name.clone(), bare(value, true)))
            }
            _ => SIZES.contains(&name.as_str()).then(|| (name.clone(), value.clone())),
        });
        fields.collect::<serde_json::Map<_, _>>().into()
    }
    let zoo = zoo();
    let mut wrong = Vec::new();
    for (name, family) in zoo.zoo.iter().filter(|(name, _)| UNCOVERED.iter().all(|(other, _)| other != name)) {
        let faults = match Model::from_config(&bare(&family.config, false).to_string()) {
            Ok(model) => faults(&model, &family.calls, &zoo.masks, !OTHER_DECODERS.contains(&name.as_str())),
            Err(refusal) => vec![refusal.to_string()],
        };
        if let Some((_, reason)) = NOT_BARE.iter().find(|(other, _)| other == name) {
            assert!(!faults.is_empty(), "{name} is read from its sizes: take it off the list ({reason})");
            continue;
        }
        wrong.extend(faults.iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_planned_attention_of_the_zoo_is_sound_or_names_its_phase() {
    let zoo = zoo();
    for (name, family) in zoo.zoo.iter().chain(&zoo.more) {
        let Ok(model) = Model::from_config(&family.config.to_string()) else { continue };
        for layer in &model.layers {
            for phase in Phase::INFERENCE {
                match layer.attention(phase, 2, 16_384) {
                    Ok(attention) => {
                        validate(attention).unwrap_or_else(|e| panic!("{name} {} {phase}: {e}", layer.label));
                    }
                    Err(_) => assert!(phase == Phase::Decode && !layer.decodes(), "{name} {} {phase}", layer.label),
                }
            }
        }
    }
}
