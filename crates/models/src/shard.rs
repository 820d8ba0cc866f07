//! The part of a model that each of several GPUs computes (tensor parallelism).

use crate::codes;
use qkvault_graph::Refusal;

use super::{AttentionKind, LayerKind, Model};

impl Model {
    /// The layers of one of `ranks` GPUs that share the heads, as serving engines do: each has an equal part of the
    /// query heads and of the key/value heads, or one key/value head if there are fewer than GPUs. ALiBi's slopes are
    /// those of the rank's heads. An encoder of images or sound whose heads do not divide stays whole on every GPU.
    ///
    /// # Errors
    ///
    /// A reason for every kind of layer whose heads cannot be shared, or a rank that is not below `ranks`.
    pub fn sharded(&self, ranks: i64, rank: i64) -> Result<Model, Refusal> {
        if ranks < 1 || !(0..ranks).contains(&rank) {
            let needed = "a number of GPUs from 1 on, and a rank below it";
            return Err(codes::MODEL_SHARD.reason(format!("rank {rank} of {ranks}")).with_needed(needed).into());
        }
        let mut model = self.clone();
        if ranks == 1 {
            return Ok(model);
        }
        let decoder = self.layers.iter().any(|layer| layer.kind == AttentionKind::SelfAttention);
        let mut reasons = Vec::new();
        for layer in &mut model.layers {
            let side = decoder && matches!(layer.kind, AttentionKind::Encoder | AttentionKind::Vision);
            if side && layer.heads % ranks != 0 {
                let LayerKind { label, heads, .. } = &*layer;
                model.notes.push(format!("{label}: {heads} heads do not divide by {ranks}: every GPU has all of them"));
                continue;
            }
            match share(layer, ranks, rank) {
                Ok(notes) => notes.into_iter().for_each(|note| {
                    if !model.notes.contains(&note) {
                        model.notes.push(note);
                    }
                }),
                Err(refusal) => reasons.extend(Vec::from(refusal)),
            }
        }
        Refusal::from_reasons(reasons).map_or(Ok(model), Err)
    }
}

fn share(layer: &mut LayerKind, ranks: i64, rank: i64) -> Result<Vec<String>, Refusal> {
    let mut notes = Vec::new();
    let refused =
        |given: String, needed: String| -> Refusal { codes::MODEL_SHARD.reason(given).with_needed(needed).into() };
    let (heads, kv_heads) = (layer.heads, layer.kv_heads);
    if heads % ranks != 0 {
        let given = format!("{heads} query heads ({}) on {ranks} GPUs", layer.label);
        return Err(refused(given, format!("a number of GPUs that divides {heads}")));
    }
    if kv_heads % ranks == 0 {
        layer.kv_heads = kv_heads / ranks;
    } else if ranks % kv_heads == 0 {
        layer.kv_heads = 1;
        notes.push(format!("{}: each of {kv_heads} key/value heads is on {} GPUs", layer.label, ranks / kv_heads));
    } else {
        let given = format!("{kv_heads} key/value heads ({}) on {ranks} GPUs", layer.label);
        return Err(refused(given, format!("a number of GPUs that divides {kv_heads}, or that it divides")));
    }
    layer.heads = heads / ranks;
    let first = rank * layer.heads;
    if let Some(alibi) = &mut layer.alibi {
        alibi.first_head += first;
    }
    if layer.sink {
        let last = first + layer.heads - 1;
        notes.push(format!("{}: rank {rank} has the sinks of heads {first} to {last}", layer.label));
    }
    Ok(notes)
}
