//! Extracts the compiled kernels from a plan.

use serde_json::Value;

/// The first characters of an ELF file in base64.
const ELF: &str = "f0VMR";

/// Every compiled kernel in a plan's bytes, as its base64 text, in order of appearance.
///
/// # Panics
///
/// Panics if the bytes are not JSON.
#[must_use]
pub fn cubins(blob: &[u8]) -> Vec<String> {
    let plan: Value = serde_json::from_slice(blob).unwrap_or_else(|e| panic!("a plan is JSON: {e}"));
    let mut found = Vec::new();
    collect(&plan, &mut found);
    found
}

fn collect(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text.starts_with(ELF) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, found)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
