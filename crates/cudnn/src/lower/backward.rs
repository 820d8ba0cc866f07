//! The backward as a composite graph. It computes the probabilities again from Q, K and the log-sum-exp, then the five
//! matrix products and the operations between them, in the order that cuDNN's matcher recognises.
//!
//! Source of the order: cudnn-frontend 1.23 and 1.32, `node/scaled_dot_product_flash_attention.h`, as facts. If a row
//! may see no key, masks come after the subtraction of the log-sum-exp, as in 1.32, so that the row gives zeros and not
//! NaN.

use super::builder::Builder;
use super::mask::{self, Masks};
use super::score::{self, Context, Positions};
use super::step::Memo;
use super::tails::Tails;
use super::variants::{Variant, VariantSet};
use super::{Form, forward};
use crate::expr::{Derived, Node, TensorGrad};
use crate::op::{Constant, Op, Pointwise, Reduce, TensorId};
use crate::{Attention, DType, Dropout, DropoutSource, Gradients, OpGraph, Order, Pass, Role, Target, Tensor, Valid};

/// Writes the backward. `None` for a forward, and for a score expression without a required derivative, which was
/// refused before.
///
/// cuDNN recognises the mask of a window alone only over scores that nothing else reads. If the derivative reads them,
/// as that of `tanh(score)` does, masks come after the subtraction of the log-sum-exp.
pub(super) fn lower(attention: &Valid, form: Form, target: &Target, without: VariantSet) -> Option<OpGraph> {
    let a = attention.get();
    let Pass::Backward(gradients) = &a.pass else { return None };
    let (graph, masked) = written(a, gradients, form, target, without)?;
    if let Some(scores) = masked
        && form == Form::Expanded
        && mask::is_window(a)
        && mask::is_read_beside(&graph, scores)
    {
        return written(a, gradients, form, target, without.with(Variant::MasksBeforeStats)).map(|(graph, _)| graph);
    }
    Some(graph)
}

/// The op graph, and the scores that are masked before the subtraction of the log-sum-exp, if they are.
fn written(
    a: &Attention,
    gradients: &Gradients,
    form: Form,
    target: &Target,
    without: VariantSet,
) -> Option<(OpGraph, Option<TensorId>)> {
    let derivative = match a.score_mod_vjp() {
        None => None,
        Some(vjp) => Some(vjp.ok()?),
    };
    let mut g = Builder::new(target.cudnn, without);
    let (s_q, s_kv) = a.seq();
    let [b, h_q] = [a.batch(), a.q.heads()];
    let rows = [b, h_q, s_q, 1];
    let io = a.q.dtype;

    let q = g.operand(Role::Q, &a.q);
    let k_t = g.transposed(Role::K, &a.k);
    let v_t = g.transposed(Role::V, &a.v);
    let o = g.operand(Role::O, &a.o);
    let d_o = g.operand(Role::DO, &gradients.d_o);
    let stats = g.operand(Role::Stats, &a.row_tensor());
    let scale = g.scalar(Role::Scale, DType::F32);
    let lengths = forward::lengths(&mut g, a);
    let (len_q, len_kv) = lengths.unzip();
    let dropout = a.dropout.map(|d| Drop::new(&mut g, d, [b, h_q, s_q, s_kv], io));

    // D = rowsum(dO ∘ O); the matcher's pattern contains the product with one.
    let product = g.binary(Pointwise::Mul, d_o, o);
    let d = g.virtual_(rows, DType::F32);
    g.reduce_into(Reduce::Add, product, d);
    if gradients.d_sink {
        d_sink(&mut g, h_q, stats, d);
    }
    let late = dropout.as_ref().filter(|d| !d.scales_gradient(&g));
    let keep = g.constant(Constant::f32(late.map_or(1.0, |d| 1.0 - d.probability)));
    let sum = g.operand(Role::SoftmaxSum, &a.row_tensor());
    g.binary_into(Pointwise::Mul, d, keep, DType::F32, sum);

    // The probabilities again.
    let product = g.virtual_([b, h_q, s_q, s_kv], DType::F32);
    g.matmul([q, k_t, product], [len_q, len_kv, None]);
    let scaled = g.binary(Pointwise::Mul, product, scale);
    let context = Context { positions: Positions::for_attention(a), ..Context::new(scaled, lengths, [s_q, s_kv]) };
    let tails = Tails::for_attention(&g, a, derivative.as_ref().map(|d| &d.d_score), target);
    let early = g.follows(Variant::MasksBeforeStats) && mask::every_row_sees_a_key(a);
    let Again { p, mut memo, under_masks } = probabilities(&mut g, a, form, &context, stats, tails, early);

    // dV = Pᵀ·dO, summed over the heads of a group.
    let dropped = dropout.as_ref().map_or(p, |d| d.apply(&mut g, p));
    let p_t = transpose(&mut g, dropped, io);
    let [_, h_v, _, d_v] = a.v.dims;
    product_over_groups(
        &mut g,
        [p_t, d_o],
        Role::DV,
        &gradients.d_v,
        [b, h_q, h_v, s_kv, d_v],
        [len_kv, None, len_q],
        io,
    );

    // dS, the gradient with respect to the modified score.
    let d_p = g.virtual_([b, h_q, s_q, s_kv], DType::F32);
    g.matmul([d_o, v_t, d_p], [len_q, len_kv, None]);
    let masked = dropout.as_ref().map_or(d_p, |d| d.gradient(&mut g, d_p));
    let centred = g.binary(Pointwise::Sub, masked, sum);
    let mut d_s = g.binary(Pointwise::Mul, centred, p);
    if let Some(late) = dropout.as_ref().filter(|d| !d.scales_gradient(&g)) {
        d_s = late.scaled(&mut g, d_s);
    }
    let mut wants_tensors = false;
    if let Some(derivative) = &derivative {
        let context = Context { upstream: Some(d_s), ..context };
        let mut hidden = Hidden { tails, known: Vec::new() };
        for gradient in &derivative.d_tensors {
            wants_tensors = true;
            tensor_gradient(&mut g, a, gradient, &context, &mut hidden, &mut memo);
        }
        d_s = times(&mut g, d_s, &derivative.d_score, &context, &mut memo);
        d_s = hidden.hide(&mut g, d_s);
    }
    let d_s = g.binary(Pointwise::Mul, d_s, scale);

    // dK = dSᵀ·Q, summed over the heads of a group; dQ = dS·K.
    let d_s_t = transpose(&mut g, d_s, io);
    let [_, h_k, _, d_qk] = a.k.dims;
    product_over_groups(
        &mut g,
        [d_s_t, q],
        Role::DK,
        &gradients.d_k,
        [b, h_q, h_k, s_kv, d_qk],
        [len_kv, None, len_q],
        io,
    );
    d_q(&mut g, a.k, gradients, [d_s, k_t], [len_q, None, len_kv], wants_tensors);
    Some((g.finish(), under_masks))
}

