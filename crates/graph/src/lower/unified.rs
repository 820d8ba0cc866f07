//! The forward as cuDNN's unified operation: both matrix products and the softmax are attributes of one descriptor, and what is done
//! to the scores between them is a graph of its own, here the operations between the two halves ([`Op::SdpaScores`],
//! [`Op::SdpaOutput`]).
//!
//! It differs from the other forms in what it declares: K is not transposed, and lengths of queries and keys hide the padding by
//! themselves, so that no operation does. Source: cudnn-frontend 1.23 and 1.32, `node/scaled_dot_product_flash_attention.h`, as facts.

use super::builder::Builder;
use super::mask::Masks;
use super::score::{self, Context};
use super::variants::{Variant, VariantSet};
use super::{Form, forward, limits, paged, softmax};
use crate::op::Op;
use crate::{Attention, CudnnVersion, DType, OpGraph, Origin, Outputs, Reason, Role, Target, Valid};

/// The first version with the operation.
///
/// cudnn-frontend uses it from 9.13.1 on.
pub const UNIFIED_OP: CudnnVersion = CudnnVersion::v9(13, 1);

/// The first version in which the operation takes what is done to scores, and the softmax's maximum and sum; its log-sum-exp it always could put out.
const SUBGRAPH: CudnnVersion = CudnnVersion::v9(21, 0);

/// The first version in which it takes lengths and tables of pages.
const LENGTHS: CudnnVersion = CudnnVersion::v9(15, 0);

/// The engine for one query. It writes kernels as engine 1 does for the other forms, which counts keys wrongly
/// (`docs/results/selftest.md`); under 9.27 on an H200 this one did too, in 4 of 5 such attentions.
const ONE_QUERY: i64 = 8;

/// Something that an attention may have, and the first version whose operation takes it.
struct Part {
    code: &'static str,
    field: &'static str,
    what: &'static str,
    /// `None`: no version does, or it is not written yet.
    since: Option<CudnnVersion>,
    has: fn(&Attention) -> bool,
}

/// Every part, with the version from which NVIDIA's front end gives it to the operation.
const PARTS: [Part; 9] = [
    Part {
        code: "form.unified",
        field: "policy.lab.form",
        what: "the unified operation",
        since: Some(UNIFIED_OP),
        has: |_| true,
    },
    Part {
        code: "form.unified-lengths",
        field: "mask.lengths",
        what: "lengths in the unified operation",
        since: Some(LENGTHS),
        has: |a| a.mask.lengths == crate::Lengths::PerSequence,
    },
    Part {
        code: "form.unified-outputs",
        field: "outputs",
        what: "Max or Sum_exp of the unified operation",
        since: Some(SUBGRAPH),
        has: |a| {
            let Outputs { stats: _, max, sum_exp } = a.outputs;
            max || sum_exp
        },
    },
    Part {
        code: "form.unified-band",
        field: "mask.band",
        what: "a causal mask or a window in the unified operation",
        since: Some(SUBGRAPH),
        has: |a| a.mask.band.is_some(),
    },
    Part {
        code: "form.unified-score-mod",
        field: "score_mod",
        what: "a score expression in the unified operation",
        since: Some(SUBGRAPH),
        has: |a| a.score_mod.is_some(),
    },
    Part {
        code: "form.unified-mask-mod",
        field: "mask.mask_mod",
        what: "a predicate in the unified operation",
        since: Some(SUBGRAPH),
        has: |a| a.mask.mask_mod.is_some(),
    },
    Part {
        code: "form.unified-sink",
        field: "sink",
        what: "a sink in the unified operation",
        since: Some(SUBGRAPH),
        has: |a| a.sink,
    },
    Part {
        code: "form.unified-dropout",
        field: "dropout",
        what: "dropout in the unified operation",
        since: None,
        has: |a| a.dropout.is_some(),
    },
    Part {
        code: "form.unified-paged",
        field: "k.storage",
        what: "paged keys and values in the unified operation",
        since: Some(LENGTHS),
        has: |a| a.k.is_paged(),
    },
];

/// Why the operation cannot be written for an attention and a target.
pub(super) fn reasons(a: &Attention, target: &Target) -> Vec<Reason> {
    let lacks = |part: &&Part| (part.has)(a) && part.since.is_none_or(|since| target.cudnn < since);
    let reason = |part: &Part| {
        let given = format!("{}, for cuDNN {}", part.what, target.cudnn);
        let needed = part.since.map_or("another form".to_owned(), |since| format!("cuDNN {since} or newer"));
        let mut reason = Reason::new(Origin::Rule, part.code, part.field, given, needed, "use the expanded form");
        reason.since = part.since;
        reason
    };
    // Seen with 9.27 on an H200, with lengths and without, whatever the expression was, and not with the other forms of the same.
    let wrong = a.score_mod.is_some() && target.cudnn >= SUBGRAPH;
    let wrong = wrong.then(|| {
        let given = format!("a score expression in the unified operation, for cuDNN {}", target.cudnn);
        let needed =
            "another form: of 361 such forwards on an H200 under 9.27, 11 were wrong and 23 read illegal addresses";
        Reason::new(Origin::Quirk, "form.unified-wrong", "policy.lab.form", given, needed, "use the expanded form")
    });
    PARTS.iter().filter(lacks).map(reason).chain(wrong).collect()
}

pub(super) fn lower(attention: &Valid, target: &Target, without: VariantSet) -> OpGraph {
    let a = attention.get();
    let mut g = Builder::new(target.cudnn, without);
    let (s_q, s_kv) = a.seq();
    let q = g.operand(Role::Q, &a.q);
    let [k, v] = [(Role::K, &a.k), (Role::V, &a.v)].map(|(role, t)| paged::as_it_lies(&mut g, role, t));
    let o = g.operand(Role::O, &a.o);
    let lengths = forward::lengths(&mut g, a);
    let (seq_q, seq_kv) = lengths.unzip();
    let scale = g.scalar(Role::Scale, DType::F32);
    let mut score = g.virtual_([a.batch(), a.q.heads(), s_q, s_kv], DType::F32);
    let table = paged::table(&mut g, Role::PageTableK, &a.k);
    g.push_op(Op::SdpaScores { q, k, table, seq_kv: table.and(seq_kv), scale, scores: score });
    let context = Context::new(score, lengths, [s_q, s_kv]);
    let masks = Masks::new(&mut g, a, Form::Unified, context.after(a.score_mod.as_ref()));
    if let Some(expression) = &a.score_mod {
        score = score::expression(&mut g, expression, &context);
    }
    let scores = masks.apply(&mut g, score);
    let softmax::ByRow { stats, max, sum_exp, sink } = softmax::by_row(&mut g, a);
    let table = paged::table(&mut g, Role::PageTableV, &a.v);
    g.push_op(Op::SdpaOutput { scores, v, table, seq_q, seq_kv, o, stats, max, sum_exp, sink });
    if g.follows(Variant::AvoidEngines) && limits::engine_1_is_wrong(a, g.cudnn()) {
        g.exclude_engines(&[ONE_QUERY]);
    }
    g.finish()
}
