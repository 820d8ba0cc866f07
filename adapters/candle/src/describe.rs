//! The description of a call: options and tensors as an attention of qkvault.

use qkvault::graph::expr::{Axis, ExprErrors, Node};
use qkvault::graph::{self, Attention, BackwardOptions, Band, Corner, Order, Origins, ScoreExpr, Valid};

use crate::known::{Key, Shape};
use crate::tensor::Lie;
use crate::{Error, Options};

/// The description of a forward, or of the backward if the key has a gradient of the output.
pub(crate) fn valid(key: &Key, options: &Options) -> Result<Valid, Error> {
    let forward = forward(key, options)?;
    let Some(d_o) = &key.d_o else { return Ok(graph::validate(forward)?) };
    let of = forward.clone();
    let stored = |lie: &Lie, like: graph::Tensor| match key.shape {
        Shape::Varlen { batch, queries, .. } | Shape::Mixed { batch, queries, .. } => {
            lie.varlen(batch, queries, key.dtype)
        }
        Shape::Dense | Shape::Within | Shape::Paged { .. } => {
            graph::Tensor { storage: like.storage, ..lie.bshd(key.dtype) }
        }
    };
    // Gradients are new tensors without gaps, with the extents of what they are of.
    let options = BackwardOptions {
        d_o: Some(stored(d_o, of.o)),
        d_q: Some(dense(of.q)),
        d_k: Some(dense(of.k)),
        d_v: Some(dense(of.v)),
        d_sink: options.sink.as_ref().is_some_and(candle_core::Tensor::track_op),
        deterministic: options.deterministic,
        ..BackwardOptions::default()
    };
    Ok(graph::validate(forward.backward(options))?)
}

fn forward(key: &Key, options: &Options) -> Result<Attention, Error> {
    let Key { dtype, q, k, v, shape, stats, d_o: _ } = key;
    let score = options.score.as_ref().map(|score| score.build_score_mod().map_err(|e| wrong("score_mod", &e)));
    let mask = options.mask.as_ref().map(|mask| mask.build_mask_mod().map_err(|e| wrong("mask_mod", &e)));
    let (score, mask) = (score.transpose()?, mask.transpose()?);
    // The engine for one query computes expressions over the key's place wrongly: such queries are packed like those of
    // longer steps, in the same memory.
    let by_key = |expr: &ScoreExpr| expr.program().contains(Node::Index(Axis::Key));
    let packed = q.dims[1] == 1 && score.iter().chain(&mask).any(by_key);
    let [q, k, v] = match *shape {
        Shape::Dense | Shape::Within => [q.bshd(*dtype), k.bshd(*dtype), v.bshd(*dtype)],
        Shape::Varlen { batch, queries, keys } => {
            [q.varlen(batch, queries, *dtype), k.varlen(batch, keys, *dtype), v.varlen(batch, keys, *dtype)]
        }
        Shape::Paged { keys } => {
            let batch = q.dims[0];
            let q = if packed { q.without_rows().varlen(batch, 2, *dtype) } else { q.bshd(*dtype) };
            [q, k.paged(batch, keys, *dtype), v.paged(batch, keys, *dtype)]
        }
        Shape::Mixed { batch, queries, keys } => {
            // One row in each sequence is an engine of its own, which reads no packed rows.
            let q = q.varlen(batch, queries.max(2), *dtype);
            [q, k.paged(batch, keys, *dtype), v.paged(batch, keys, *dtype)]
        }
    };
    let o = dense(graph::Tensor { dims: [q.dims[0], q.dims[1], q.dims[2], v.dims[3]], ..q });
    let mut attention = Attention::forward(q, k, v, o);
    if *shape != Shape::Dense {
        attention = attention.with_lengths();
    }
    if options.left.is_some() || options.right.is_some() {
        let bound = |keys: usize| i64::try_from(keys).unwrap_or(i64::MAX);
        // Here a window counts the query's own key, in candle-flash-attn it does not.
        let left = options.left.map(|keys| bound(keys).saturating_add(1));
        attention = attention.with_band(Band { corner: Corner::BottomRight, left, right: options.right.map(bound) });
    }
    if options.origins.is_some() {
        attention = attention.with_origins(Origins::Any);
    }
    attention.score_mod = score;
    attention.mask.mask_mod = mask;
    attention.sink = options.sink.is_some();
    if let Some((probability, _)) = options.dropout {
        attention = attention.with_dropout(probability);
    }
    attention.outputs.stats = *stats;
    Ok(attention)
}

fn wrong(what: &str, errors: &ExprErrors) -> Error {
    Error::Tensor(format!("the {what} is no expression: {errors}"))
}

/// The same extents in new memory: (batch, sequence, head, head dim) without gaps, or (token, head, head dim).
fn dense(of: graph::Tensor) -> graph::Tensor {
    let [_, h, s, d] = of.dims;
    let strides = match of.storage {
        graph::Storage::Varlen { .. } => [s.saturating_mul(h * d), d, h * d, 1],
        _ => Order::Bshd.strides(of.dims),
    };
    let storage = match of.storage {
        graph::Storage::Paged { .. } => graph::Storage::Dense,
        own => own,
    };
    graph::Tensor { strides, storage, ..of }
}
