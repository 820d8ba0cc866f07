//! The backward in 8 bits with one scale per tensor, in the order that cuDNN's matcher recognises.
//!
//! It differs from the 16-bit one: row sums are in no buffer, P and dS are rounded to 8 bits with their scales before
//! products over the queries and keys, dQ comes before dK and has no buffer of sums, and each gradient is measured
//! before it is scaled and written. The amax and the scale that are named after dP belong to dS.
//!
//! Source of the order: cudnn-frontend 1.23, `node/sdpa_fp8_bwd.h` and `node/matmul_fp8.h`, as facts. Its graph has the
//! masks before the subtraction of the log-sum-exp. If a row within the lengths may see no key, they come after it, as
//! in 16 bits: then the row gives zeros and not NaN.

use super::backward::{self, Again, Drop};
use super::builder::Builder;
use super::mask;
use super::score::{Context, Positions};
use super::tails::Tails;
use super::variants::{Variant, VariantSet};
use super::{Form, forward, fp8};
use crate::op::{Constant, Op, Pointwise, Reduce, TensorId};
use crate::{Attention, DType, Gradients, OpGraph, Pass, Role, Scaled, Target, Tensor, Valid};

/// Writes the backward. `None` for a forward, and for a score expression without a required derivative, which was
/// refused before.
pub(super) fn lower(attention: &Valid, form: Form, target: &Target, without: VariantSet) -> Option<OpGraph> {
    let a = attention.get();
    let Pass::Backward(gradients) = &a.pass else { return None };
    let derivative = match a.score_mod_vjp() {
        None => None,
        Some(vjp) => Some(vjp.ok()?),
    };
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
    let dropout = a.dropout.map(|d| Drop::new(&mut g, d, scores, a.q.dtype));
    let sum = row_sums(&mut g, a, gradients, [d_o, stats], dropout.as_ref());

    // The probabilities again.
    let product = g.virtual_(scores, DType::F32);
    g.matmul([q, k_t, product], [len_q, len_kv, None]);
    let scaled = g.binary(Pointwise::Mul, product, scale);
    let scaled = fp8::real_scores(&mut g, a, scaled);
    let context = Context { positions: Positions::for_attention(a), ..Context::new(scaled, lengths, [s_q, s_kv]) };
    let tails = Tails::for_attention(&g, a, derivative.as_ref().map(|d| &d.d_score), target);
    let early = g.follows(Variant::MasksBeforeStats) && mask::every_row_within_lengths_sees_a_key(a);
    let Again { p, mut memo, under_masks: _ } = backward::probabilities(&mut g, a, form, &context, stats, tails, early);

    let ends = Ends { a, lengths: [len_q, len_kv] };
    // dV = Pᵀ·dO, summed over the heads of a group.
    let dropped = dropout.as_ref().map_or(p, |d| d.apply(&mut g, p));
    let stored = fp8::stored(&mut g, dropped, Scaled::S, a.q.dtype);
    let p_t = backward::transpose(&mut g, stored, a.q.dtype);
    let d_v = (Role::DV, gradients.d_v, Scaled::DV);
    ends.over_queries(&mut g, [p_t, d_o], [Scaled::S, Scaled::DO], d_v);

    // dS, the gradient with respect to the scaled score.
    let d_p = g.virtual_(scores, DType::F32);
    g.matmul([d_o, v_t, d_p], [len_q, len_kv, None]);
    let d_p = fp8::times(&mut g, d_p, Role::Descale(Scaled::DO));
    let d_p = fp8::times(&mut g, d_p, Role::Descale(Scaled::V));
    let d_p = dropout.as_ref().map_or(d_p, |d| g.binary(Pointwise::Mul, d_p, d.mask));
    let centred = g.binary(Pointwise::Sub, d_p, sum);
    let mut d_s = g.binary(Pointwise::Mul, centred, p);
    if let Some(dropout) = &dropout {
        d_s = dropout.scaled(&mut g, d_s);
    }
    if let Some(derivative) = &derivative {
        let context = Context { upstream: Some(d_s), ..context };
        d_s = backward::times(&mut g, d_s, &derivative.d_score, &context, &mut memo);
        if let Some(tails) = tails {
            d_s = tails.hide_gradient(&mut g, d_s);
        }
    }
    let d_s = g.binary(Pointwise::Mul, d_s, scale);
    fp8::amax(&mut g, a, d_s, Scaled::DP);
    let d_s = fp8::stored(&mut g, d_s, Scaled::DP, gradients.d_o.dtype);

    // dQ = dS·K; dK = dSᵀ·Q, summed over the heads of a group.
    let keys = g.virtual_strided(a.k.dims, a.k.strides, a.k.dtype);
    let offsets = g.offsets(k_t);
    g.set_offsets(keys, offsets);
    g.push_op(Op::Reshape { x: k_t, y: keys });
    let product = g.virtual_(gradients.d_q.dims, DType::F32);
    g.matmul([d_s, keys, product], [len_q, None, len_kv]);
    let d_q = g.operand(Role::DQ, &gradients.d_q);
    fp8::written(&mut g, a, product, [Scaled::DP, Scaled::K], Scaled::DQ, d_q);
    let d_s_t = backward::transpose(&mut g, d_s, gradients.d_o.dtype);
    let d_k = (Role::DK, gradients.d_k, Scaled::DK);
    ends.over_queries(&mut g, [d_s_t, q], [Scaled::DP, Scaled::Q], d_k);
    Some(g.finish())
}

