//! `docs/models.md`: every recorded family, what it is planned as, and where that runs by the rules.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use qkvault_graph::{CudnnVersion, LibrarySet, Profile, validate};
use qkvault_models::{Kind, LayerKind, Model, Phase};
use qkvault_probe::{Request, check};
use serde_json::Value;

/// Keys of a prefill and of a decode: more than most windows and chunks.
const KEYS: i64 = 16_384;

const VERSIONS: [CudnnVersion; 2] = [CudnnVersion::v9(19, 0), CudnnVersion::v9(27, 0)];

fn recorded() -> BTreeMap<String, Value> {
    let text = include_str!("../../../models/tests/data/zoo.json");
    let zoo: Value = serde_json::from_str(text).unwrap();
    let families = |part: &str| zoo[part].as_object().unwrap().clone();
    families("zoo").into_iter().chain(families("more")).map(|(name, family)| (name, family["config"].clone())).collect()
}

/// A layer in few words: `24 x 32/8 heads of 128, window 4096`.
fn words(layer: &LayerKind) -> String {
    let LayerKind { count, heads, kv_heads, d_qk, d_v, .. } = layer;
    let heads = if heads == kv_heads { heads.to_string() } else { format!("{heads}/{kv_heads}") };
    let dims = if d_qk == d_v { d_qk.to_string() } else { format!("{d_qk}/{d_v}") };
    let mut text = format!("{count}×{heads}×{dims}");
    match layer.kind {
        Kind::SelfAttention if !layer.causal => text += " all",
        Kind::SelfAttention => {}
        Kind::Cross => text += " cross",
        Kind::Encoder => text += " encoder",
        Kind::Vision => text += " vision",
    }
    let number = |text: &mut String, name: &str, value: Option<i64>| {
        value.into_iter().for_each(|value| write!(text, " {name} {value}").unwrap());
    };
    number(&mut text, "window", layer.window);
    number(&mut text, "chunk", layer.chunk);
    layer.softcap.into_iter().for_each(|cap| write!(text, " cap {cap}").unwrap());
    for (is, name) in [(layer.sink, " sink"), (layer.alibi.is_some(), " ALiBi"), (layer.position_bias, " bias")] {
        text += if is { name } else { "" };
    }
    text
}

/// The GPUs on which a version does not support a layer, with the codes.
fn refused(layer: &LayerKind, version: CudnnVersion) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for phase in Phase::INFERENCE {
        let Ok(attention) = layer.attention(phase, 1, KEYS) else { continue };
        let attention = validate(attention).unwrap();
        for profile in Profile::built_in() {
            let reasons = check(&Request::new(&attention, &profile.target(version, LibrarySet::Slim))).reasons;
            for reason in reasons {
                let names = found.entry(reason.code.to_string()).or_default();
                let name = format!("{} ({phase})", profile.name);
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
    }
    found
}

/// Where a model runs: everywhere, or the codes by which it does not.
fn runs(model: &Model) -> String {
    let mut texts = Vec::new();
    for version in VERSIONS {
        let mut codes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (code, names) in model.layers.iter().flat_map(|layer| refused(layer, version)) {
            let known = codes.entry(code).or_default();
            names.into_iter().for_each(|name| {
                if !known.contains(&name) {
                    known.push(name)
                }
            });
        }
        let all = Profile::built_in().count() * Phase::INFERENCE.len();
        let list: Vec<String> = codes
            .iter()
            .map(|(code, names)| {
                let places = if names.len() == all { "everywhere".to_owned() } else { names.join(", ") };
                format!("`{code}`: {places}")
            })
            .collect();
        texts.push(if list.is_empty() { "yes".to_owned() } else { list.join("; ") });
    }
    let text = if texts[0] == texts[1] { texts[0].clone() } else { format!("{} / {}", texts[0], texts[1]) };
    if model.layers.is_empty() { "nothing is planned".to_owned() } else { text }
}

fn page() -> String {
    let gpus: Vec<String> = Profile::built_in().map(|profile| profile.name).collect();
    let mut rows = String::new();
    let mut limits: Vec<String> = Vec::new();
    for (name, config) in recorded() {
        let model = match Model::from_config(&config.to_string()) {
            Ok(model) => model,
            Err(refusal) => {
                let reasons: Vec<String> =
                    refusal.reasons().iter().map(|r| format!("{} {}", r.field, r.given)).collect();
                writeln!(rows, "| {name} | not read: {} | |", reasons.join("; ")).unwrap();
                continue;
            }
        };
        let layers: Vec<String> = model.layers.iter().map(words).collect();
        let skipped = model.skipped.iter().map(|s| format!("not planned: {}× {}", s.count, s.what));
        let what: Vec<String> = layers.into_iter().chain(skipped).collect();
        let runs = runs(&model);
        let place = limits.iter().position(|known| *known == runs).unwrap_or_else(|| {
            limits.push(runs.clone());
            limits.len() - 1
        });
        writeln!(rows, "| {name} | {} | {} |", what.join("; "), place + 1).unwrap();
    }
    let limits: String = limits.iter().enumerate().map(|(i, text)| format!("{}. {text}\n", i + 1)).collect();
    format!(
        "# Model families\n\nWritten by `UPDATE_GOLDENS=1 cargo test -p qkvault-cli --test cli families`; edits are lost.\n\n\
         What `qkvault model` reads from the default config of every family that `crates/models/tests/data/zoo.json` has \
         a recording of. Other\nfamilies and sizes are read in the same way. `24×32/8×128` are 24 layers of 32 query heads, 8 \
         key/value heads and a head dim of 128\n(`192/128`: of Q and K, and of V), causal unless they see `all` or are of an \
         encoder, images or another sequence.\n\nThe last column is the number of a row below: what the rules say of a \
         prefill and a decode with {KEYS} keys,\non {} with cuDNN {} and {} (two texts if they differ). Codes are \
         explained in [reasons](reasons.md).\n\n{limits}\n| family | attentions | runs |\n| --- | --- | --- |\n{rows}",
        gpus.join(", "),
        VERSIONS[0],
        VERSIONS[1],
    )
}

#[test]
fn the_page_of_model_families_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/models.md");
    let page = page();
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|v| v == "1") {
        std::fs::write(path, &page).unwrap();
    }
    let stale = std::fs::read_to_string(path).unwrap_or_default() != page;
    assert!(!stale, "docs/models.md is stale: UPDATE_GOLDENS=1 cargo test -p qkvault-cli --test cli families");
}
