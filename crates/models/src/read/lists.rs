//! Layers that a list in the config sorts.

use serde_json::Value;

use crate::codes;

use super::by_layer::{ByLayer, Fit};
use super::masks::{self, Sort};
use super::pattern::MOST_LAYERS;
use super::stacks::Stack;
use crate::fields::{Faults, FieldNames, shown};

/// Lists with a word for each layer.
pub(super) const LISTS: FieldNames<'_> =
    &["layer_types", "layers_block_type", "block_types", "attention_layers", "attn_layer_types", "layer_block_types"];

/// Which layers have the window: a period, or true or false for each layer.
pub(super) const PATTERN: FieldNames<'_> = &["sliding_window_pattern", "_sliding_window_pattern"];

/// Whether a list may be shorter than the layers, because it is a period.
const PERIODS: FieldNames<'_> = &["block_types"];

/// The longest list that may be one period of the layers.
const LONGEST_PERIOD: usize = 8;

/// The sorts of the layers that a list of the config gives, if it has one.
pub(super) fn listed(
    stack: &Stack<'_>,
    count: Option<usize>,
    faults: &mut Faults,
    notes: &mut Vec<String>,
) -> Option<Vec<Sort>> {
    let fields = &stack.fields;
    if let Some(text) = fields.text(&["hybrid_override_pattern"]) {
        let words = letters(text.chars().filter(|c| *c != '|'));
        return words_of(stack, "hybrid_override_pattern", &words, count, faults, notes);
    }
    // Models found by architecture search: some blocks have no attention, or something linear instead.
    if let Some((name, list)) = faults.take(fields.list(&["block_configs"])) {
        let without = |block: &Value| {
            let flag = |name| block.get("attention").and_then(|a| a.get(name)).and_then(Value::as_bool) == Some(true);
            flag("no_op") || flag("replace_with_linear")
        };
        let words: Vec<Value> = list.iter().map(|b| Value::from(if without(b) { "no_op" } else { "full" })).collect();
        return words_of(stack, name, &words, count, faults, notes);
    }
    // GPT-Neo: [[["global", "local"], 12]].
    if let Some((name, Value::Array(groups))) = fields.value(&["attention_types"]) {
        let mut words = Vec::new();
        for group in groups {
            let (period, times) = (group.get(0).and_then(Value::as_array), group.get(1).and_then(Value::as_u64));
            match (period, times) {
                (Some(period), Some(times)) if fits(words.len(), period.len(), times) => {
                    (0..times).for_each(|_| words.extend(period.iter().cloned()));
                }
                _ => {
                    let needed = format!(
                        "pairs of a period and how often it repeats, such as [[\"global\", \"local\"], 12], for at most \
                         {MOST_LAYERS} layers in all"
                    );
                    faults.add(fields.reason(&codes::CONFIG_FIELD, name, shown(group), needed));
                }
            }
        }
        return words_of(stack, name, &words, count, faults, notes);
    }
    for (name, ones) in [("attn_type_list", ("full", "linear")), ("hybrid_layer_pattern", ("sliding", "full"))] {
        if let Some((_, list)) = faults.take(fields.list(&[name])) {
            let word = |v: &Value| Value::from(if v.as_i64() == Some(0) { ones.1 } else { ones.0 });
            let words: Vec<Value> = list.iter().map(word).collect();
            return words_of(stack, name, &words, count, faults, notes);
        }
    }
    if let Some((name, Value::Array(list))) = fields.value(PATTERN) {
        return flagged(stack, name, list, count, faults);
    }
    let Some((name, list)) = faults.take(fields.list(LISTS)) else {
        return masks::listed(stack, count, faults);
    };
    // Convolutional networks list kinds of blocks under the same name.
    if list.iter().any(|word| word.as_str() == Some("bottleneck")) {
        return None;
    }
    words_of(stack, name, list, count, faults, notes)
}

