//! The varlen form of an attention with documents, and every reason why it has none.

use super::{Documents, TILE};
use crate::expr::ScoreExpr;
use crate::expr::shift::Absolute;
use crate::registry::codes;
use crate::valid::Problems;
use crate::{Attention, BackwardOptions, Fp8, Gradients, Lengths, Mask, Pass, Storage, Tensor};

/// The attention over varlen documents; meaningless if problems were added.
pub(super) fn varlen(a: &Attention, documents: Documents, problems: &mut Problems) -> Attention {
    let Attention {
        q,
        k,
        v,
        o,
        mask,
        score_mod,
        score_mod_bprop,
        origins,
        sink,
        dropout,
        block_mask,
        outputs,
        padded_rows,
        invariant,
        draft_tree,
        fp8,
        pass,
    } = a;
    let Mask { band, lengths, mask_mod } = mask;
    bounds(a, documents, problems);
    let mask_mod = match mask_mod.as_ref().map(ScoreExpr::without_documents) {
        Some((true, rest)) => rest,
        Some((false, _)) | None => {
            let given = mask_mod.as_ref().map_or_else(|| "no predicate".to_owned(), ToString::to_string);
            problems.add(codes::DOCUMENTS_MASK.reason(given));
            None
        }
    };
    let own = score_mod_bprop.as_ref().map(|own| own.derivative.clone());
    for (expression, field) in [(score_mod, "score_mod"), (&own, "score_mod_bprop"), (&mask_mod, "mask.mask_mod")] {
        expression.iter().for_each(|e| relative(e, field, problems));
    }
    if origins.is_some() {
        problems.add(codes::DOCUMENTS_ORIGINS.reason("origins"));
    }
    if *lengths == Lengths::PerSequence {
        problems.add(codes::DOCUMENTS_LENGTHS.reason("per-sequence lengths"));
    }
    if let Some(dropout) = dropout {
        problems.add(codes::DOCUMENTS_DROPOUT.reason(format!("dropout of {}", dropout.probability)));
    }
    if *block_mask {
        problems.add(codes::DOCUMENTS_BLOCK_MASK.reason("a block mask"));
    }
    if *fp8 == Some(Fp8::Block) {
        let given = "microscaled formats, whose scales belong to blocks of rows";
        problems.add(codes::DOCUMENTS_FP8.reason(given));
    }
    let mut tensor = |t: &Tensor, name: &'static str| rows(t, name, documents, problems);
    let [q, k, v, o] = [(q, "q"), (k, "k"), (v, "v"), (o, "o")].map(|(t, name)| tensor(t, name));
    let forward = Attention {
        mask: Mask { band: *band, lengths: Lengths::PerSequence, mask_mod },
        score_mod: score_mod.clone(),
        score_mod_bprop: score_mod_bprop.clone(),
        sink: *sink,
        dropout: *dropout,
        block_mask: *block_mask,
        outputs: *outputs,
        padded_rows: *padded_rows,
        invariant: *invariant,
        draft_tree: *draft_tree,
        fp8: *fp8,
        ..Attention::forward(q, k, v, o)
    };
    match pass {
        Pass::Forward => forward,
        Pass::Backward(Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink, deterministic }) => {
            forward.backward(BackwardOptions {
                d_o: Some(tensor(d_o, "d_o")),
                d_o_half: d_o_half.as_ref().map(|t| tensor(t, "d_o_half")),
                d_q: Some(tensor(d_q, "d_q")),
                d_k: Some(tensor(d_k, "d_k")),
                d_v: Some(tensor(d_v, "d_v")),
                d_sink: *d_sink,
                deterministic: *deterministic,
            })
        }
    }
}

/// Checks that the rows can hold these documents.
fn bounds(a: &Attention, Documents { longest, most }: Documents, problems: &mut Problems) {
    let (s_q, s_kv) = a.seq();
    if s_q != s_kv {
        problems.add(codes::DOCUMENTS_SQUARE.reason(format!("{s_q} queries and {s_kv} keys")));
    }
    if !(1..=s_q).contains(&longest) {
        problems.add(
            codes::DOCUMENTS_LONGEST
                .reason(longest.to_string())
                .with_needed(format!("a document of 1 to {s_q} tokens: a row has {s_q}")),
        );
        return;
    }
    let tokens = a.batch().saturating_mul(s_q);
    let least = a.batch().saturating_mul((s_q - 1) / longest + 1);
    if !(least..=tokens).contains(&most) {
        problems.add(codes::DOCUMENTS_MOST.reason(most.to_string()).with_needed(format!(
            "{least} to {tokens} documents: {} rows of {s_q} tokens, none longer than {longest}",
            a.batch()
        )));
    }
}

/// Adds a problem for everything that an expression reads and a document does not have.
fn relative(expression: &ScoreExpr, field: &'static str, problems: &mut Problems) {
    for absolute in expression.absolutes() {
        let reason = match absolute {
            Absolute::Position => codes::DOCUMENTS_POSITION.reason(format!("an absolute position: {expression}")),
            Absolute::Batch => codes::DOCUMENTS_BATCH.reason("the index of the row"),
            Absolute::Length => codes::DOCUMENTS_LENGTH.reason("the length of the row"),
            Absolute::Tensor(id) => {
                let (name, dims) = (expression.tensor_name(id), expression.tensors()[id.at()].dims);
                codes::DOCUMENTS_TENSOR.reason(format!("@{name} of extents {dims:?}"))
            }
        };
        problems.add(reason.at(field));
    }
}

/// A tensor whose rows lie one after another, as the varlen tensor over the same memory.
fn rows(t: &Tensor, name: &'static str, Documents { longest, most }: Documents, problems: &mut Problems) -> Tensor {
    let Tensor { dims: [b, h, s, d], strides: [batch, head, row, head_dim], dtype, storage } = *t;
    let follow = b == 1 || s.checked_mul(row) == Some(batch);
    // With a single head, the head stride is irrelevant.
    if storage != Storage::Dense || !follow || (h > 1 && s > 1 && head > row) {
        problems.add(
            codes::DOCUMENTS_ROWS
                .reason(format!("{storage:?}, strides {:?} of dims {:?}", t.strides, t.dims))
                .at(format!("{name}.strides")),
        );
    }
    let longest = longest.clamp(1, i64::from(i32::MAX) - TILE).saturating_add(TILE - 1) / TILE * TILE;
    Tensor {
        dims: [most, h, longest, d],
        strides: [longest.saturating_mul(row), head, row, head_dim],
        dtype,
        storage: Storage::Varlen { tokens: b.saturating_mul(s) },
    }
}