/// What the probabilities leave for the gradients.
pub(super) struct Again {
    pub(super) p: TensorId,
    /// What the score expression computed.
    pub(super) memo: Memo,
    /// The scores that are masked before the subtraction of the log-sum-exp, if they are.
    pub(super) under_masks: Option<TensorId>,
}

/// The probabilities again, from the scaled scores and the log-sum-exp. Masks come before its subtraction (`early`) or
/// after it.
pub(super) fn probabilities(
    g: &mut Builder,
    a: &Attention,
    form: Form,
    context: &Context,
    stats: TensorId,
    tails: Option<Tails>,
    early: bool,
) -> Again {
    let masks = Masks::new(g, a, form, context.after(a.score_mod.as_ref()));
    let mut memo = Memo::differentiated();
    let mut score = context.score;
    if let Some(expression) = &a.score_mod {
        score = score::expression_with(g, expression, context, &mut memo);
    }
    let under_masks = early.then_some(score);
    if early {
        score = masks.apply(g, score);
    }
    score = g.binary(Pointwise::Sub, score, stats);
    if let Some(tails) = tails {
        score = tails.hide_scores(g, score);
    }
    if !early {
        score = masks.apply(g, score);
    }
    Again { p: g.unary(Pointwise::Exp, score), memo, under_masks }
}

/// Dropout of the backward: the keep mask, applied again.
pub(super) struct Drop {
    source: DropoutSource,
    pub(super) mask: TensorId,
    pub(super) probability: f32,
}

impl Drop {
    pub(super) fn new(g: &mut Builder, dropout: Dropout, scores: [i64; 4], io: DType) -> Drop {
        let Dropout { source, probability, .. } = dropout;
        let mask = match source {
            // Lowering refuses places before it writes anything.
            DropoutSource::Philox | DropoutSource::Places => g.rng(1.0 - f64::from(probability), scores),
            DropoutSource::Mask => g.operand(Role::DropoutMask, &Tensor::dense(Order::Bhsd, scores, io)),
        };
        Drop { source, mask, probability }
    }

    /// `x / (1 - p)`.
    pub(super) fn scaled(&self, g: &mut Builder, x: TensorId) -> TensorId {
        let factor = g.constant(Constant::f32(1.0 / (1.0 - self.probability)));
        g.binary(Pointwise::Mul, x, factor)
    }

    pub(super) fn apply(&self, g: &mut Builder, p: TensorId) -> TensorId {
        let kept = g.binary(Pointwise::Mul, p, self.mask);
        self.scaled(g, kept)
    }

    /// Whether the factor is at the gradient of the probabilities, and not, as in NVIDIA's front end, after the
    /// difference with D. With the caller's mask, cuDNN loses D's part of the factor in the latter; with its own mask,
    /// in the former.
    fn scales_gradient(&self, g: &Builder) -> bool {
        self.source == DropoutSource::Mask && g.follows(Variant::ScaledDropout)
    }

    /// The gradient of the probabilities before dropout.
    fn gradient(&self, g: &mut Builder, d_p: TensorId) -> TensorId {
        let masked = g.binary(Pointwise::Mul, d_p, self.mask);
        if self.scales_gradient(g) { self.scaled(g, masked) } else { masked }
    }
}

