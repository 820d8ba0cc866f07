//! `docs/models.md`: every recorded family, what it is planned as, and where that runs by the rules.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use qkvault_cudnn::Profile;
use qkvault_graph::{CudnnVersion, LibrarySet, validate};
use qkvault_models::{AttentionKind, LayerKind, Model, Phase};
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
        AttentionKind::SelfAttention if !layer.causal => text += " all",
        AttentionKind::SelfAttention => {}
        AttentionKind::Cross => text += " cross",
        AttentionKind::Encoder => text += " encoder",
        AttentionKind::Vision => text += " vision",
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

/// What a row of the table says: the family, its attentions, and where they run.
type Row = (String, String, String);

fn table() -> Vec<Row> {
    let row = |(name, config): (String, Value)| match Model::from_config(&config.to_string()) {
        Ok(model) => {
            let layers: Vec<String> = model.layers.iter().map(words).collect();
            let skipped = model.skipped.iter().map(|s| format!("not planned: {}× {}", s.count, s.what));
            let what: Vec<String> = layers.into_iter().chain(skipped).collect();
            (name, what.join("; "), runs(&model))
        }
        Err(refusal) => {
            let reasons: Vec<String> = refusal.reasons().iter().map(|r| format!("{} {}", r.field, r.given)).collect();
            (name, format!("not read: {}", reasons.join("; ")), "not read".to_owned())
        }
    };
    recorded().into_iter().map(row).collect()
}

/// The families by where they run; the data have what each is planned as.
fn page(table: &[Row]) -> String {
    let gpus: Vec<String> = Profile::built_in().map(|profile| profile.name).collect();
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, _, runs) in table {
        match groups.iter_mut().find(|(known, _)| known == runs) {
            Some((_, names)) => names.push(name),
            None => groups.push((runs, vec![name])),
        }
    }
    let groups: String = groups.iter().map(|(runs, names)| format!("\n## {runs}\n\n{}\n", names.join(", "))).collect();
    format!(
        "# Model families\n\nWritten by `UPDATE_GOLDENS=1 cargo test -p qkvault-cli --test cli families`; edits are lost.\n\n\
         Families of which `crates/models/tests/data/zoo.json` has a recording, by what the rules say of a prefill and a \
         decode with {KEYS} keys on {} with cuDNN {} and {} (two texts if they differ); codes: [reasons](reasons.md). Other \
         families and sizes are read in the same way. Which attentions each has: [models.json](models.json), \
         `24×32/8×128` for 24 layers of 32 query heads, 8 key/value heads and a head dim of 128, or `qkvault model \
         NAME`.\n{groups}",
        gpus.join(", "),
        VERSIONS[0],
        VERSIONS[1],
    )
}

/// The table as data, a line for each family.
fn data(table: &[Row]) -> String {
    let line = |(name, attentions, runs): &Row| {
        format!("{}: {}", serde_json::json!(name), serde_json::json!({ "attentions": attentions, "runs": runs }))
    };
    format!("{{\n{}\n}}\n", table.iter().map(line).collect::<Vec<_>>().join(",\n"))
}

#[test]
fn the_page_of_model_families_is_up_to_date() {
    let table = table();
    for (end, fresh) in [("md", page(&table)), ("json", data(&table))] {
        let path = format!("{}/../../docs/models.{end}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("UPDATE_GOLDENS").is_some_and(|v| v == "1") {
            std::fs::write(&path, &fresh).unwrap();
        }
        let stale = std::fs::read_to_string(&path).unwrap_or_default() != fresh;
        assert!(!stale, "docs/models.{end} is stale: UPDATE_GOLDENS=1 cargo test -p qkvault-cli --test cli families");
    }
}
