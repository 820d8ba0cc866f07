//! Reads the layers of one stack.

use serde_json::{Map, Value};

use crate::codes;
use qkvault_graph::{DType, Reason};

use super::by_layer::{ByLayer, Fit, LayerAt};
use super::dims;
use super::group::{GroupWhat, Layer};
use super::masks::{self, Sort};
use super::pattern;
use super::row::{self, Sink};
use super::scale;
use super::stacks::Stack;
use crate::fields::Faults;
use crate::{Alibi, AttentionKind, LayerKind};

const PATCHES: &str = "some layers see windows of patches: each window is a sequence of its own";

/// The layers of a stack, each at its place; a layer can have several attentions.
pub(super) fn read(stack: &Stack<'_>, dtype: DType, faults: &mut Faults, notes: &mut Vec<String>) -> Vec<Layer> {
    let row = stack.row.unwrap_or(row::usual());
    if let Some(reason) = hierarchical(stack) {
        return vec![Layer::left_out(0, stack_name(stack), reason)];
    }
    let count = dims::layers(stack, faults);
    let of_encoder = if stack.kind == AttentionKind::Encoder { row.undescribed_encoder } else { "" };
    let sparse = stack.fields.text(&["attention_type"]) == Some("block_sparse") && stack.kind == AttentionKind::Encoder;
    let windows = stack.fields.value(&["sliding_windows"]).is_some();
    let undescribed = match row.undescribed {
        "" if windows => "each layer has a window of its own to each side",
        "" if sparse => "a query sees a window of blocks, global and random ones",
        "" => of_encoder,
        reason => reason,
    };
    if !undescribed.is_empty() {
        let count = pattern::counted(stack, count, faults).unwrap_or(0);
        return (0..count).map(|i| Layer::left_out(i, stack_name(stack), undescribed)).collect();
    }
    let sorts = pattern::sorts(stack, count, faults, notes);
    let layers = sorts.len();
    let window = masks::window(stack, None, faults);
    let chunk = masks::chunk(stack, faults);
    if sorts.contains(&Sort::Sliding) && stack.kind == AttentionKind::Vision {
        note(stack, PATCHES, notes);
    } else if sorts.contains(&Sort::Sliding) && window.is_none() {
        faults.add(no_window(stack));
    }
    if sorts.contains(&Sort::Chunked) && chunk.is_none() {
        faults.add(stack.fields.missing(&["attention_chunk_size"]));
    }
    note(stack, row.note, notes);
    let windows = &["fullatt_block_indexes", "global_attn_indexes", "window_block_indices"];
    if stack.kind == AttentionKind::Vision && stack.fields.value(windows).is_some() {
        note(stack, PATCHES, notes);
    }
    if row.position_bias {
        let text = "the model adds a bias to each head and pair of positions: bind it to the tensor `position_bias`";
        note(stack, text, notes);
    }
    keyed(stack, layers, faults);
    let reader = Reader { stack, dtype, layers, chunk };
    let mut found = Vec::new();
    for (index, sort) in sorts.iter().enumerate() {
        match sort {
            Sort::None(what) => found.push(Layer { index, what: GroupWhat::Nothing(what.clone()) }),
            Sort::Undescribed(what) => {
                let why = "its keys are sums of tokens that the layer chooses: attention does not describe them";
                found.push(Layer::left_out(index, what.clone(), why));
            }
            sort => {
                let kind = reader.layer(sort, index, faults, notes);
                if let Some(why) = reader.undescribed(&kind) {
                    found.push(Layer::left_out(index, stack_name(stack), why));
                    continue;
                }
                (0..row.per_layer).for_each(|_| found.push(Layer { index, what: GroupWhat::Attention(kind.clone()) }));
            }
        }
        if !row.beside.is_empty() {
            let what = format!("{} beside the attention", row.beside);
            found.push(Layer { index, what: GroupWhat::Nothing(what) });
        }
    }
    if stack.cross {
        let cross = sorts.iter().enumerate().filter(|(_, sort)| !matches!(sort, Sort::None(_) | Sort::Cross));
        for (index, _) in cross {
            let kind = reader.layer(&Sort::Cross, index, faults, notes);
            found.push(Layer { index, what: GroupWhat::Attention(kind) });
        }
    }
    let slides = |layer: &Layer| matches!(&layer.what, GroupWhat::Attention(kind) if kind.window.is_some());
    if let (false, Some(text)) = (found.iter().any(slides), masks::not_used(stack, layers, faults)) {
        note(stack, &text, notes);
    }
    found
}