/// `Σ exp(sink - stats) · D` per head; cuDNN adds the minus sign.
pub(super) fn d_sink(g: &mut Builder, h_q: i64, stats: TensorId, d: TensorId) {
    let per_head = Tensor::dense(Order::Bhsd, [1, h_q, 1, 1], DType::F32);
    let sink = g.operand(Role::Sink, &per_head);
    let shifted = g.binary(Pointwise::Sub, sink, stats);
    let share = g.unary(Pointwise::Exp, shifted);
    let terms = g.binary(Pointwise::Mul, share, d);
    let out = g.operand(Role::DSink, &per_head);
    g.reduce_into(Reduce::Add, terms, out);
}

/// A score-shaped tensor with its last two dims swapped, in the operands' element type.
pub(super) fn transpose(g: &mut Builder, x: TensorId, io: DType) -> TensorId {
    let [b, h, s_q, s_kv] = g.dims(x);
    let y = g.virtual_strided([b, h, s_kv, s_q], [h * s_q * s_kv, s_q * s_kv, 1, s_kv], io);
    g.push_op(Op::Reshape { x, y });
    y
}

/// `left · right` over the queries, into dV or dK; if several query heads share a key head, their parts are summed.
fn product_over_groups(
    g: &mut Builder,
    [left, right]: [TensorId; 2],
    role: Role,
    out: &Tensor,
    [b, h_q, h, s_kv, width]: [i64; 5],
    lengths: [Option<TensorId>; 3],
    io: DType,
) {
    let out = g.operand(role, out);
    if h_q == h {
        g.matmul([left, right, out], lengths);
    } else {
        let full = g.virtual_([b, h_q, s_kv, width], io);
        g.matmul([left, right, full], lengths);
        g.reduce_into(Reduce::Add, full, out);
    }
}

/// `x`, the upstream gradient of the context, times a derivative, unless the derivative is one.
pub(super) fn times(g: &mut Builder, x: TensorId, by: &Derived, context: &Context, memo: &mut Memo) -> TensorId {
    if let [Node::Float(c)] = by.nodes()
        && c.value() == 1.0
    {
        return x;
    }
    if g.follows(Variant::AppliedDerivative) {
        return score::expression_with(g, &by.applied(), context, memo);
    }
    let factor = score::expression_with(g, by, context, memo);
    g.binary(Pointwise::Mul, x, factor)
}

/// Gradients whose tails are hidden if necessary, each once: cuDNN refuses a second selection over the input of the sum
/// that gives a tensor's gradient.
struct Hidden {
    tails: Option<Tails>,
    known: Vec<(TensorId, TensorId)>,
}

impl Hidden {
    fn hide(&mut self, g: &mut Builder, gradient: TensorId) -> TensorId {
        let Some(tails) = self.tails else { return gradient };
        if let Some((_, hidden)) = self.known.iter().find(|(x, _)| *x == gradient) {
            return *hidden;
        }
        let hidden = tails.hide_gradient(g, gradient);
        self.known.push((gradient, hidden));
        hidden
    }
}

/// Gradient of a tensor of the score expression, summed over the dims in which it is broadcast.
fn tensor_gradient(
    g: &mut Builder,
    a: &Attention,
    gradient: &TensorGrad,
    context: &Context,
    hidden: &mut Hidden,
    memo: &mut Memo,
) {
    let (Some(expression), Some(d_s)) = (&a.score_mod, context.upstream) else { return };
    let spec = expression.tensors()[gradient.tensor.at()];
    let terms = times(g, d_s, &gradient.factor, context, memo);
    let terms = hidden.hide(g, terms);
    let t = Tensor::dense(Order::Bhsd, spec.dims, spec.dtype);
    let out = g.operand(Role::DScoreTensor(gradient.tensor.0 as u16), &t);
    g.reduce_into(Reduce::Add, terms, out);
}

/// dQ. Usually it is accumulated in f32 over blocks of keys, in an order that varies. For a deterministic backward or
/// with a tensor's gradient it is written directly, and cuDNN keeps dS in its workspace.
fn d_q(
    g: &mut Builder,
    k: Tensor,
    gradients: &Gradients,
    [d_s, k_t]: [TensorId; 2],
    lengths: [Option<TensorId>; 3],
    wants_tensors: bool,
) {
    let keys = g.virtual_strided(k.dims, k.strides, k.dtype);
    let offsets = g.offsets(k_t);
    g.set_offsets(keys, offsets);
    g.push_op(Op::Reshape { x: k_t, y: keys });
    let out = g.operand(Role::DQ, &gradients.d_q);
    if gradients.deterministic || wants_tensors {
        g.matmul([d_s, keys, out], lengths);
    } else {
        let accumulated = g.operand(Role::DqAccum, &crate::accumulator(&gradients.d_q));
        g.matmul([d_s, keys, accumulated], lengths);
        g.unary_into(Pointwise::Identity, accumulated, out);
    }
}
