//! Heads and head dims of a layer.

use crate::codes;
use serde_json::Value;

use super::by_layer::{ByLayer, Fit, LayerAt};
use super::masks::Sort;
use super::names::{HEAD_DIM, HEADS, HEADS_BY_LAYER, KV_HEADS, KV_HEADS_BY_LAYER, LAYERS, ONE_VALUE, WIDTH, names};
use super::stacks::Stack;
use crate::Latent;
use crate::fields::{Faults, FieldNames};

/// Heads and head dims of one attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dims {
    pub(super) heads: i64,
    pub(super) kv_heads: i64,
    pub(super) d_qk: i64,
    pub(super) d_v: i64,
    pub(super) latent: Option<Latent>,
}

/// Whether the config says a size itself. Nested configs leave out what equals the default of their class; the config
/// of a whole model never does, so a size that it lacks is a fault.
fn required(stack: &Stack<'_>, names: FieldNames<'_>, faults: &mut Faults) -> bool {
    let fields = &stack.fields;
    let said = !stack.path.is_empty() || fields.said(names).is_some() || fields.value(names).is_none();
    if !said {
        faults.add(fields.missing(&names[USUAL_FROM..]));
    }
    said
}

/// The names of one side come first.
const USUAL_FROM: usize = 3;

/// The number of layers of a stack.
pub(super) fn layers(stack: &Stack<'_>, faults: &mut Faults) -> Option<i64> {
    let names = [stack.side.layers(), LAYERS].concat();
    let layers = required(stack, &names, faults).then(|| faults.take(stack.fields.int(&names))).flatten();
    // Diffusion transformers have layers of two kinds with one attention.
    let single = faults.take(stack.fields.int(&["num_single_layers"])).unwrap_or(0);
    layers.map(|layers| layers + single)
}

/// A whole number of a layer of this sort; a list has one for each layer.
fn int(stack: &Stack<'_>, sort: &Sort, at: LayerAt, usual: FieldNames<'static>, faults: &mut Faults) -> Option<i64> {
    let names = names(sort, stack.side, usual);
    match stack.fields.value(&names) {
        Some((name, Value::Array(list))) => {
            let list = ByLayer::fitting(&stack.fields, name, list, Some(at.layers), Fit::Each, faults)?;
            let LayerAt { index, .. } = at;
            Some(faults.take(stack.fields.whole(&format!("{name}[{index}]"), list.at(index), 1)).max(1))
        }
        _ => faults.take(stack.fields.int(&names)),
    }
}

/// The heads and head dims of a layer of this sort.
pub(super) fn read(stack: &Stack<'_>, sort: &Sort, at: LayerAt, faults: &mut Faults) -> Dims {
    let fields = &stack.fields;
    for names in ONE_VALUE {
        faults.take(fields.agree(names));
    }
    let usual = [stack.side.heads(), HEADS].concat();
    required(stack, &usual, faults);
    let Some(heads) = int(stack, sort, at, HEADS_BY_LAYER, faults).or_else(|| int(stack, sort, at, HEADS, faults))
    else {
        // A list that does not fit has a reason already.
        if fields.value(HEADS).is_none() {
            faults.add(fields.missing(HEADS));
        }
        return Dims { heads: 1, kv_heads: 1, d_qk: 1, d_v: 1, latent: None };
    };
    if let Some(dims) = latent(stack, sort, at, heads, faults) {
        return dims;
    }
    let kv_heads = kv_heads(stack, sort, at, heads, faults);
    let d_qk = head_dim(stack, sort, at, heads, faults);
    let d_v = int(stack, sort, at, &["v_head_dim"], faults).unwrap_or(d_qk);
    Dims { heads, kv_heads, d_qk, d_v, latent: None }
}

/// Key/value heads: as many as query heads, unless the config says otherwise.
fn kv_heads(stack: &Stack<'_>, sort: &Sort, at: LayerAt, heads: i64, faults: &mut Faults) -> i64 {
    let fields = &stack.fields;
    let flag = |name: &str| fields.flag(&[name]).ok().flatten();
    // Falcon has one of three rules.
    let grouped = flag("new_decoder_architecture") == Some(true);
    let one = flag("multi_query") == Some(true) && !grouped;
    if one && fields.said(&["num_key_value_heads"]).is_none() {
        return 1;
    }
    let asks = stack.row.is_some_and(|row| row.kv_heads_only_if_grouped);
    if asks && !grouped {
        return heads;
    }
    if let Some(group) = grouped_by_block(stack, at, faults) {
        return (heads / group.max(1)).max(1);
    }
    // ChatGLM gives a number of groups that counts only with this.
    if flag("multi_query_attention") == Some(false) {
        return heads;
    }
    let listed = int(stack, sort, at, KV_HEADS_BY_LAYER, faults);
    // Gemma 4's global layers have heads of their own only if keys are values too.
    let gated = *sort == Sort::Full && flag("attention_k_eq_v") == Some(false);
    let named = if gated { &Sort::Other } else { sort };
    let said = listed.or_else(|| int(stack, named, at, KV_HEADS, faults));
    let of_full = full_dims(stack, sort).map(|(_, kv)| kv).filter(|&kv| kv > 0);
    let of_full = of_full.filter(|_| fields.said(&["num_global_key_value_heads"]).is_none());
    let kv_heads = of_full.or(said).unwrap_or(heads);
    let kv_heads = match (sort, stack.row) {
        (Sort::Sliding, Some(row)) if fields.said(&["swa_num_key_value_heads"]).is_none() => kv_heads * row.sliding_kv,
        _ => kv_heads,
    };
    if heads % kv_heads != 0 {
        let needed = format!("a divisor of the {heads} query heads");
        faults.add(fields.reason(&codes::CONFIG_FIELD, KV_HEADS[0], kv_heads.to_string(), needed));
    }
    kv_heads
}