/// The reason that a list of layers has sliding ones and there is no window for them.
fn no_window(stack: &Stack<'_>) -> Reason {
    let fields = &stack.fields;
    let off = fields.flag(&["use_sliding_window"]).ok().flatten() == Some(false);
    if off && fields.value(&["sliding_window"]).is_some() {
        let default = if fields.said(&["use_sliding_window"]).is_some() { "" } else { ", the default of the family" };
        let needed = "true: the layer list has sliding layers, which have no window otherwise";
        return fields.reason(&codes::CONFIG_FIELD, "use_sliding_window", format!("false{default}"), needed);
    }
    fields.missing(&["sliding_window"]).with_needed("the layer list has sliding layers: their window")
}

/// What the config says of one layer alone must be of a layer that is there.
fn keyed(stack: &Stack<'_>, layers: usize, faults: &mut Faults) {
    let Some(Value::Object(map)) = stack.fields.json.get("per_layer_config") else { return };
    for key in map.keys().filter(|key| key.parse::<usize>().map_or(true, |index| index >= layers)) {
        let needed = format!("the place of a layer, 0 to {}", layers.saturating_sub(1));
        faults.add(stack.fields.reason(&codes::CONFIG_FIELD, "per_layer_config", format!("'{key}'"), needed));
    }
}

struct Reader<'s, 'a> {
    stack: &'s Stack<'a>,
    dtype: DType,
    layers: usize,
    chunk: Option<i64>,
}

impl Reader<'_, '_> {
    /// The attention of one layer.
    fn layer(&self, sort: &Sort, index: usize, faults: &mut Faults, notes: &mut Vec<String>) -> LayerKind {
        let at = LayerAt { index, layers: self.layers };
        let stack = with_layer(self.stack, at, faults);
        let stack = stack.as_ref().unwrap_or(self.stack);
        let row = stack.row.unwrap_or(row::usual());
        let fields = &stack.fields;
        let dims = dims::read(stack, sort, at, faults);
        let sliding = *sort == Sort::Sliding;
        let cross = *sort == Sort::Cross;
        let window = sliding.then(|| masks::window(stack, Some(at), faults)).flatten();
        if sliding && window.is_none() && stack.kind != AttentionKind::Vision {
            faults.add(no_window(stack));
        }
        if let (Sort::Full, Some(length)) = (sort, masks::contradicts(stack, at, faults)) {
            let given = format!("{length}, and another list of layers has full attention there");
            let place = format!("sliding_window[{index}]");
            faults.add(fields.reason(&codes::CONFIG_FIELD, &place, given, "null, as the layer sees all keys"));
        }
        if let Sort::Sparse(what) = sort {
            let keys = fields.value(&["index_topk", "sparse_topk", "index_topk_blocks"]).and_then(|(_, v)| v.as_i64());
            let keys = keys.map_or(String::new(), |keys| format!(" (index_topk {keys})"));
            let text = "the layer chooses which keys a query sees; it is planned as causal attention over all keys, which \
                        it equals while it chooses all";
            note(stack, &format!("{what}{keys}: {text}"), notes);
        }
        let sink = match row.sink {
            Sink::All => true,
            Sink::Sliding => sliding,
            Sink::None => false,
        };
        let flag = |name: &str| fields.flag(&[name]).ok().flatten();
        let said = if sliding { "add_swa_attention_sink_bias" } else { "add_full_attention_sink_bias" };
        let sink = flag(said).or_else(|| flag("attention_sinks")).unwrap_or(sink);
        let softcap = faults.take(fields.float(&["attn_logit_softcapping", "attn_logit_softcap", "max_attn_value"]));
        let softcap = softcap.filter(|_| !row.no_softcap);
        let prefix = stack.causal && !cross && flag("attn_config.prefix_lm") == Some(true);
        if prefix {
            note(stack, "the tokens of a prefix see each other: bind their number to the tensor `prefix`", notes);
        }
        let kind = if cross { AttentionKind::Cross } else { stack.kind };
        let mut layer = LayerKind {
            label: String::new(),
            kind,
            count: 0,
            indices: Vec::new(),
            heads: dims.heads,
            kv_heads: dims.kv_heads,
            d_qk: dims.d_qk,
            d_v: dims.d_v,
            dtype: self.dtype,
            causal: stack.causal && !cross,
            window,
            prefix,
            chunk: self.chunk.filter(|_| *sort == Sort::Chunked),
            scale: scale::read(stack, &dims, index, faults),
            softcap,
            sink: sink && !cross,
            alibi: self.alibi(dims.heads, faults).filter(|_| !cross),
            position_bias: row.position_bias && !cross,
            latent: dims.latent.filter(|_| !cross),
        };
        layer.label = layer.name();
        layer
    }

