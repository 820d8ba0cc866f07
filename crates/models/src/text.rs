//! The text of a config as a JSON object.

mod count;

use serde_json::{Map, Value};

use crate::codes;
use qkvault_graph::Refusal;

pub(crate) use count::Most;

/// The largest config that is read, in bytes. Published ones have less than a tenth of it.
pub const LARGEST_CONFIG: u64 = 16 << 20;

/// Most values of a config. Published ones have a tenth of them, and a few objects for each layer.
const MOST: Most = Most { values: 1 << 19, objects: 1 << 16 };

const NEEDED: &str = "a JSON object with a model_type";

/// Reads JSON text.
pub(crate) fn object(text: &str) -> Result<Map<String, Value>, Refusal> {
    if text.len() as u64 > LARGEST_CONFIG {
        return Err(too_large(text.len() as u64));
    }
    MOST.check_json(text)?;
    let refused = |given: String| codes::CONFIG_JSON.reason(given).with_needed(NEEDED);
    let text = text.trim_start_matches('\u{feff}');
    let parsed = serde_json::from_str(text).or_else(|error| match without_infinities(text) {
        Some(text) => serde_json::from_str(&text),
        None => Err(error),
    });
    match parsed {
        Ok(Value::Object(map)) => Ok(map),
        Ok(Value::Array(_)) => Err(refused("an array".to_owned()).into()),
        Ok(Value::String(_)) => Err(refused("a string".to_owned()).into()),
        Ok(_) => Err(refused("a bare value".to_owned()).into()),
        Err(error) if is_text_form(text) => {
            let fix = "give a description in the text form to `--text`, and a config.json to `--model`";
            Err(refused(format!("a description in the text form: {error}")).with_fix(fix).into())
        }
        Err(error) if is_comment(text, &error) => {
            let fix = "remove the comments (// and /* */), which JSON does not have";
            Err(refused(format!("a comment: {error}")).with_fix(fix).into())
        }
        Err(error) if text.trim().is_empty() => Err(refused(format!("no text: {error}")).into()),
        Err(error) => Err(refused(error.to_string()).into()),
    }
}

/// The refusal for a config of too many bytes.
pub(crate) fn too_large(bytes: u64) -> Refusal {
    let needed = format!("at most {LARGEST_CONFIG} bytes");
    codes::CONFIG_SIZE.reason(format!("{bytes} bytes")).with_needed(needed).into()
}

/// Whether the text is an attention in the text form, of which Q is the field that each has.
fn is_text_form(text: &str) -> bool {
    !text.trim_start().starts_with(['{', '[']) && text.lines().any(|line| line.trim_start().starts_with("q:"))
}

/// Whether the text stops being JSON where a comment begins.
fn is_comment(text: &str, error: &serde_json::Error) -> bool {
    let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
    let from = line.char_indices().nth(error.column().saturating_sub(1)).map_or(line, |(at, _)| &line[at..]);
    let (from, line) = (from.trim_start(), line.trim_start());
    [from, line].iter().any(|text| text.starts_with("//") || text.starts_with("/*") || text.starts_with('#'))
}

/// The text with `null` for `NaN` and `Infinity`, which Python writes and JSON does not have; `None` without any.
fn without_infinities(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut escaped, mut changed) = (false, false, false);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let word = ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| !in_string && rest.starts_with(word));
        if let Some(word) = word {
            out.push_str("null");
            rest = &rest[word.len()..];
            changed = true;
            continue;
        }
        in_string ^= c == '"' && !escaped;
        escaped = in_string && c == '\\' && !escaped;
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    changed.then_some(out)
}
