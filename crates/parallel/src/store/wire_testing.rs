//! The messages of the store as functions of bytes, for fuzzing (`dev/fuzz`).

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use super::wire::{Ask, StoreAnswer, read, write};

/// Reads bytes as a message of a rank and as one of the store. Returns what it is.
///
/// # Errors
///
/// Why it is none, in words.
///
/// # Panics
///
/// If a message that was read changes when it is written and read again.
pub fn store_message(bytes: &[u8]) -> Result<String, String> {
    let (ask, answer) = (one::<Ask>(bytes), one::<StoreAnswer>(bytes));
    match (ask, answer) {
        (Err(first), Err(second)) => Err(format!("{first}; {second}")),
        (ask, answer) => Ok(format!("{ask:?} {answer:?}")),
    }
}

fn one<T>(bytes: &[u8]) -> Result<T, String>
where
    T: Serialize + for<'de> Deserialize<'de> + PartialEq + Debug,
{
    let mut rest = bytes;
    let (head, value): (T, Vec<u8>) = read(&mut rest).map_err(|error| error.to_string())?;
    assert!(value.len() + rest.len() + 8 <= bytes.len(), "a value is as long as what arrived");
    let mut written = Vec::new();
    if let Err(error) = write(&mut written, &head, &value) {
        return Err(error.to_string());
    }
    if written.is_empty() {
        return Err("too long to be written".to_owned());
    }
    let again: (T, Vec<u8>) = read(&mut written.as_slice()).expect("a message that was written is read");
    assert_eq!(again, (head, value), "what was written reads the same");
    Ok(again.0)
}

/// Messages of every kind, with heads as JSON: of this version, and of others, which are refused.
#[must_use]
pub fn store_messages() -> Vec<Vec<u8>> {
    let heads = [
        r#"{"join":{"rank":1,"size":2,"version":"0.1.0"}}"#,
        r#"{"put":{"key":"digest/1"}}"#,
        r#"{"put":{"name":"digest/1","to":0}}"#,
        r#"{"take":{"key":"digest/0","from":0,"wait":30000}}"#,
        r#"{"take":{"name":"digest/0","from":0,"wait":30000}}"#,
        r#""check""#,
        r#"{"check":{"begun":7}}"#,
        r#"{"late":{"what":"the end of its exchanges","waited":5000,"begun":7}}"#,
        r#"{"fault":{"fault":{"late":{"ranks":[1],"waited":5000,"what":"digest"}}}}"#,
        r#"{"fault":{"fault":{"gone":{"rank":2,"how":"its connection has closed"}}}}"#,
        r#"{"fault":{"fault":{"differs":{"rank":3,"what":"a world of","theirs":"4","ours":"2"}}}}"#,
        r#""leave""#,
        r#""done""#,
        r#""bytes""#,
    ];
    let message = |head: &str| {
        let lengths = [head.len() as u32, 40].map(u32::to_le_bytes).concat();
        [&lengths[..], head.as_bytes(), &[7; 40]].concat()
    };
    heads.map(message).to_vec()
}