    /// Why an attention cannot be described, if it cannot.
    fn undescribed(&self, layer: &LayerKind) -> Option<&'static str> {
        layer.alibi?;
        if self.stack.row.is_some_and(|row| row.alibi_scaled) {
            return Some(
                "its code multiplies ALiBi by the softmax scale, which the slopes of a description do not have",
            );
        }
        (!layer.causal).then_some("ALiBi with keys on both sides of a query, which a description does not have")
    }

    fn alibi(&self, heads: i64, faults: &mut Faults) -> Option<Alibi> {
        let fields = &self.stack.fields;
        let flag = |name: &str, faults: &mut Faults| faults.take(fields.flag(&[name]));
        let on =
            flag("attn_config.alibi", faults).or_else(|| flag("alibi", faults)).or_else(|| flag("use_alibi", faults));
        let named = fields.text(&["position_embedding_type"]).is_some_and(|text| text.eq_ignore_ascii_case("alibi"));
        // Baichuan's larger model has ALiBi, the smaller one rotary positions.
        let wide = fields.family == "baichuan" && fields.value(&["hidden_size"]).is_some_and(|(_, v)| v != 4096);
        let on = on.unwrap_or(named || wide || self.stack.row.is_some_and(|row| row.alibi));
        let names = &["attn_config.alibi_bias_max", "alibi_bias_max"];
        let bias_max = faults.take(fields.float(names)).unwrap_or(8.0);
        on.then_some(Alibi { model_heads: heads, first_head: 0, bias_max: bias_max as f32 })
    }
}

/// The stack with what its config says of one layer alone, if it says something.
fn with_layer<'a>(stack: &Stack<'a>, at: LayerAt, faults: &mut Faults) -> Option<Stack<'a>> {
    let LayerAt { index, layers } = at;
    let list = stack.fields.json.get("per_layer_config")?;
    let own: &Map<String, Value> = match list {
        Value::Object(map) => {
            let keys = [format!("{index}"), format!("{index:02}"), format!("{index:03}")];
            keys.iter().find_map(|key| map.get(key))?.as_object()?
        }
        Value::Array(list) => {
            let list = ByLayer::fitting(&stack.fields, "per_layer_config", list, Some(layers), Fit::Each, faults)?;
            list.at(index).as_object()?
        }
        _ => return None,
    };
    let mut fields = stack.fields.clone();
    fields.layer = Some(own);
    Some(Stack { path: stack.path.clone(), family: stack.family.clone(), fields, ..*stack })
}

/// Stages with windows of patches and other dims each.
fn hierarchical(stack: &Stack<'_>) -> Option<&'static str> {
    let list = |name: &str| stack.fields.value(&[name]).is_some_and(|(_, value)| value.is_array());
    let stages = list("depths") || list("num_heads") && !list("num_key_value_heads_per_layer") || list("embed_dims");
    stages.then_some("its stages differ in width and see windows of patches, which a config does not describe")
}

fn stack_name(stack: &Stack<'_>) -> String {
    let path = stack.path.trim_end_matches('.');
    match (path.is_empty(), stack.family.is_empty()) {
        (true, _) => stack.family.clone(),
        (false, true) => path.to_owned(),
        (false, false) => format!("{path} ({})", stack.family),
    }
}

/// Adds a note about a stack, once.
fn note(stack: &Stack<'_>, text: &str, notes: &mut Vec<String>) {
    if text.is_empty() {
        return;
    }
    let name = stack_name(stack);
    let text = if name.is_empty() { text.to_owned() } else { format!("{name}: {text}") };
    if !notes.contains(&text) {
        notes.push(text);
    }
}