/// D = rowsum(dO ∘ O) as real numbers. With dropout it is multiplied by the keep probability, because the factor of
/// dropout comes after the difference. With the gradient of the sink it is multiplied by one, so that the matcher tells
/// the two readers apart.
fn row_sums(
    g: &mut Builder,
    a: &Attention,
    gradients: &Gradients,
    [d_o, stats]: [TensorId; 2],
    dropout: Option<&Drop>,
) -> TensorId {
    let o = g.operand(Role::O, &a.o);
    let like = gradients.d_o;
    let product = g.virtual_strided(like.dims, like.strides, DType::F32);
    g.binary_into(Pointwise::Mul, d_o, o, DType::F32, product);
    let [b, h, s, _] = like.dims;
    let sum = g.virtual_([b, h, s, 1], DType::F32);
    g.reduce_into(Reduce::Add, product, sum);
    let sum = fp8::times(g, sum, Role::Descale(Scaled::DO));
    let sum = fp8::times(g, sum, Role::Descale(Scaled::O));
    if gradients.d_sink {
        backward::d_sink(g, h, stats, sum);
    }
    let factor = match dropout {
        Some(dropout) => 1.0 - dropout.probability,
        None if gradients.d_sink => 1.0,
        None => return sum,
    };
    let factor = g.constant(Constant::f32(factor));
    g.binary(Pointwise::Mul, sum, factor)
}

/// The ends of products over the queries: dV and dK.
struct Ends<'a> {
    a: &'a Attention,
    lengths: [Option<TensorId>; 2],
}

impl Ends<'_> {
    /// `left · right`, summed over query heads that share a head, measured and written.
    fn over_queries(
        &self,
        g: &mut Builder,
        [left, right]: [TensorId; 2],
        descales: [Scaled; 2],
        (role, out, which): (Role, Tensor, Scaled),
    ) {
        let [len_q, len_kv] = self.lengths;
        let [b, h_q, s_kv, _] = g.dims(left);
        let [.., width] = out.dims;
        let mut product = g.virtual_([b, h_q, s_kv, width], DType::F32);
        g.matmul([left, right, product], [len_kv, None, len_q]);
        if out.heads() != h_q {
            let sum = g.virtual_(out.dims, DType::F32);
            g.reduce_into(Reduce::Add, product, sum);
            product = sum;
        }
        let out = g.operand(role, &out);
        fp8::written(g, self.a, product, descales, which, out);
    }
}
