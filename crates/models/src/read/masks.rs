//! Which keys a layer of each sort sees.

use serde_json::Value;

use crate::codes;

use super::by_layer::{ByLayer, Fit, LayerAt};
use super::lists::LISTS;
use super::stacks::Stack;
use crate::AttentionKind;
use crate::defaults::KnownDefaults;
use crate::fields::{Faults, FieldNames, shown};

/// What a layer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// Attention over all keys that the role of the stack allows.
    Full,
    /// The same within a window.
    Sliding,
    /// The same within chunks.
    Chunked,
    /// Attention over the states of an encoder, instead of the layer's own.
    Cross,
    /// Attention over keys that the layer chooses: all of them while there are few.
    Sparse(String),
    /// Attention over keys of another kind, which cannot be described.
    Undescribed(String),
    /// No attention.
    None(String),
    /// No layer in particular.
    Other,
}

const WINDOW: FieldNames<'_> = &["sliding_window", "sliding_window_size", "attention_window_size", "window_size"];

/// The length of the window, counting the query's own key, or `None` if the config has none or switches it off. A list
/// has one for each layer; without a layer, this is the first of them.
pub(super) fn window(stack: &Stack<'_>, at: Option<LayerAt>, faults: &mut Faults) -> Option<i64> {
    let fields = &stack.fields;
    if unused(stack) || switched_off(stack, faults) {
        return None;
    }
    let wider = stack.row.map_or(0, |row| row.wider);
    // MiMo counts the keys before the query's own.
    let before = (fields.family == "mimo_v2_flash").then(|| fields.said(&["sliding_window_size"])).flatten();
    if let Some((name, value)) = before {
        return Some(faults.take(fields.whole(name, value, 1)).saturating_add(1));
    }
    // ModernBERT gives the length to both sides together.
    let both = fields.said(&["sliding_window"]).is_none().then(|| fields.value(&["local_attention"])).flatten();
    if let Some((name, value)) = both {
        let length = faults.take(fields.whole(name, value, 2));
        return Some(if stack.causal { length / 2 } else { length / 2 + 1 });
    }
    // Windows of images are squares of patches, each a sequence of its own.
    if stack.kind == AttentionKind::Vision {
        return None;
    }
    let (name, value) = fields.value(WINDOW)?;
    let (place, value) = match (value, at) {
        (Value::Array(list), Some(LayerAt { index, layers })) => {
            let list = ByLayer::fitting(fields, name, list, Some(layers), Fit::Period, faults)?;
            (format!("{name}[{index}]"), list.at(index))
        }
        (Value::Array(list), None) => (name.to_owned(), list.iter().find(|value| !is_none(value))?),
        (value, _) => (name.to_owned(), value),
    };
    if is_none(value) {
        return None;
    }
    let length = faults.take(fields.whole(&place, value, 1));
    both_sides(stack, name, length).map(|length| length + wider)
}

/// Whether the value of a window means that there is none: some configs write -1 or false.
fn is_none(value: &Value) -> bool {
    value.is_null() || value.as_bool() == Some(false) || value.as_i64().is_some_and(|length| length <= 0)
}

/// The sorts of a list of windows: a layer whose entry is null sees all keys. Mistral's params.json has such a list,
/// which is a period of the layers (vLLM's `transformers_utils/configs/mistral.py`, `_remap_mistral_sliding_window`).
pub(super) fn listed(stack: &Stack<'_>, count: Option<usize>, faults: &mut Faults) -> Option<Vec<Sort>> {
    let Some((name, Value::Array(list))) = stack.fields.value(WINDOW) else { return None };
    if unused(stack) || switched_off(stack, faults) || stack.kind == AttentionKind::Vision {
        return None;
    }
    let count = count?;
    let list = ByLayer::fitting(&stack.fields, name, list, Some(count), Fit::Period, faults);
    let sort = |value: &Value| if is_none(value) { Sort::Full } else { Sort::Sliding };
    Some(list.map_or(vec![Sort::Full; count], |list| list.each(count).map(sort).collect()))
}

/// The length that a list of windows gives a layer which sees all keys by another list.
pub(super) fn contradicts(stack: &Stack<'_>, at: LayerAt, faults: &mut Faults) -> Option<i64> {
    let listed = matches!(stack.fields.value(WINDOW), Some((_, Value::Array(_))));
    listed.then(|| window(stack, Some(at), faults)).flatten()
}

/// The window that the config gives: a length, or a list that has one.
fn said<'a>(stack: &Stack<'a>) -> Option<(&'static str, &'a Value)> {
    let length = |value: &Value| value.as_i64().is_some_and(|length| length > 0);
    let found = |value: &Value| length(value) || value.as_array().is_some_and(|list| list.iter().any(length));
    stack.fields.said(WINDOW).filter(|(_, value)| found(value))
}

/// Whether the config, or the default of its class, switches the window off.
pub(super) fn switched_off(stack: &Stack<'_>, faults: &mut Faults) -> bool {
    faults.take(stack.fields.flag(&["use_sliding_window"])) == Some(false)
}

