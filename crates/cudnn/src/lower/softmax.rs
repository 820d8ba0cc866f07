//! The softmax of the forward and its other outputs: as one operation, or as maximum, exponential, sum and quotient.

use super::Form;
use super::builder::Builder;
use crate::op::{Op, Pointwise, Reduce, TensorId};
use crate::{Attention, DType, Order, Outputs, Role, Tensor};

/// The outputs of a softmax per row, as far as requested, and the sink.
pub(super) struct ByRow {
    pub(super) stats: Option<TensorId>,
    pub(super) max: Option<TensorId>,
    pub(super) sum_exp: Option<TensorId>,
    pub(super) sink: Option<TensorId>,
}

/// The operands that a forward's softmax has.
pub(super) fn by_row(g: &mut Builder, a: &Attention) -> ByRow {
    let rows = a.row_tensor();
    let Outputs { stats, max, sum_exp, .. } = a.outputs;
    let stats = stats.then(|| g.operand(Role::Stats, &rows));
    let max = max.then(|| g.operand(Role::Max, &rows));
    let sum_exp = sum_exp.then(|| g.operand(Role::SumExp, &rows));
    let sink = a.sink.then(|| {
        let t = Tensor::dense(Order::Bhsd, [1, a.q.heads(), 1, 1], DType::F32);
        g.operand(Role::Sink, &t)
    });
    ByRow { stats, max, sum_exp, sink }
}

/// Writes the probabilities of the scores, and the requested outputs.
pub(super) fn forward(g: &mut Builder, form: Form, score: TensorId, a: &Attention) -> TensorId {
    let rows = a.row_tensor();
    let ByRow { stats, max, sum_exp, sink } = by_row(g, a);
    if form == Form::Fused {
        let y = g.virtual_(g.dims(score), DType::F32);
        g.push_op(Op::Softmax { x: score, y, stats, max, sum_exp, sink });
        return y;
    }
    let row = |given: Option<TensorId>, g: &mut Builder| given.unwrap_or_else(|| g.virtual_(rows.dims, DType::F32));
    let top = match sink {
        None => {
            let top = row(max, g);
            g.reduce_into(Reduce::Max, score, top);
            top
        }
        Some(sink) => {
            let scores = row(None, g);
            g.reduce_into(Reduce::Max, score, scores);
            let top = row(max, g);
            g.binary_into(Pointwise::Max, scores, sink, DType::F32, top);
            top
        }
    };
    let shifted = g.binary(Pointwise::Sub, score, top);
    let exp = g.unary(Pointwise::Exp, shifted);
    let sum = match sink {
        None => {
            let sum = row(sum_exp, g);
            g.reduce_into(Reduce::Add, exp, sum);
            sum
        }
        Some(sink) => {
            let shifted = g.binary(Pointwise::Sub, sink, top);
            let extra = g.unary(Pointwise::Exp, shifted);
            let scores = row(None, g);
            g.reduce_into(Reduce::Add, exp, scores);
            let sum = row(sum_exp, g);
            g.binary_into(Pointwise::Add, scores, extra, DType::F32, sum);
            sum
        }
    };
    // The matcher recognises the softmax by its log-sum-exp, so that is written even if it is not requested. With Max
    // and Sum_exp as outputs, which come together and without Stats here (`limits::form`), it recognises it by those.
    if max.is_none() {
        let log = g.unary(Pointwise::Log, sum);
        let stats = row(stats, g);
        g.binary_into(Pointwise::Add, top, log, DType::F32, stats);
    }
    g.binary(Pointwise::Div, exp, sum)
}
