//! Scores beyond the last row and key. cuDNN computes whole tiles, and there an expression of a backward reads scores
//! that are minus infinity or belong to no row.
//!
//! On an H200 with cuDNN 9.19: if the number of keys is not a multiple of 64, the scores beyond are minus infinity, so
//! that `score * score` makes the probability infinite and the derivative NaN. If only the number of queries is not a
//! multiple, they are zero, and a bias that grows overflows f16. Forwards were always right.
//!
//! Without an expression too, where no band hides them: scores beyond the last key are zero if half of the last tile of
//! 128 keys is there, and so are those beyond a single query. Less a log-sum-exp below -88 their exponential is
//! infinite, and the gradients are NaN ([`meets_unmasked_tail`]).

use super::builder::Builder;
use super::mask;
use super::variants::Variant;
use crate::expr::{Axis, Derived, Node, PointContext, Program, ScalarTy, Value};
use crate::op::{Constant, Pointwise, TensorId};
use crate::{Attention, DType, Lengths, Target};

/// The parts of a backward that are hidden.
#[derive(Clone, Copy)]
pub(super) struct Tails {
    seq: [i64; 2],
    probabilities: bool,
}

/// Width of the widest tile in queries and in keys: 128 on sm_90, where lengths that are multiples of it were right;
/// 256 elsewhere, which was not tested.
const fn tile(target: &Target) -> i64 {
    if target.sm() == 90 { 128 } else { 256 }
}

impl Tails {
    /// The parts that must be hidden; `None` if every tile is whole, if there is no expression, or if the expression is
    /// known to stay finite.
    pub(super) fn for_attention(
        g: &Builder,
        a: &Attention,
        derivative: Option<&Derived>,
        target: &Target,
    ) -> Option<Tails> {
        let (s_q, s_kv) = a.seq();
        if is_whole(a, target) || !g.follows(Variant::HideTails) {
            return None;
        }
        let finite = match (derivative, &a.score_mod) {
            (Some(derivative), Some(expression)) => stays_finite(expression, derivative),
            _ => true,
        };
        if finite && !meets_unmasked_tail(a, target) {
            return None;
        }
        // Lengths already hide the probabilities; with a second mask of that form, cuDNN 9.19 ends the process.
        Some(Tails { seq: [s_q, s_kv], probabilities: a.mask.lengths == Lengths::Full })
    }

    /// Scores minus the log-sum-exp, with minus infinity beyond the last row and key.
    pub(super) fn hide_scores(self, g: &mut Builder, score: TensorId) -> TensorId {
        if !self.probabilities {
            return score;
        }
        let [q, kv] = self.seq.map(|length| g.constant(Constant::I32(length as i32)));
        let keep = mask::within(g, score, (q, kv));
        mask::hide(g, keep, score)
    }

    /// A gradient of scores, with zero beyond the last row and key. It needs two selections: cuDNN ignores one over
    /// both.
    pub(super) fn hide_gradient(self, g: &mut Builder, mut d_s: TensorId) -> TensorId {
        for axis in [3, 2] {
            let keep = below(g, d_s, axis, self.seq[usize::from(axis) - 2]);
            let zero = g.constant(Constant::f32(0.0));
            d_s = g.select(keep, d_s, zero);
        }
        d_s
    }
}

/// Whether scores of a backward beyond the last key or query are zeros that nothing hides: no band, no lengths, and
/// half of the last tile of 128 keys or a single query.
///
/// Seen on an H100 under cuDNN 9.19: NaN in dQ of 64, 192 and 704 keys, NaN in dK and dV of one query over 64 and 256
/// keys, where the log-sum-exp of a row is below -88. Reported for compute capability 9.0 up to 9.25.1 (pytorch issue
/// 196678, cudnn-frontend issues 628 and 1072).
pub(crate) fn meets_unmasked_tail(a: &Attention, target: &Target) -> bool {
    let (s_q, s_kv) = a.seq();
    a.is_backward()
        && a.fp8.is_none()
        && target.sm() == 90
        && a.mask.lengths == Lengths::Full
        && a.mask.band.is_none()
        && (s_kv % 128 == 64 || s_q == 1)
}

