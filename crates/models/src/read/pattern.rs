//! Which sort each layer of a stack is: a list in the config, a rule in the config, or the family's own period.

use serde_json::Value;

use crate::codes;

use super::by_layer::{ByLayer, Fit};
use super::lists;
use super::masks::{self, Sort};
use super::names::{HEADS, HEADS_BY_LAYER, KV_HEADS, KV_HEADS_BY_LAYER};
use super::row::{self, FamilyRow, Windows};
use super::stacks::Stack;
use crate::fields::Faults;

/// The sorts of the layers. `layers` is their number, if the config says it.
pub(super) fn sorts(stack: &Stack<'_>, layers: Option<i64>, faults: &mut Faults, notes: &mut Vec<String>) -> Vec<Sort> {
    let count = match layers {
        None => None,
        Some(_) => match counted(stack, layers, faults) {
            None => return Vec::new(),
            count => count,
        },
    };
    if let Some(sorts) = lists::listed(stack, count, faults, notes) {
        return crossed(stack, headless(stack, sorts, faults), faults);
    }
    let Some(count) = counted(stack, layers, faults) else { return Vec::new() };
    let sorts = ruled(stack, count, faults).unwrap_or_else(|| {
        let window = masks::window(stack, None, faults).is_some();
        vec![if window { Sort::Sliding } else { Sort::Full }; count]
    });
    crossed(stack, headless(stack, sorts, faults), faults)
}

/// Layers that a list of heads gives none have no attention.
fn headless(stack: &Stack<'_>, mut sorts: Vec<Sort>, faults: &mut Faults) -> Vec<Sort> {
    let layers = Some(sorts.len());
    for names in [HEADS, KV_HEADS, HEADS_BY_LAYER, KV_HEADS_BY_LAYER] {
        let Some((name, Value::Array(list))) = stack.fields.value(names) else { continue };
        let Some(list) = ByLayer::fitting(&stack.fields, name, list, layers, Fit::Each, faults) else { continue };
        for (index, sort) in sorts.iter_mut().enumerate() {
            if list.at(index).as_i64() == Some(0) && !matches!(sort, Sort::None(_)) {
                *sort = Sort::None("linear_attention".to_owned());
            }
        }
    }
    sorts
}

/// The number of layers, or a reason that it is absent or too large.
pub(super) fn counted(stack: &Stack<'_>, layers: Option<i64>, faults: &mut Faults) -> Option<usize> {
    let name = super::names::LAYERS[0];
    let Some(count) = layers.and_then(|n| usize::try_from(n).ok()) else {
        if faults.0.is_empty() {
            faults.add(stack.fields.missing(super::names::LAYERS));
        }
        return None;
    };
    if count > MOST_LAYERS {
        let needed = format!("at most {MOST_LAYERS} layers");
        faults.add(stack.fields.reason(&codes::CONFIG_FIELD, name, count.to_string(), needed));
        return None;
    }
    Some(count)
}

/// More layers than any model has.
pub(super) const MOST_LAYERS: usize = 4096;

