//! The softmax of the forward, with its by-products: as one operation, or as maximum, exponential, sum and quotient.

use super::Form;
use super::builder::Builder;
use crate::op::{Op, Pointwise, Reduce, TensorId};
use crate::{Attention, DType, Role};

pub(super) fn forward(g: &mut Builder, form: Form, score: TensorId, a: &Attention) -> TensorId {
    let rows = a.row_tensor();
    let stats = a.outputs.stats.then(|| g.operand(Role::Stats, &rows));
    if form == Form::Fused {
        let y = g.virtual_(g.dims(score), DType::F32);
        g.push_op(Op::Softmax { x: score, y, stats, max: None, sum_exp: None, sink: None });
        return y;
    }
    let max = g.virtual_(rows.dims, DType::F32);
    g.reduce_into(Reduce::Max, score, max);
    let shifted = g.binary(Pointwise::Sub, score, max);
    let exp = g.unary(Pointwise::Exp, shifted);
    let sum = g.virtual_(rows.dims, DType::F32);
    g.reduce_into(Reduce::Add, exp, sum);
    // The matcher knows the softmax by its log-sum-exp, so it is written even when nobody wants it.
    let log = g.unary(Pointwise::Log, sum);
    let stats = stats.unwrap_or_else(|| g.virtual_(rows.dims, DType::F32));
    g.binary_into(Pointwise::Add, max, log, DType::F32, stats);
    g.binary(Pointwise::Div, exp, sum)
}