/// The query heads of each key/value head, which models found by architecture search say for each block.
fn grouped_by_block(stack: &Stack<'_>, at: LayerAt, faults: &mut Faults) -> Option<i64> {
    let (name, blocks) = ("block_configs", stack.fields.json.get("block_configs")?.as_array()?);
    let blocks = ByLayer::fitting(&stack.fields, name, blocks, Some(at.layers), Fit::Each, faults)?;
    blocks.at(at.index).get("attention")?.get("n_heads_in_group")?.as_i64()
}

/// What the family's code gives full layers, unless the config says something of each layer.
fn full_dims(stack: &Stack<'_>, sort: &Sort) -> Option<(i64, i64)> {
    let row = stack.row.filter(|_| *sort == Sort::Full && !stack.fields.json.contains_key("per_layer_config"))?;
    row.full_dims
}

/// The head dim: a field of the config, else the width of the model divided by the number of heads.
fn head_dim(stack: &Stack<'_>, sort: &Sort, at: LayerAt, heads: i64, faults: &mut Faults) -> i64 {
    let fields = &stack.fields;
    let full_dims = full_dims(stack, sort);
    if let (Some((d, _)), true) = (full_dims, fields.said(&["global_head_dim"]).is_none()) {
        return d;
    }
    if let Some(d) = int(stack, sort, at, HEAD_DIM, faults) {
        return d;
    }
    let names = names(sort, stack.side, WIDTH);
    let names = match stack.row {
        Some(row) if !row.width.is_empty() => vec![row.width],
        _ => names,
    };
    let Some((name, _)) = fields.value(&names) else {
        faults.add(fields.missing(&[HEAD_DIM[0], WIDTH[0]]));
        return 1;
    };
    let name = name.to_owned();
    let widths = stack.row.map_or(1, |row| row.widths);
    let width = faults.take(fields.int(&names)).unwrap_or(heads).saturating_mul(widths);
    // The width by the query heads of the config, not of this sort of layer.
    let usual = int(stack, &Sort::Other, at, HEADS, faults).unwrap_or(heads);
    if width % usual != 0 && !stack.row.is_some_and(|row| row.floors) {
        let given = format!("{width} over {usual} heads");
        faults.add(codes::CONFIG_HEAD_DIM.reason(given).at(fields.at(&name)));
    }
    (width / usual).max(1)
}

/// Multi-head latent attention: a prefill expands the heads, a decode reads the compressed cache.
fn latent(stack: &Stack<'_>, sort: &Sort, at: LayerAt, heads: i64, faults: &mut Faults) -> Option<Dims> {
    let rank = int(stack, sort, at, &["kv_lora_rank"], faults)?;
    // Without rotary positions, some write 0.
    let none = stack.fields.value(&["qk_rope_head_dim"]).is_some_and(|(_, value)| value.as_i64() == Some(0));
    let rope = if none { Some(0) } else { int(stack, sort, at, &["qk_rope_head_dim"], faults) };
    let nope = int(stack, sort, at, &["qk_nope_head_dim"], faults);
    let d_v = int(stack, sort, at, &["v_head_dim"], faults);
    let fields = &stack.fields;
    let need = |value: Option<i64>, name: &str, faults: &mut Faults| {
        value.unwrap_or_else(|| {
            faults.add(fields.missing(&[name]));
            1
        })
    };
    let rope = need(rope, "qk_rope_head_dim", faults);
    let nope = need(nope, "qk_nope_head_dim", faults);
    let d_v = match stack.row {
        Some(row) if row.v_from_width && d_v.is_none() => head_dim(stack, sort, at, heads, faults),
        _ => need(d_v, "v_head_dim", faults),
    };
    let latent = Latent { d_qk: rank + rope, d_v: rank };
    Some(Dims { heads, kv_heads: heads, d_qk: nope + rope, d_v, latent: Some(latent) })
}
