//! Which keys a layer of each sort sees.

use serde_json::Value;

use qkvault_graph::registry::codes;

use super::stacks::Stack;
use crate::Kind;
use crate::defaults::Known;
use crate::fields::{Faults, Names, shown};

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

const WINDOW: Names<'_> = &["sliding_window", "sliding_window_size", "attention_window_size", "window_size"];

/// The length of the window, counting the query's own key, or `None` if the config has none or switches it off.
pub(super) fn window(stack: &Stack<'_>, faults: &mut Faults) -> Option<i64> {
    let fields = &stack.fields;
    if stack.row.is_some_and(|row| row.no_window) || faults.take(fields.flag(&["use_sliding_window"])) == Some(false) {
        return None;
    }
    if unused(stack) {
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
    if stack.kind == Kind::Vision {
        return None;
    }
    // A list has one for each layer; the first counts here.
    let (name, value) = match fields.value(WINDOW)? {
        (name, Value::Array(list)) => (name, list.first()?),
        found => found,
    };
    match value {
        // Some configs write -1 or false for no window.
        Value::Bool(false) => None,
        Value::Number(n) if n.as_i64().is_some_and(|n| n <= 0) => None,
        value => {
            let length = faults.take(fields.whole(name, value, 1));
            both_sides(stack, name, length).map(|length| length + wider)
        }
    }
}

/// Whether the config gives a window.
pub(super) fn said(stack: &Stack<'_>) -> bool {
    stack.fields.said(WINDOW).is_some_and(|(_, value)| value.as_i64().is_some_and(|length| length > 0))
}

/// Whether the class of a known family has no window, whatever the config says. Configs keep such fields of the models
/// that they were made from.
pub(super) fn unused(stack: &Stack<'_>) -> bool {
    let fields = &stack.fields;
    let declared = |known: &Known| {
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
