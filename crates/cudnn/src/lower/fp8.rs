//! Attention in 8 bits with one scale per tensor: the operations that a forward has besides those of a 16-bit one.
//!
//! Stored numbers are multiplied by descales after each product. Probabilities are measured, multiplied by a scale and
//! rounded to Q's type before the second product, and outputs are measured before they are scaled and rounded. cuDNN
//! needs the operation that measures, but not its result in memory: an amax that is no output is virtual.
//!
//! Source of the order: cudnn-frontend 1.23, `node/scaled_dot_product_flash_attention.h` and `node/matmul_fp8.h`, as
//! facts.

use super::builder::Builder;
use crate::op::{Pointwise, Reduce, TensorId};
use crate::{Attention, DType, Fp8, Order, Role, Scaled, Tensor};

/// Whether the attention has one scale per tensor.
pub(super) fn is_per_tensor(a: &Attention) -> bool {
    matches!(a.fp8, Some(Fp8::Delayed | Fp8::Current))
}

fn one_number() -> Tensor {
    Tensor::dense(Order::Bhsd, [1; 4], DType::F32)
}

/// `x` times the factor of a role, one f32 on the device.
pub(super) fn times(g: &mut Builder, x: TensorId, role: Role) -> TensorId {
    let factor = g.operand(role, &one_number());
    g.binary(Pointwise::Mul, x, factor)
}

/// Scores of 8-bit Q and K as real numbers; scores of other types unchanged.
pub(super) fn real_scores(g: &mut Builder, a: &Attention, scores: TensorId) -> TensorId {
    if !is_per_tensor(a) {
        return scores;
    }
    let scores = times(g, scores, Role::Descale(Scaled::Q));
    times(g, scores, Role::Descale(Scaled::K))
}

/// Writes the largest magnitude of `x`.
pub(super) fn amax(g: &mut Builder, a: &Attention, x: TensorId, which: Scaled) {
    let y = if a.outputs.amax { g.operand(Role::Amax(which), &one_number()) } else { g.virtual_([1; 4], DType::F32) };
    g.reduce_into(Reduce::Amax, x, y);
}

/// `x` times the scale of an operand between two products, in this 8-bit type.
pub(super) fn stored(g: &mut Builder, x: TensorId, which: Scaled, dtype: DType) -> TensorId {
    let y = times(g, x, Role::ScaleOf(which));
    g.set_dtype(y, dtype);
    y
}

/// The end of a product of two 8-bit tensors: `x` becomes real numbers, is measured, and is written with the scale of
/// the output.
pub(super) fn written(
    g: &mut Builder,
    a: &Attention,
    x: TensorId,
    descales: [Scaled; 2],
    which: Scaled,
    out: TensorId,
) {
    let real = descales.into_iter().fold(x, |x, of| times(g, x, Role::Descale(of)));
    let scale = g.operand(Role::ScaleOf(which), &one_number());
    g.binary_into(Pointwise::Mul, real, scale, DType::F32, out);
    amax(g, a, real, which);
}

/// O of a forward: probabilities are measured and rounded, and their product with V is measured and written.
pub(super) fn output(
    g: &mut Builder,
    a: &Attention,
    p: TensorId,
    v: TensorId,
    o: TensorId,
    [len_q, len_kv]: [Option<TensorId>; 2],
) {
    let product = g.virtual_(g.dims(o), DType::F32);
    g.matmul([p, v, product], [len_q, None, len_kv]);
    written(g, a, product, [Scaled::S, Scaled::V], Scaled::O, o);
}

/// Probabilities of a forward, measured and in Q's 8-bit type.
pub(super) fn probabilities(g: &mut Builder, a: &Attention, p: TensorId) -> TensorId {
    amax(g, a, p, Scaled::S);
    stored(g, p, Scaled::S, a.q.dtype)
}
