//! The forward as a composite graph: two matrix products with everything between them, in the order cuDNN's matcher knows.
//!
//! Source of the order: cudnn-frontend 1.23, `node/scaled_dot_product_flash_attention.h`, as facts.

use super::builder::Builder;
use super::score::Context;
use super::{Form, mask, score, softmax};
use crate::op::Pointwise;
use crate::{DType, Lengths, OpGraph, Order, Role, Tensor, Valid};

pub(super) fn lower(attention: &Valid, form: Form) -> OpGraph {
    let a = attention.get();
    let mut g = Builder::default();
    let (s_q, s_kv) = a.seq();
    let score_dims = [a.batch(), a.q.heads(), s_q, s_kv];

    let q = g.operand(Role::Q, &a.q);
    let k = g.transposed(Role::K, &a.k);
    let v = g.operand(Role::V, &a.v);
    let o = g.operand(Role::O, &a.o);
    let lengths = match a.mask.lengths {
        Lengths::Full => None,
        Lengths::PerSequence => {
            let t = Tensor::dense(Order::Bhsd, [a.batch(), 1, 1, 1], DType::I32);
            Some((g.operand(Role::SeqLenQ, &t), g.operand(Role::SeqLenKv, &t)))
        }
    };
    let (len_q, len_kv) = lengths.unzip();

    let scores = g.virtual_(score_dims, DType::F32);
    g.matmul([q, k, scores], [len_q, len_kv, None]);
    let scale = g.slot(Role::Scale, DType::F32);
    let mut score = g.binary(Pointwise::Mul, scores, scale);
    let mut context = Context { score, lengths, seq: [s_q, s_kv], first_slot: 0, first_tensor: 0 };
    if let Some(expression) = &a.score {
        score = score::expression(&mut g, expression, &context);
        context.first_slot = expression.slots().len() as u16;
        context.first_tensor = expression.tensors().len() as u16;
    }
    if let Some(predicate) = &a.mask.keep {
        context.score = score;
        let keep = score::expression(&mut g, predicate, &context);
        score = mask::hide(&mut g, keep, score);
    }
    if let Some((len_q, len_kv)) = lengths {
        score = mask::padding(&mut g, score, len_q, len_kv);
    }
    if let Some(band) = a.mask.band {
        score = mask::band(&mut g, form, score, band, [s_q, s_kv], lengths);
    }
    let p = softmax::forward(&mut g, form, score, a);
    g.set_dtype(p, a.q.dtype);
    g.matmul([p, v, o], [len_q, None, len_kv]);
    g.finish()
}
