//! Any config gives a model or reasons that name a field, never a panic: each field of recorded configs in turn is
//! left out or has another value.

#![allow(clippy::unwrap_used, reason = "tests")]

use qkvault_graph::validate;
use qkvault_models::{Model, Phase};
use serde_json::{Map, Value, json};

fn configs() -> Vec<Map<String, Value>> {
    let zoo: Value = serde_json::from_str(include_str!("data/zoo.json")).unwrap();
    let variants: Value = serde_json::from_str(include_str!("data/variants.json")).unwrap();
    let parts = [&zoo["zoo"], &zoo["more"], &variants["variants"]];
    let all = parts.into_iter().flat_map(|part| part.as_object().unwrap().values());
    // Some of them: they repeat themselves.
    all.step_by(17).map(|family| family["config"].as_object().unwrap().clone()).collect()
}

fn values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(0),
        json!(-1),
        json!(1),
        json!(7),
        json!(1e30),
        json!(2.5),
        json!(i32::MAX),
        json!(u64::MAX),
        json!("text"),
        json!(true),
        json!(false),
        json!([]),
        json!([1, "full_attention", null]),
        json!({}),
        json!({ "num_attention_heads": 3, "layer_types": [["x"]] }),
    ]
}

/// Reads a config; what is planned must be sound, and what is refused must say where.
fn read(config: &Map<String, Value>, what: &str) {
    match Model::from_config(&Value::Object(config.clone()).to_string()) {
        Err(refusal) => {
            for reason in refusal.reasons() {
                assert!(!reason.field.is_empty() && !reason.needed.is_empty(), "{what}: {reason:?}");
            }
        }
        Ok(model) => {
            assert!(!(model.layers.is_empty() && model.skipped.is_empty()), "{what}: nothing, and no reason");
            for layer in &model.layers {
                assert_eq!(layer.count, layer.indices.len(), "{what}");
                assert!(layer.heads % layer.kv_heads == 0 && layer.scale.is_finite(), "{what}: {layer:?}");
            }
            for (layer, ranks) in model.layers.iter().zip([1, 2, 3]) {
                let _ = model.sharded(ranks, ranks - 1);
                if let Ok(attention) = layer.attention(Phase::Decode, 1, 64) {
                    // Sizes beyond what a description can have are refused by validation.
                    let _ = validate(attention);
                }
            }
            assert!(model.report()["layers"].is_array());
        }
    }
}

#[test]
fn a_field_that_is_absent_or_has_another_value_gives_a_sound_model_or_a_reason() {
    for config in configs() {
        let family = config.get("model_type").cloned().unwrap_or_default();
        for name in config.keys() {
            let mut without = config.clone();
            without.remove(name);
            read(&without, &format!("{family} without {name}"));
            for value in values() {
                let mut other = config.clone();
                let what = format!("{family} with {name} of {value}");
                other.insert(name.clone(), value);
                read(&other, &what);
            }
        }
    }
}

#[test]
fn a_field_of_a_nested_config_too() {
    for config in configs() {
        for (part, nested) in config.iter().filter_map(|(part, value)| Some((part, value.as_object()?))) {
            for name in nested.keys() {
                for value in values() {
                    let mut other = config.clone();
                    let what = format!("{:?} with {part}.{name} of {value}", config.get("model_type"));
                    other[part][name] = value;
                    read(&other, &what);
                }
            }
        }
    }
}

#[test]
fn text_that_is_cut_off_anywhere_is_refused() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/popular/gemma-3-27b.json"));
    let text = text.unwrap();
    let text = text.trim_end();
    for end in 0..text.len() {
        let refusal = Model::from_config(&text[..end]).expect_err("it is cut off");
        assert_eq!(refusal.reasons()[0].field, "config", "{end}");
    }
    for text in
        ["{\"a\":NaN", "[[[[", "\"\\ud800\"", "{\"model_type\":\"llama\",}", "{'a': 1}", "Infinity", "\u{feff}{}"]
    {
        assert!(Model::from_config(text).is_err(), "{text}");
    }
    let deep = format!("{}1{}", "{\"text_config\":".repeat(2000), "}".repeat(2000));
    assert!(Model::from_config(&deep).is_err(), "too deep to read");
}

/// A period of layers for more layers than any model has takes no memory.
#[test]
fn a_number_of_layers_that_no_model_has_is_refused() {
    for list in ["", r#","layer_types":["full_attention","full_attention"]"#, r#","block_types":["attention"]"#] {
        for family in ["llama", "doge", "new"] {
            let text = format!(
                r#"{{"model_type":"{family}","num_attention_heads":8,"hidden_size":512,"num_hidden_layers":2147483646{list}}}"#
            );
            let refusal = Model::from_config(&text).expect_err("too many layers");
            assert!(refusal.to_string().contains("2147483646"), "{refusal}");
        }
    }
}

/// A list of half a million words is refused by its length, not word by word; a longer one before it is read.
#[test]
fn a_list_of_millions_of_layers_is_refused_at_once() {
    let words = vec!["\"x\""; 500_000].join(",");
    for list in ["layer_types", "attn_type_list", "block_configs"] {
        let text = format!(
            r#"{{"model_type":"new","num_attention_heads":8,"hidden_size":512,"num_hidden_layers":4,"{list}":[{words}]}}"#
        );
        let refusal = Model::from_config(&text).expect_err("too many entries");
        assert!(refusal.to_string().contains("500000 entries"), "{refusal}");
    }
}
