//! The forward as a composite graph: two matrix products with everything between them, in the order cuDNN's matcher knows.
//!
//! Source of the order: cudnn-frontend 1.23, `node/scaled_dot_product_flash_attention.h`, as facts.

use super::builder::Builder;
use super::score::Context;
use super::{Form, mask, paged, score, softmax};
use crate::op::{Constant, Pointwise, TensorId};
use crate::{Attention, DType, Dropout, DropoutSource, Lengths, OpGraph, Order, Role, Tensor, Valid};

pub(super) fn lower(attention: &Valid, form: Form) -> OpGraph {
    let a = attention.get();
    let mut g = Builder::default();
    let (s_q, s_kv) = a.seq();
    let score_dims = [a.batch(), a.q.heads(), s_q, s_kv];

    let q = g.operand(Role::Q, &a.q);
    let k = paged::keys(&mut g, &a.k);
    let v = paged::values(&mut g, &a.v);
    let o = g.operand(Role::O, &a.o);
    let lengths = match a.mask.lengths {
        Lengths::Full => None,
        Lengths::PerSequence => {
            let t = Tensor::dense(Order::Bhsd, [a.batch(), 1, 1, 1], DType::I32);
            Some((g.operand(Role::SeqLenQ, &t), g.operand(Role::SeqLenKv, &t)))
        }
    };
    let (len_q, len_kv) = lengths.unzip();

    let k = paged::gathered_keys(&mut g, k, &a.k, len_kv);
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
    let p = dropped(&mut g, p, a, score_dims);
    g.set_dtype(p, a.q.dtype);
    let v = paged::gathered_values(&mut g, v, &a.v, len_kv);
    g.matmul([p, v, o], [len_q, None, len_kv]);
    g.finish()
}

/// Probabilities after dropout: the mask first, then the scale; a mask of the caller's in the other order, as the matcher wants.
fn dropped(g: &mut Builder, p: TensorId, a: &Attention, dims: [i64; 4]) -> TensorId {
    let Some(Dropout { source, probability }) = a.dropout.filter(|d| d.probability > 0.0) else { return p };
    let factor = Constant::f32(1.0 / (1.0 - probability));
    match source {
        DropoutSource::Philox => {
            let mask = g.rng(1.0 - f64::from(probability), dims);
            let kept = g.binary(Pointwise::Mul, p, mask);
            let factor = g.constant(factor);
            g.binary(Pointwise::Mul, kept, factor)
        }
        DropoutSource::Mask => {
            let factor = g.constant(factor);
            let scaled = g.binary(Pointwise::Mul, p, factor);
            let mask = g.operand(Role::DropoutMask, &Tensor::dense(Order::Bhsd, dims, a.q.dtype));
            g.binary(Pointwise::Mul, scaled, mask)
        }
    }
}
