//! The backward in 8 bits with block scales (MXFP8), in the order that cuDNN's matcher recognises.
//!
//! Each product reads the form of its operands that is scaled along the dim it sums over, so Q, K and dO come in two
//! forms. Row sums are those of the 16-bit dO and O. P and dS stay in f32: how the kernel rounds them is its own
//! affair. Gradients are written and measured without scales, dQ before dK.
//!
//! Source of the order: cudnn-frontend 1.23, `node/sdpa_fp8_bwd.h`, as facts. Masks stand as in the other 8-bit
//! backward.

use super::backward::{self, Again};
use super::builder::Builder;
use super::score::{Context, Positions};
use super::variants::{Variant, VariantSet};
use super::{Form, forward, fp8, mask, mxfp8};
use crate::op::{Constant, Pointwise, Reduce, TensorId};
use crate::{Attention, DType, Gradients, OpGraph, Pass, Role, Scaled, Target, Tensor, Valid};

/// Writes the backward. `None` for a forward. Dropout and expressions were refused before.
pub(super) fn lower(attention: &Valid, form: Form, target: &Target, without: VariantSet) -> Option<OpGraph> {
    let a = attention.get();
    let Pass::Backward(gradients) = &a.pass else { return None };
    let mut g = Builder::new(target.cudnn, without);
    let (s_q, s_kv) = a.seq();
    let scores = [a.batch(), a.q.heads(), s_q, s_kv];

    let q = g.operand(Role::Q, &a.q);
    let k_t = g.transposed(Role::K, &a.k);
    let v_t = g.transposed(Role::V, &a.v);
    let d_o = g.operand(Role::DO, &gradients.d_o);
    let stats = g.operand(Role::Stats, &a.row_tensor());
    let scale = g.scalar(Role::Scale, DType::F32);
    let lengths = forward::lengths(&mut g, a);
    let (len_q, len_kv) = lengths.unzip();

    let k_t = mxfp8::transposed(&mut g, k_t, Scaled::K, &a.k);
    let v_t = mxfp8::transposed(&mut g, v_t, Scaled::V, &a.v);
    let q = mxfp8::by_rows(&mut g, q, Scaled::Q, &a.q);
    let d_o = mxfp8::by_rows(&mut g, d_o, Scaled::DO, &gradients.d_o);
    let sum = row_sums(&mut g, a, gradients, stats)?;

    // The probabilities again.
    let product = g.virtual_(scores, DType::F32);
    g.matmul([q, k_t, product], [len_q, len_kv, None]);
    let scaled = g.binary(Pointwise::Mul, product, scale);
    let context = Context { positions: Positions::for_attention(a), ..Context::new(scaled, lengths, [s_q, s_kv]) };
    let early = g.follows(Variant::MasksBeforeStats) && mask::every_row_within_lengths_sees_a_key(a);
    let Again { p, .. } = backward::probabilities(&mut g, a, form, &context, stats, None, early);

    // dV = Pᵀ·dO, summed over the heads of a group.
    let p_t = backward::transpose(&mut g, p, DType::F32);
    let d_o_t = mxfp8::d_o_by_columns(&mut g, &gradients.d_o);
    over_queries(&mut g, a, [p_t, d_o_t], [len_q, len_kv], (Role::DV, gradients.d_v, Scaled::DV));

    // dS, the gradient with respect to the product of Q and K.
    let d_p = g.virtual_(scores, DType::F32);
    g.matmul([d_o, v_t, d_p], [len_q, len_kv, None]);
    let centred = g.binary(Pointwise::Sub, d_p, sum);
    let d_s = g.binary(Pointwise::Mul, centred, p);
    let d_s = g.binary(Pointwise::Mul, d_s, scale);

    // dQ = dS·K; dK = dSᵀ·Q, summed over the heads of a group.
    let keys = mxfp8::by_columns(&mut g, Role::KT, Scaled::KT, &a.k);
    let d_q = g.operand(Role::DQ, &gradients.d_q);
    g.matmul([d_s, keys, d_q], [len_q, None, len_kv]);
    fp8::amax(&mut g, a, d_q, Scaled::DQ);
    let d_s_t = backward::transpose(&mut g, d_s, DType::F32);
    let queries = mxfp8::by_columns(&mut g, Role::QT, Scaled::QT, &a.q);
    over_queries(&mut g, a, [d_s_t, queries], [len_q, len_kv], (Role::DK, gradients.d_k, Scaled::DK));
    Some(g.finish())
}

/// D = rowsum(dO ∘ O) of the 16-bit dO and O. With the gradient of the sink it is multiplied by one, so that the
/// matcher tells the two readers apart.
fn row_sums(g: &mut Builder, a: &Attention, gradients: &Gradients, stats: TensorId) -> Option<TensorId> {
    let half = gradients.d_o_half?;
    let (d_o, o) = (g.operand(Role::DOHalf, &half), g.operand(Role::O, &a.o));
    let product = g.virtual_strided(half.dims, half.strides, DType::F32);
    g.binary_into(Pointwise::Mul, d_o, o, DType::F32, product);
    let [b, h, s, _] = half.dims;
    let sum = g.virtual_([b, h, s, 1], DType::F32);
    g.reduce_into(Reduce::Add, product, sum);
    if !gradients.d_sink {
        return Some(sum);
    }
    backward::d_sink(g, h, stats, sum);
    let one = g.constant(Constant::f32(1.0));
    Some(g.binary(Pointwise::Mul, sum, one))
}

/// `left · right` over the queries, summed over query heads that share a head, written and measured.
fn over_queries(
    g: &mut Builder,
    a: &Attention,
    [left, right]: [TensorId; 2],
    [len_q, len_kv]: [Option<TensorId>; 2],
    (role, out, which): (Role, Tensor, Scaled),
) {
    let [b, h_q, s_kv, _] = g.dims(left);
    let [.., width] = out.dims;
    let to = g.operand(role, &out);
    let lengths = [len_kv, None, len_q];
    if out.heads() == h_q {
        g.matmul([left, right, to], lengths);
    } else {
        let all = g.virtual_([b, h_q, s_kv, width], DType::F32);
        g.matmul([left, right, all], lengths);
        g.reduce_into(Reduce::Add, all, to);
    }
    fp8::amax(g, a, to, which);
}