/// The sorts of a list that says of each layer whether it has the window, as GGUF files do.
fn flagged(
    stack: &Stack<'_>,
    name: &str,
    list: &[Value],
    count: Option<usize>,
    faults: &mut Faults,
) -> Option<Vec<Sort>> {
    let layers = count.unwrap_or(list.len());
    let Some(flags) = ByLayer::fitting(&stack.fields, name, list, count, Fit::Each, faults) else {
        return Some(vec![Sort::Full; layers]);
    };
    let sort = |(at, flag): (usize, &Value)| match flag {
        Value::Bool(slides) => Some(*slides),
        flag => {
            let place = format!("{name}[{at}]");
            let needed = "true for a layer with the window, false for one without";
            let slides = flag.as_i64().filter(|n| (0..=1).contains(n)).map(|n| n == 1);
            if slides.is_none() {
                faults.add(stack.fields.reason(&codes::CONFIG_FIELD, &place, shown(flag), needed));
            }
            slides
        }
    };
    let slides = flags.each(layers).enumerate().map(sort);
    Some(slides.map(|slides| if slides == Some(true) { Sort::Sliding } else { Sort::Full }).collect())
}

/// Whether a period still fits the layers that a model may have, as often as it repeats.
fn fits(before: usize, period: usize, times: u64) -> bool {
    let all = usize::try_from(times).ok().and_then(|times| period.checked_mul(times)?.checked_add(before));
    all.is_some_and(|all| all <= MOST_LAYERS)
}

/// Letters of a text as a list of words: one more than a model has layers, if there are as many.
pub(super) fn letters(text: impl Iterator<Item = char>) -> Vec<Value> {
    text.take(MOST_LAYERS + 1).map(|c| Value::String(c.to_string())).collect()
}

/// The sorts that a list of words names. A list that is one period is repeated.
fn words_of(
    stack: &Stack<'_>,
    name: &str,
    words: &[Value],
    count: Option<usize>,
    faults: &mut Faults,
    notes: &mut Vec<String>,
) -> Option<Vec<Sort>> {
    let fit = match name {
        // Heads are in the same list, so that a period would be one of heads too.
        "block_configs" => Fit::Each,
        name if PERIODS.contains(&name) => Fit::Cut,
        _ if words.len() <= LONGEST_PERIOD => Fit::Period,
        _ => Fit::Each,
    };
    if ByLayer::fitting(&stack.fields, name, words, count, fit, faults).is_none() {
        return Some(vec![Sort::Full; count.unwrap_or(0)]);
    }
    let sorts: Vec<Sort> = words.iter().enumerate().map(|(at, w)| masks::word(stack, name, at, w, faults)).collect();
    let count = count.unwrap_or(sorts.len());
    if sorts.len() != count && fit == Fit::Period {
        let (at, words) = (stack.fields.at(name), sorts.len());
        notes.push(format!("{at} has {words} entries for {count} layers: it is read as a period that repeats"));
    }
    Some(sorts.into_iter().cycle().take(count).collect())
}

/// The places that a list names, each within the layers.
pub(super) fn places(
    stack: &Stack<'_>,
    name: &str,
    list: &[Value],
    base: i64,
    count: usize,
    faults: &mut Faults,
) -> Vec<usize> {
    let fields = &stack.fields;
    let mut found = Vec::new();
    if list.len() > MOST_LAYERS {
        let needed = format!("at most {MOST_LAYERS} places of layers");
        faults.add(fields.reason(&codes::CONFIG_FIELD, name, format!("{} entries", list.len()), needed));
        return found;
    }
    for value in list {
        let place = value.as_i64().map(|n| n - base).and_then(|n| usize::try_from(n).ok()).filter(|&n| n < count);
        match place {
            Some(place) => found.push(place),
            None => {
                let needed = format!("places of layers from {base} to {}", count as i64 - 1 + base);
                faults.add(fields.reason(&codes::CONFIG_FIELD, name, shown(value), needed));
            }
        }
    }
    found
}