fn below(g: &mut Builder, like: TensorId, axis: u8, length: i64) -> TensorId {
    let index = g.index(like, axis, DType::I32);
    let length = g.constant(Constant::I32(length as i32));
    g.binary_as(Pointwise::CmpLt, index, length, DType::Bool, DType::Bool)
}

/// Whether, for the scores in tails, an expression of only the score and scalars gives a number or minus infinity, and
/// its derivative a number. With indices and tensors it is unknown, because they may have any value there.
fn stays_finite(expression: &Program, derivative: &Derived) -> bool {
    let alone = |p: &Program| p.tensors().is_empty() && !Axis::ALL.iter().any(|&axis| p.contains(Node::Index(axis)));
    alone(expression)
        && values(expression).all(|x| x.is_finite() || x == f64::NEG_INFINITY)
        && values(derivative).all(f64::is_finite)
}

/// Whether a backward with lengths has a derivative that is not a number beyond the last row and key. The probabilities
/// are zero there, but in every tested form cuDNN computes the derivative.
pub(crate) fn derivative_meets_lengths(a: &Attention, target: &Target) -> bool {
    // The cheap checks come first: a derivative takes microseconds.
    if !a.is_backward() || a.mask.lengths != Lengths::PerSequence || is_whole(a, target) {
        return false;
    }
    a.score_mod_vjp().into_iter().flatten().any(|vjp| {
        let mut factors = [&vjp.d_score].into_iter().chain(vjp.d_tensors.iter().map(|g| &g.factor));
        factors.any(|f| !values(f).all(f64::is_finite))
    })
}

fn is_whole(a: &Attention, target: &Target) -> bool {
    let (s_q, s_kv) = a.seq();
    s_q % tile(target) == 0 && s_kv % tile(target) == 0
}

/// Values of a program for the scores in tails, with some values for everything else.
fn values(p: &Program) -> impl Iterator<Item = f64> {
    let of = |int: bool, x: f64| if int { Value::Int(x as i32) } else { Value::Float(x) };
    const SLOTS: [f64; 6] = [0.25, 1.0, 50.0, -0.25, -1.0, -50.0];
    // Positions near and far from the first row and key, on the diagonal and beside it, with every remainder by 2 and
    // 3, so that conditions over indices are both true and false.
    const PLACES: [[i32; 4]; 16] = [
        [0; 4],
        [0, 1, 0, 1000],
        [1, 0, 1000, 0],
        [1, 3, 1001, 1003],
        [0, 0, 1, 1],
        [1, 1, 2, 1],
        [0, 2, 1, 2],
        [0, 0, 2, 0],
        [1, 2, 1000, 1000],
        [0, 1, 1001, 1000],
        [0, 0, 1002, 1001],
        [2, 1, 1003, 1005],
        [0, 4, 4, 1004],
        [1, 0, 1004, 5],
        [0, 3, 7, 3],
        [3, 5, 3, 7],
    ];
    // Unused inputs do not matter, and each point costs about a microsecond.
    let numbers = if p.scalars().is_empty() && p.tensors().is_empty() { &SLOTS[..1] } else { &SLOTS };
    let places = if Axis::ALL.iter().any(|&axis| p.contains(Node::Index(axis))) { &PLACES[..] } else { &PLACES[..1] };
    let points = [f64::NEG_INFINITY, 0.0].into_iter().flat_map(move |score| numbers.iter().map(move |&x| (score, x)));
    let mut all = Vec::with_capacity(p.nodes().len());
    points.flat_map(move |(score, x)| places.iter().map(move |&at| (score, x, at))).map(move |(score, x, at)| {
        let scalars: Vec<Value> = p.scalars().iter().map(|spec| of(spec.ty == ScalarTy::Int, x)).collect();
        let tensors: Vec<Value> = p.tensors().iter().map(|spec| of(!spec.dtype.is_float(), x)).collect();
        let point = PointContext { score, upstream: 1.0, at, lengths: [1; 2], scalars: &scalars, tensors: &tensors };
        match p.eval_into(&point, &mut all) {
            Ok(Value::Float(value)) => value,
            _ => f64::NAN,
        }
    })
}
