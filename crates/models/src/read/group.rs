//! Counts equal layers.

use crate::{LayerKind, Model, Skipped};

/// One layer, or one attention of a layer that has several.
pub(super) struct Layer {
    /// Its place in the stack.
    pub(super) index: usize,
    pub(super) what: GroupWhat,
}

pub(super) enum GroupWhat {
    Attention(LayerKind),
    /// No attention, with the name of the layer.
    Nothing(String),
    /// Attention that cannot be described: its name, and why.
    LeftOut(String, String),
}

impl Layer {
    pub(super) fn left_out(index: usize, what: String, why: &str) -> Layer {
        Layer { index, what: GroupWhat::LeftOut(what, why.to_owned()) }
    }
}

/// Adds the layers of a stack to a model.
pub(super) fn add(model: &mut Model, layers: Vec<Layer>) {
    // Layers of other stacks have other places, so they are other kinds.
    let first = model.layers.len();
    let first_skipped = model.skipped.len();
    // The kinds as they are read, without count and places.
    let mut kinds: Vec<LayerKind> = Vec::new();
    for Layer { index, what } in layers {
        match what {
            GroupWhat::Attention(kind) => {
                let place = kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                    kinds.push(kind.clone());
                    model.layers.push(kind);
                    kinds.len() - 1
                });
                let known = &mut model.layers[first + place];
                known.count += 1;
                known.indices.push(index);
            }
            GroupWhat::Nothing(what) => {
                skip(model, first_skipped, index, what, "it has no softmax attention".to_owned())
            }
            GroupWhat::LeftOut(what, why) => skip(model, first_skipped, index, what, why),
        }
    }
}

fn skip(model: &mut Model, first: usize, index: usize, what: String, why: String) {
    match model.skipped[first..].iter_mut().find(|s| s.what == what && s.why == why) {
        Some(known) => {
            known.count += 1;
            known.indices.push(index);
        }
        None => model.skipped.push(Skipped { what, why, count: 1, indices: vec![index] }),
    }
}
