//! A model as users and programs see it: one JSON object.

use qkvault_graph::expr::AlibiSlopes;
use serde_json::{Value, json};

use super::{Alibi, LayerKind, Model, Skipped};

impl Model {
    /// The model as JSON: `layers` has an object for each distinct attention, `skipped` the layers that are not
    /// planned, `notes` the assumptions.
    #[must_use]
    pub fn report(&self) -> Value {
        let layers: Vec<Value> = self.layers.iter().map(layer).collect();
        let skipped: Vec<Value> = self.skipped.iter().map(skipped).collect();
        json!({ "layers": layers, "skipped": skipped, "notes": self.notes })
    }
}

fn layer(layer: &LayerKind) -> Value {
    let LayerKind { label: _, kind, count, indices, heads, kv_heads, d_qk, d_v, .. } = layer;
    let LayerKind { dtype: _, prefix: _, causal, window, chunk, scale, softcap, sink, alibi, .. } = layer;
    json!({
        "kind": kind,
        "count": count,
        "indices": indices,
        "heads": heads,
        "kv_heads": kv_heads,
        "d_qk": d_qk,
        "d_v": d_v,
        "scale": scale,
        "causal": causal,
        "window": window,
        "chunk": chunk,
        "softcap": softcap,
        "sink": sink,
        "alibi": alibi.map(|alibi| slopes(alibi, *heads)),
    })
}

/// The slopes of a layer's heads, and what they follow from.
fn slopes(alibi: Alibi, heads: i64) -> Value {
    let Alibi { model_heads, first_head, bias_max } = alibi;
    let number = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
    let slopes = AlibiSlopes::for_heads(number(model_heads)).from_head(number(first_head)).with_bias_max(bias_max);
    let values = slopes.map(|slopes| slopes.values(heads)).unwrap_or_default();
    json!({ "model_heads": model_heads, "first_head": first_head, "bias_max": bias_max, "slopes": values })
}

fn skipped(skipped: &Skipped) -> Value {
    let Skipped { what, why, count, indices } = skipped;
    json!({ "what": what, "why": why, "count": count, "indices": indices })
}
