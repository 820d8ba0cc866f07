//! Lists with an entry for each layer. Every such list, of any reader, is compared with the number of layers here.

use crate::codes;

use super::pattern::MOST_LAYERS;
use crate::fields::{ConfigFields, Faults};

/// A layer's place among those of its stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerAt {
    pub(super) index: usize,
    pub(super) layers: usize,
}

/// How many entries a list may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// One for each layer.
    Each,
    /// The same, or one period that repeats a whole number of times.
    Period,
    /// The same, or a period whose last repetition may be cut off.
    Cut,
}

/// A list that fits its layers.
#[derive(Debug)]
pub(super) struct ByLayer<'l, T> {
    list: &'l [T],
}

impl<'l, T> ByLayer<'l, T> {
    /// The list, or a fault with both numbers. Without a number of layers, the list says how many there are.
    pub(super) fn fitting(
        fields: &ConfigFields<'_>,
        name: &str,
        list: &'l [T],
        layers: Option<usize>,
        fit: Fit,
        faults: &mut Faults,
    ) -> Option<ByLayer<'l, T>> {
        let found = list.len();
        let fits = match (layers, fit) {
            _ if found == 0 => false,
            (None, _) => found <= MOST_LAYERS,
            (Some(layers), Fit::Each) => found == layers,
            (Some(layers), Fit::Period) => layers.is_multiple_of(found),
            (Some(layers), Fit::Cut) => found <= layers,
        };
        if fits {
            return Some(ByLayer { list });
        }
        let (given, needed) = match layers {
            Some(layers) => {
                let period = if fit == Fit::Each { "" } else { ", or one period of them" };
                let each = format!("one entry for each of the {layers} layers{period}");
                (format!("{found} entries for {layers} layers"), each)
            }
            None => (format!("{found} entries"), format!("one entry for each layer, 1 to {MOST_LAYERS}")),
        };
        faults.add(fields.reason(&codes::CONFIG_FIELD, name, given, needed));
        None
    }

    /// The entry of a layer.
    pub(super) fn at(&self, index: usize) -> &'l T {
        &self.list[index % self.list.len()]
    }

    /// The entries of so many layers, and their places.
    pub(super) fn each(&self, layers: usize) -> impl Iterator<Item = &'l T> {
        self.list.iter().cycle().take(layers)
    }
}
