//! The JSON of an attention: strict, with its format first, and readable by all later versions.

use qkvault_graph::expr::{AlibiSlopes, library, query, scalar, score};
use qkvault_graph::{
    ATTENTION_FORMAT, Attention, BackwardOptions, Band, Corner, DType, Tensor, Valid, codec, validate,
};
use serde_json::{Value, json};

fn plain() -> Attention {
    Attention::bshd(1, (8, 2), (64, 64), 32, DType::BF16).with_band(Band::CAUSAL)
}

/// Every field of a description, in three attentions.
fn all() -> [Attention; 3] {
    let slopes = AlibiSlopes::for_heads(16).from_head(8).with_bias_max(16.0).expect("finite");
    let modified =
        library::softcap(library::alibi_of(score(), 8, slopes), scalar("cap")).build_score_mod().expect("a score");
    let mut varlen = Tensor::thd(3, 8, 64, 32, 100, DType::BF16);
    varlen.strides[0] += 64;
    let kv = Tensor::thd(3, 2, 64, 32, 100, DType::BF16);
    let options = BackwardOptions { deterministic: true, d_sink: true, ..BackwardOptions::default() };
    let trained =
        Attention::forward(varlen, kv, kv, varlen).with_lengths().with_score_mod(modified).with_sink().with_stats();
    let pool = Tensor::paged_hnd(2, 2, 256, 32, 40, 16, DType::F16);
    let q = Tensor::bshd(2, 8, 1, 32, DType::F16);
    let served = Attention::forward(q, pool, pool, q).with_lengths().with_band(Band::window(Corner::BottomRight, 100));
    let keep = (query() % 7).ne(3).build_mask_mod().expect("a predicate");
    [trained.with_dropout(0.25).backward(options), served, plain().with_mask_mod(keep)]
}

fn key(a: Attention) -> String {
    validate(a).map(|valid: Valid| valid.key().to_string()).expect("sound")
}

fn read(json: &Value) -> Result<Attention, String> {
    serde_json::from_str(&json.to_string()).map_err(|e| e.to_string())
}

/// The qkvault of format 1 wrote these files. Do not write them again: add files beside them.
const FORMAT_1: &str = include_str!("goldens/attention-format-1.json");

#[test]
fn b7_json_of_format_1_is_read_with_the_same_meaning_and_key() {
    let stored: Vec<Value> = serde_json::from_str(FORMAT_1).expect("a list");
    assert_eq!(stored.len(), all().len());
    for (entry, a) in stored.iter().zip(all()) {
        let found = read(&entry["attention"]).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(found, a);
        assert_eq!(Some(key(found).as_str()), entry["key"].as_str());
        assert_eq!(serde_json::to_value(a).expect("writes"), entry["attention"], "what is written now");
    }
}

#[test]
fn b7_the_format_comes_first_and_other_formats_are_refused() {
    assert_eq!(ATTENTION_FORMAT, 1);
    let text = serde_json::to_string(&plain()).expect("writes");
    assert!(text.starts_with(r#"{"qkvault":1,"q":{"#), "{text}");
    let told = |format: &str| {
        serde_json::from_str::<Attention>(&text.replacen("\"qkvault\":1,", format, 1)).expect_err("refused").to_string()
    };
    let newer = told("\"qkvault\":2,\"attention_chunk\":128,");
    assert!(newer.contains("a newer qkvault wrote this attention (format 2); this one reads format 1"), "{newer}");
    let none = told("");
    assert!(none.contains("the field `qkvault`") && none.contains("write `\"qkvault\": 1`"), "{none}");
    assert!(told("\"qkvault\":0,").contains("format 0 of attentions does not exist"));
    // MessagePack has it too, as its first entry.
    let mut bytes = codec::encode(&plain());
    assert_eq!(codec::decode::<Attention>(&bytes).expect("reads"), plain());
    assert_eq!(bytes[1], 1, "an array, and its first number");
    bytes[1] = 2;
    assert!(codec::decode::<Attention>(&bytes).expect_err("refused").to_string().contains("newer qkvault"));
}

/// Every object inside the JSON of an attention, by its path.
fn objects(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            found.push(path.clone());
            map.iter().for_each(|(name, inner)| objects(inner, format!("{path}/{name}"), found));
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, inner)| objects(inner, format!("{path}/{i}"), found))
        }
        _ => {}
    }
}

#[test]
fn b7_an_unknown_field_is_an_error_at_every_place() {
    for a in all() {
        let json = serde_json::to_value(&a).expect("writes");
        let mut places = Vec::new();
        objects(&json, String::new(), &mut places);
        assert!(places.len() > 8, "{places:?}");
        for place in places {
            let mut changed = json.clone();
            let object = changed.pointer_mut(&place).and_then(Value::as_object_mut).expect("an object");
            object.insert("bnad".into(), json!(128));
            let error = read(&changed).err().unwrap_or_else(|| panic!("'{place}' accepts an unknown field"));
            // An object for one of several forms has no second field, for all of them.
            assert!(error.contains("bnad") || error.contains("expected value"), "{place}: {error}");
            assert!(error.contains("line 1 column"), "{place}: {error}");
        }
    }
}

#[test]
fn b7_a_missing_field_is_an_error_at_every_place() {
    for a in all() {
        let json = serde_json::to_value(&a).expect("writes");
        let mut places = Vec::new();
        objects(&json, String::new(), &mut places);
        for place in places {
            let names: Vec<String> =
                json.pointer(&place).and_then(Value::as_object).expect("an object").keys().cloned().collect();
            // A tensor of an expression without slopes may leave them out.
            for name in names.into_iter().filter(|name| name != "alibi") {
                let mut changed = json.clone();
                changed.pointer_mut(&place).and_then(Value::as_object_mut).expect("an object").remove(&name);
                let error = read(&changed).err().unwrap_or_else(|| panic!("'{place}' does without '{name}'"));
                assert!(
                    error.contains(&name) || error.contains("expected value") || error.contains("single key"),
                    "{place}: {error}"
                );
            }
        }
    }
}

/// Found by the audit of 2026-11: each of these was read as another attention, without an error.
#[test]
fn b7_misspelt_fields_are_refused() {
    let band = serde_json::to_string(&plain()).expect("writes");
    for (from, to) in [
        ("\"score_mod\":", "\"score\":"),
        ("\"band\":", "\"bnad\":"),
        ("\"pass\":", "\"attention_chunk\":128,\"pass\":"),
    ] {
        let changed = band.replacen(from, to, 1);
        assert_ne!(changed, band);
        let error = serde_json::from_str::<Attention>(&changed).expect_err(to).to_string();
        assert!(error.contains("unknown field `"), "{error}");
    }
}