/// Layers that a rule of the config or of the family sorts.
fn ruled(stack: &Stack<'_>, count: usize, faults: &mut Faults) -> Option<Vec<Sort>> {
    let fields = &stack.fields;
    let row = stack.row.unwrap_or(row::usual());
    if row.dense_first {
        let first = faults.take(fields.int(&["first_k_dense_replace"])).and_then(|n| usize::try_from(n).ok());
        let first = first.unwrap_or(0).min(count);
        let before = faults.take(fields.int(&["prefix_dense_sliding_window_pattern"])).unwrap_or(1);
        let slides = masks::window(stack, None, faults).is_some();
        let other = faults.take(fields.int(&["sliding_window_pattern"])).unwrap_or(4);
        let sort = |i: usize, n: i64| if slides && (i as i64 + 1) % n != 0 { Sort::Sliding } else { Sort::Full };
        let dense = (0..first).map(|i| sort(i, before));
        return Some(dense.chain((0..count - first).map(|i| sort(i, other))).collect());
    }
    let linear = || Sort::None("linear_attention".to_owned());
    let every = |n: usize, at: usize, other: &dyn Fn() -> Sort| -> Vec<Sort> {
        (0..count).map(|i| if i % n == at % n { Sort::Full } else { other() }).collect()
    };
    let size = |n: i64| usize::try_from(n).unwrap_or(1);
    // Layers without attention between those that have it.
    if let Some(n) = faults.take(fields.int(&["attn_layer_period"])) {
        let at = fields.value(&["attn_layer_offset"]).and_then(|(_, v)| v.as_u64()).unwrap_or(0);
        return Some(every(size(n), at as usize, &|| Sort::None("mamba".to_owned())));
    }
    if let Some(n) = faults.take(fields.int(&["full_attention_interval", "layer_group_size"])) {
        return Some(every(size(n), size(n) - 1, &linear));
    }
    let chosen = [
        ("full_attn_idxs", 0, "conv"),
        ("attn_layer_indices", 0, "mamba"),
        ("hybrid_layer_ids", 0, "mamba"),
        ("linear_attn_config.full_attn_layers", 1, "linear_attention"),
    ];
    for (name, base, other) in chosen {
        if let Some((name, list)) = faults.take(fields.list(&[name])) {
            let places = lists::places(stack, name, list, base, count, faults);
            let sort = |i| if places.contains(&i) { Sort::Full } else { Sort::None(other.to_owned()) };
            return Some((0..count).map(sort).collect());
        }
    }
    // Windows and chunks.
    if let Some((name, list)) = faults.take(fields.list(&["local_layer_ids"])) {
        let places = lists::places(stack, name, list, 0, count, faults);
        return Some((0..count).map(|i| if places.contains(&i) { Sort::Sliding } else { Sort::Full }).collect());
    }
    let chunks = masks::chunk(stack, faults).is_some();
    if let Some((name, list)) =
        faults.take(fields.list(&["no_rope_layers"])).filter(|(_, list)| chunks && !list.is_empty())
    {
        let sort = |v: &Value| if v.as_i64() == Some(0) { Sort::Full } else { Sort::Chunked };
        let list = ByLayer::fitting(fields, name, list, Some(count), Fit::Each, faults);
        return Some(list.map_or(vec![Sort::Full; count], |list| list.each(count).map(sort).collect()));
    }
    if let Some(n) = faults.take(fields.int(&["no_rope_layer_interval"])).filter(|_| chunks) {
        return Some(every(size(n), size(n) - 1, &|| Sort::Chunked));
    }
    let window = masks::window(stack, None, faults).is_some();
    let sliding = || if window { Sort::Sliding } else { Sort::Full };
    match fields.value(lists::PATTERN) {
        // EXAONE writes a letter for each layer of a period.
        Some((name, Value::String(text))) => {
            let letters = lists::letters(text.chars());
            let period: Vec<Sort> =
                letters.iter().enumerate().map(|(at, v)| masks::word(stack, name, at, v, faults)).collect();
            if let Some(period) = ByLayer::fitting(fields, name, &period, Some(count), Fit::Cut, faults) {
                let mut sorts: Vec<Sort> = period.each(count).cloned().collect();
                if let Some(last) = sorts.last_mut() {
                    *last = Sort::Full;
                }
                return Some(sorts);
            }
        }
        Some((name, value)) if window => {
            let n = size(faults.take(fields.whole(name, value, 1)).max(1));
            let at = if row.global_first { 0 } else { n - 1 };
            return Some(with_ends(every(n, at, &sliding), row));
        }
        _ => {}
    }
    if let Some(n) = faults.take(fields.int(&["global_attn_every_n_layers"])) {
        let at = if row.global_first { 0 } else { size(n) - 1 };
        return Some(every(size(n), at, &sliding));
    }
    let most =
        fields.value(&["max_window_layers"]).map(|(name, value)| size(faults.take(fields.whole(name, value, 0))));
    let slides = |which: &dyn Fn(usize) -> bool| {
        Some((0..count).map(|i| if which(i) { Sort::Sliding } else { Sort::Full }).collect())
    };
    match (row.windows, most) {
        (Windows::Fields, Some(first)) if window => return slides(&|i| i >= first),
        (Windows::All, _) if window => return slides(&|_| true),
        (Windows::EarlyEven, Some(first)) if window => return slides(&|i| i % 2 == 0 && i < first),
        (Windows::NoRope, _) if window => {
            let every = faults.take(fields.int(&["no_rope_layer_interval"])).map_or(4, size);
            let list = faults.take(fields.list(&["no_rope_layers"])).filter(|(_, list)| !list.is_empty());
            let list =
                list.and_then(|(name, list)| ByLayer::fitting(fields, name, list, Some(count), Fit::Each, faults));
            let without = |i: usize| list.as_ref().map(|list| list.at(i).as_i64() == Some(0));
            return slides(&|i| without(i).unwrap_or((i + 1) % every == 0));
        }
        _ => {}
    }
    if row.period.is_empty() {
        return None;
    }
    let letters: Vec<char> = row.period.chars().collect();
    let sort = |letter: char| match letter {
        's' => sliding(),
        'c' if chunks => Sort::Chunked,
        'm' => linear(),
        'v' => Sort::None("conv".to_owned()),
        'i' => Sort::Sparse("indexed_attention".to_owned()),
        _ => Sort::Full,
    };
    let place = |i: usize| if row.from_end { count - 1 - i } else { i };
    let sorts = (0..count).map(|i| sort(letters[place(i) % letters.len()])).collect();
    Some(with_ends(sorts, row))
}

/// The first and last layers that the family's code fixes.
fn with_ends(mut sorts: Vec<Sort>, row: &FamilyRow) -> Vec<Sort> {
    for (sort, letter) in sorts.iter_mut().zip(row.first.chars()) {
        *sort = match letter {
            'v' => Sort::None("conv".to_owned()),
            'm' => Sort::None("linear_attention".to_owned()),
            _ => Sort::Full,
        };
    }
    if let (true, Some(last)) = (row.last_full, sorts.last_mut()) {
        *last = Sort::Full;
    }
    sorts
}

/// Layers that the config says attend to the states of an encoder instead.
fn crossed(stack: &Stack<'_>, mut sorts: Vec<Sort>, faults: &mut Faults) -> Vec<Sort> {
    if let Some((name, list)) = faults.take(stack.fields.list(&["cross_attention_layers"])) {
        for place in lists::places(stack, name, list, 0, sorts.len(), faults) {
            sorts[place] = Sort::Cross;
        }
    }
    sorts
}
