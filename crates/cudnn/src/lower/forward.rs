//! The forward as a composite graph: two matrix products and the operations between them, in the order that cuDNN's
//! matcher recognises.
//!
//! Source of the order: cudnn-frontend 1.23, `node/scaled_dot_product_flash_attention.h`, as facts.

use super::builder::Builder;
use super::mask::Masks;
use super::score::{Context, Positions};
use super::variants::{Variant, VariantSet};
use super::{Form, Lens, fp8, limits, lowest, mxfp8, paged, softmax};
use crate::op::{Constant, Pointwise, TensorId};
use crate::{Attention, DType, Dropout, DropoutSource, Lengths, OpGraph, Order, Role, Scaled, Target, Tensor, Valid};

pub(super) fn lower(attention: &Valid, form: Form, target: &Target, without: VariantSet) -> OpGraph {
    let a = attention.get();
    let mut g = Builder::new(target.cudnn, without);
    let (s_q, s_kv) = a.seq();
    let score_dims = [a.batch(), a.q.heads(), s_q, s_kv];

    let q = g.operand(Role::Q, &a.q);
    let k = paged::keys(&mut g, &a.k);
    let v = paged::values(&mut g, &a.v);
    let o = g.operand(Role::O, &a.o);
    let lengths = lengths(&mut g, a);
    let (len_q, len_kv) = lengths.unzip();

    let k = paged::gathered_keys(&mut g, k, &a.k, len_kv);
    let [q, k] = mxfp8::scored(&mut g, a, [q, k]);
    let scores = g.virtual_(score_dims, DType::F32);
    g.matmul([q, k, scores], [len_q, len_kv, None]);
    let scale = g.scalar(Role::Scale, DType::F32);
    let scaled = g.binary(Pointwise::Mul, scores, scale);
    let mut score = fp8::real_scores(&mut g, a, scaled);
    let positions = Positions::for_attention(a);
    let context = Context { whole_lengths: true, positions, ..Context::new(score, lengths, [s_q, s_kv]) };
    let inner = context.after(a.score_mod.as_ref());
    let masks = Masks::new(&mut g, a, form, inner);
    if let Some(expression) = &a.score_mod {
        score = lowest::modified(&mut g, expression, &context);
    }
    let score = masks.apply(&mut g, score);
    let p = softmax::forward(&mut g, form, score, a);
    let p = dropped(&mut g, p, a, score_dims);
    if fp8::is_per_tensor(a) {
        let p = fp8::probabilities(&mut g, a, p);
        let v = paged::gathered_values(&mut g, v, &a.v, len_kv);
        fp8::output(&mut g, a, p, v, o, [len_q, len_kv]);
    } else {
        g.set_dtype(p, a.q.dtype);
        let v = paged::gathered_values(&mut g, v, &a.v, len_kv);
        let v = mxfp8::values(&mut g, a, v);
        g.matmul([p, v, o], [len_q, None, len_kv]);
        if mxfp8::has_blocks(a) {
            fp8::amax(&mut g, a, o, Scaled::O);
        }
    }
    if g.follows(Variant::AvoidEngines) && limits::engine_1_is_wrong(a, g.cudnn()) {
        g.exclude_engines(&[1]);
    }
    g.finish()
}

/// Lengths of queries and keys as operands, if the attention has them.
pub(super) fn lengths(g: &mut Builder, a: &Attention) -> Option<Lens> {
    match a.mask.lengths {
        Lengths::Full => None,
        Lengths::PerSequence => {
            let t = Tensor::dense(Order::Bhsd, [a.batch(), 1, 1, 1], DType::I32);
            Some((g.operand(Role::SeqLenQ, &t), g.operand(Role::SeqLenKv, &t)))
        }
    }
}

/// Probabilities after dropout: first the mask, then the scale; the matcher needs the other order for the caller's
/// mask.
fn dropped(g: &mut Builder, p: TensorId, a: &Attention, dims: [i64; 4]) -> TensorId {
    let Some(Dropout { source, probability, .. }) = a.dropout else { return p };
    let factor = Constant::f32(1.0 / (1.0 - probability));
    match source {
        // Lowering refuses places before it writes anything.
        DropoutSource::Philox | DropoutSource::Places => {
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
