//! From a config to its model: finds the stacks of layers, reads each, and counts equal layers.

mod by_layer;
mod dims;
mod group;
mod lists;
mod masks;
mod names;
mod pattern;
mod row;
mod rows;
mod scale;
mod stack;
mod stacks;

use serde_json::{Map, Value};

use crate::codes;
use qkvault_graph::{DType, Refusal};

use super::fields::{ConfigFields, Faults, FieldNames};
use super::{Model, Skipped};
use stacks::Stack;

/// Reads the model of a config.
pub(crate) fn model(json: &Map<String, Value>) -> Result<Model, Refusal> {
    let family = family(json);
    let mut notes = Vec::new();
    let mut faults = Faults::default();
    let root = ConfigFields::new("", json, &family);
    let dtype = dtype(json, &root, &mut faults, &mut notes);
    let (stacks, missing) = stacks::find(json, &family);
    if stacks.is_empty() {
        faults.0.extend(nothing(&root));
        return Err(faults.done().err().unwrap_or_else(|| codes::CONFIG_FAMILY.reason("").into()));
    }
    let mut model =
        Model { family: family.clone(), layers: Vec::new(), skipped: Vec::new(), max_positions: None, notes };
    for (key, what) in missing {
        model.notes.push(format!("{key} is no config of a model ({what}): what it has is not planned"));
    }
    for (at, stack) in stacks.iter().enumerate() {
        let mut own = Faults::default();
        let read = stack::read(stack, dtype, &mut own, &mut model.notes);
        let incomplete = own.0.iter().all(|reason| reason.code == codes::CONFIG_MISSING);
        if !own.0.is_empty() && incomplete && at > 0 {
            // A model runs on what its main stack says; a part that says too little is named and left out.
            model.skipped.push(unread(stack, &own));
            continue;
        }
        faults.0.extend(own.0);
        group::add(&mut model, read);
    }
    faults.done()?;
    model.max_positions = positions(&stacks)?;
    model.notes.extend(unknown(&family, &stacks));
    if rows::TWO_WAYS.contains(&family.as_str()) {
        model.notes.push(format!(
            "{family}: tokens of an image or of a prompt that the caller marks see each other; the plans are causal"
        ));
    }
    Ok(model)
}

/// A note for a family that is read by its fields alone, or as another.
fn unknown(family: &str, stacks: &[Stack<'_>]) -> Option<String> {
    let main = stacks.first()?;
    let read = if main.causal { "a causal decoder" } else { "attention where all tokens see each other" };
    if !stacks.iter().any(|stack| stack.fields.known.is_some() || stack.row.is_some()) {
        let given = match family {
            "" => "the config has no model_type".to_owned(),
            family => format!("model_type '{family}' is not known"),
        };
        return Some(format!("{given}: it is read by its fields alone, as {read}"));
    }
    let given = if family.is_empty() { "no model_type".to_owned() } else { format!("model_type '{family}'") };
    let other = main.path.is_empty() && main.family != family && main.by_architecture;
    other.then(|| format!("{given} is not known: it is read as {}, which its architectures name", main.family))
}

/// The family of a config: its `model_type`, or the class of a diffusers model.
fn family(json: &Map<String, Value>) -> String {
    let text = |key: &str| json.get(key).and_then(Value::as_str);
    text("_class_name").or_else(|| text("model_type")).unwrap_or_default().to_owned()
}

/// The reasons for a config without a stack of layers.
fn nothing(root: &ConfigFields<'_>) -> Vec<qkvault_graph::Reason> {
    let without = rows::for_family(&root.family).is_some_and(|row| row.no_attention);
    let lacks = |names: FieldNames<'static>| root.said(names).is_none().then(|| root.missing(names));
    let missing = [lacks(names::HEADS), lacks(names::LAYERS)].into_iter().flatten();
    if root.known.is_some() && !without {
        return missing.collect();
    }
    let needed =
        "a family with softmax attention such as llama, or num_attention_heads, hidden_size and num_hidden_layers";
    let given = match root.family.as_str() {
        "" => "absent".to_owned(),
        family if without => format!("'{family}', which has no softmax attention"),
        family => format!("'{family}'"),
    };
    let family = codes::CONFIG_FAMILY.reason(given).with_needed(needed);
    std::iter::once(family).chain(missing.filter(|_| !without)).collect()
}

fn unread(stack: &Stack<'_>, faults: &Faults) -> Skipped {
    let reasons: Vec<String> = faults.0.iter().map(|r| format!("{} {}: {}", r.field, r.given, r.needed)).collect();
    let what = if stack.path.is_empty() { stack.family.clone() } else { stack.path.trim_end_matches('.').to_owned() };
    Skipped { what, why: reasons.join("; "), count: 0, indices: Vec::new() }
}

fn positions(stacks: &[Stack<'_>]) -> Result<Option<i64>, Refusal> {
    let names = &["max_position_embeddings", "max_seq_len", "n_positions", "seq_length", "max_target_positions"];
    let Some(main) = stacks.first() else { return Ok(None) };
    let Some((_, value)) = main.fields.value(names) else { return Ok(None) };
    // Models without a table of positions say -1 or nothing.
    Ok(value.as_i64().filter(|&n| (1..=i64::from(i32::MAX)).contains(&n)))
}

/// The element type. If the config names none, or names float32, it is bf16, and `notes` gets a line about it.
fn dtype(json: &Map<String, Value>, root: &ConfigFields<'_>, faults: &mut Faults, notes: &mut Vec<String>) -> DType {
    let said = |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
    let nested = || {
        let parts = ["text_config", "language_config", "llm_config", "thinker_config"];
        parts
            .iter()
            .filter_map(|part| json.get(*part)?.as_object())
            .find_map(|map| said(map, "dtype").or_else(|| said(map, "torch_dtype")).map(|text| ("dtype", text)))
    };
    let named = said(json, "torch_dtype").map(|text| ("torch_dtype", text));
    let named = named.or_else(|| said(json, "dtype").map(|text| ("dtype", text))).or_else(nested);
    let Some((field, text)) = named.filter(|(_, text)| text != "auto") else {
        notes.push("the config names no dtype: bf16 is assumed".into());
        return DType::BF16;
    };
    match text.trim_start_matches("torch.").parse::<DType>() {
        Ok(DType::F32) => {
            notes.push("the config names float32, which cuDNN's attention does not support: bf16 is assumed".into());
            DType::BF16
        }
        Ok(dtype) if dtype.is_half() => dtype,
        Ok(DType::E4M3 | DType::E5M2) => {
            notes.push(format!("{field} is {text}, the type of weights: bf16 is assumed of attention"));
            DType::BF16
        }
        _ => {
            let needed = "bfloat16, float16 or float32";
            faults.0.push(root.reason(&codes::CONFIG_DTYPE, field, text, needed));
            DType::BF16
        }
    }
}
