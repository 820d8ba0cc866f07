//! The forward as cuDNN's unified operation. Both matrix products and the softmax are attributes of one descriptor, and
//! the operations on the scores are a subgraph, which here is between the two halves ([`Op::SdpaScores`],
//! [`Op::SdpaOutput`]).
//!
//! Unlike in the other forms, K is not transposed, and lengths of queries and keys hide the padding without an
//! operation. Source: cudnn-frontend 1.23 and 1.32, `node/scaled_dot_product_flash_attention.h`, as facts.

use super::builder::Builder;
use super::mask::Masks;
use super::score::{Context, Positions};
use super::variants::{Variant, VariantSet};
use super::{Form, forward, limits, lowest, paged, softmax};
use crate::op::Op;
use crate::{CudnnVersion, DType, OpGraph, Role, Target, Valid};

/// The first version with the operation.
///
/// cudnn-frontend uses it since 9.13.1.
pub const UNIFIED_OP: CudnnVersion = CudnnVersion::v9(13, 1);

/// The engine for one query. It generates kernels like engine 1 for the other forms, which counts keys wrongly
/// (`docs/results/selftest.md`); on an H200 with 9.27 it did so too, in 4 of 5 such attentions.
const ONE_QUERY: i64 = 8;

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
    let context = Context { positions: Positions::of(a), ..Context::new(score, lengths, [s_q, s_kv]) };
    let masks = Masks::new(&mut g, a, Form::Unified, context.after(a.score_mod.as_ref()));
    if let Some(expression) = &a.score_mod {
        score = lowest::modified(&mut g, expression, &context);
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