/// What keeps a window that the config gives from every layer, for a user who expects it.
pub(super) fn not_used(stack: &Stack<'_>, layers: usize, faults: &mut Faults) -> Option<String> {
    if unused(stack) && said(stack).is_some() {
        return Some("the config has a sliding window, which the code of the family does not use".to_owned());
    }
    let (name, length) = said(stack).filter(|_| stack.kind != AttentionKind::Vision)?;
    let given = format!("{} {} is not used", stack.fields.at(name), shown(length));
    if switched_off(stack, faults) {
        let said = stack.fields.said(&["use_sliding_window"]).is_some();
        let default = if said { "" } else { ", the default of the family" };
        return Some(format!("{given}: use_sliding_window is false{default}"));
    }
    if let Some((list, _)) = stack.fields.said(LISTS) {
        return Some(format!("{given}: no layer of {list} slides"));
    }
    let first = stack.fields.value(&["max_window_layers"]).and_then(|(_, value)| value.as_i64());
    if let Some(first) = first.filter(|&first| usize::try_from(first).is_ok_and(|first| first >= layers)) {
        return Some(format!("{given}: only layers from max_window_layers ({first}) on slide, and there are {layers}"));
    }
    Some(format!("{given}: no layer slides by what the config and the code of the family say"))
}

/// Whether the class of a known family has no window, whatever the config says. Configs keep such fields of the models
/// that they were made from.
fn unused(stack: &Stack<'_>) -> bool {
    if stack.row.is_some_and(|row| row.no_window) {
        return true;
    }
    let fields = &stack.fields;
    let declared = |known: &KnownDefaults| {
        let names = WINDOW.iter().chain(&["local_attention"]);
        names.into_iter().any(|name| known.fields.contains_key(*name) || known.names.contains_key(*name))
    };
    fields.known.is_some_and(|known| !declared(known)) && !stack.row.is_some_and(|row| row.period.contains('s'))
}

/// A bidirectional window, as the keys to one side and the query's own.
fn both_sides(stack: &Stack<'_>, name: &str, length: i64) -> Option<i64> {
    if length == 0 {
        return None;
    }
    if stack.causal {
        return Some(length);
    }
    match stack.fields.family.as_str() {
        // transformers halves these, and counts the query's own key.
        "gemma3_text" => Some(length / 2 + 1),
        "gemma4_text" | "gemma4_unified_text" | "diffusion_gemma_text" => Some(length / 2 + 2),
        // The distance may be as large as the window.
        _ if name == "sliding_window" => Some(length + 1),
        _ => Some(length),
    }
}

/// The length of the chunks.
pub(super) fn chunk(stack: &Stack<'_>, faults: &mut Faults) -> Option<i64> {
    faults.take(stack.fields.int(&["attention_chunk_size", "chunk_size_attention"]))
}

/// The sort that a word of a list of layers names.
pub(super) fn word(stack: &Stack<'_>, name: &str, index: usize, value: &Value, faults: &mut Faults) -> Sort {
    let text = value.as_str().unwrap_or_default();
    match text.to_ascii_lowercase().as_str() {
        "attention" if stack.row.is_some_and(|row| row.attention_slides) => Sort::Sliding,
        "full_attention" | "full" | "global" | "global_attention" | "attention" | "hybrid" | "softmax" | "attn"
        | "self_attention" | "*" | "f" | "g" => Sort::Full,
        "sliding_attention"
        | "sliding_window"
        | "sliding_window_attention"
        | "sliding"
        | "local"
        | "swa"
        | "local_attention"
        | "window_attention"
        | "hybrid_sliding"
        | "local_sliding"
        | "l"
        | "s" => Sort::Sliding,
        "chunked_attention" | "chunked" | "chunk" | "local_chunked" => Sort::Chunked,
        "cross_attention" | "cross" => Sort::Cross,
        "indexed_attention" | "sparse_attention" | "minimax_m3_sparse" | "deepseek_sparse_attention" => {
            Sort::Sparse(text.to_owned())
        }
        "compressed_sparse_attention" | "heavily_compressed_attention" | "reference_sliding_attention" => {
            Sort::Undescribed(text.to_owned())
        }
        "linear_attention"
        | "mamba"
        | "mamba2"
        | "recurrent"
        | "conv"
        | "short_conv"
        | "moe"
        | "mlp"
        | "ssm"
        | "rwkv"
        | "gated_delta_net"
        | "gated_deltanet"
        | "kda"
        | "lightning_attention"
        | "linear"
        | "rglru"
        | "m"
        | "ffn"
        | "identity"
        | "no_op"
        | "skip"
        | "-"
        | "e"
        | "mamba1"
        | "lstm"
        | "mlstm"
        | "slstm" => Sort::None(text.to_owned()),
        _ => {
            let needed = "full_attention, sliding_attention, chunked_attention, cross_attention, or a layer without \
                          attention such as linear_attention, mamba, conv or moe";
            let place = format!("{name}[{index}]");
            faults.add(stack.fields.reason(&codes::CONFIG_FIELD, &place, shown(value), needed));
            Sort::Full
        }
    }
}
