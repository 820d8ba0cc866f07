//! Readers of arbitrary data, which fuzzing and the replay of its corpus call. Every reader of outside data must refuse
//! it or return a value that keeps the promises of its type.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Attention, Refusal, ScoreExpr, canonical_bytes, codec, text, validate};

/// Reads bytes as MessagePack and JSON of every stored or sent type, and as text. Returns the types that they are.
///
/// # Panics
///
/// If a value that was read changes when it is written and read again: the bug that fuzzing searches.
pub fn read_bytes(data: &[u8]) -> Vec<&'static str> {
    let mut read = Vec::new();
    let mut found = |name: &'static str, is: bool| read.extend(is.then_some(name));
    found("attention", read_as::<Attention>(data, attention));
    found("refusal", read_as::<Refusal>(data, |refusal| assert!(!refusal.reasons().is_empty())));
    found("expression", read_as::<ScoreExpr>(data, |_| {}));
    if let Ok(text) = std::str::from_utf8(data) {
        read_text(text);
    }
    read
}

/// Reads a text as an attention.
///
/// # Panics
///
/// If the attention does not print as a text of the same attention.
pub fn read_text(given: &str) {
    match text::parse(given) {
        Ok(a) => attention(&a),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Reads one type from both encodings; whether one of them has it.
///
/// # Panics
///
/// If a value that was read changes when it is written and read again.
pub fn read_as<T: Serialize + DeserializeOwned>(data: &[u8], check: impl Fn(&T)) -> bool {
    let mut is = false;
    if let Ok(value) = codec::decode::<T>(data) {
        check(&value);
        is = true;
        let written = codec::encode(&value);
        let again: T = codec::decode(&written).expect("the written value reads");
        assert_eq!(codec::encode(&again), written);
    }
    if let Ok(value) = serde_json::from_slice::<T>(data) {
        check(&value);
        is = true;
        if let Ok(written) = serde_json::to_string(&value) {
            // JSON has no form for some numbers, such as NaN, and writes null.
            if let Ok(again) = serde_json::from_str::<T>(&written) {
                assert_eq!(serde_json::to_string(&again).ok(), Some(written));
            }
        }
    }
    is
}

fn attention(a: &Attention) {
    let _ = a.to_string();
    let printed = text::print(a);
    let read = text::parse(&printed).expect("the printed text reads");
    assert_eq!(text::print(&read), printed);
    if let Ok(valid) = validate(a.clone()) {
        let again = validate(valid.get().clone()).expect("a valid attention stays valid");
        assert_eq!(canonical_bytes(&valid), canonical_bytes(&again));
    }
}
