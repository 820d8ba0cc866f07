//! The derivative of each operation, with conventions for points without one.
//!
//! | at | value |
//! |---|---|
//! | `abs` at 0 | 0 |
//! | `relu` at 0 | 0 |
//! | `min`, `max` of equal operands, and where one is NaN | the derivative of the operand that is second in canonical order; constants are last, so `max(x, 0)` agrees with `relu(x)` |
//! | `floor`, `ceil`, also at whole numbers | 0 |
//! | `a % b`, `floor_rem` at their jumps | the value beside the jump: that of `a` minus the quotient times that of `b` |
//! | `pow(a, b)` with respect to `b` at `a` = 0, with respect to `a` at `b` = 0 | 0 |
//! | `select` | the derivative of the selected arm, also at the border; conditions have no derivative |
//! | comparisons, integers | none |
//! | poles (`log` and `sqrt` at 0, `tan`, division by 0, `atan2` at the origin, ...) | the IEEE 754 result of the formula: an infinity or NaN |

use super::node::{Node, NodeId};
use super::ops::{Binary, Compare, Unary};
use super::simplify::Simplifier;
use super::slopes::{bell, gelu_slope, gelu_tanh_slope, one_minus_square};
use super::term::Term;

/// A derivative; `None` if it is zero everywhere because of the expression's structure.
pub(super) type Tangent = Option<Term>;

/// Derivative of `y = op(a)` if `a` has derivative `t`.
pub(super) fn unary(s: &mut Simplifier, op: Unary, a: NodeId, y: NodeId, t: Term) -> Tangent {
    Some(match op {
        Unary::Neg => t.scaled(-1.0),
        Unary::Abs => {
            let (zero, one, minus) = (s.literal(0.0), s.literal(1.0), s.literal(-1.0));
            let below = s.compare(Compare::Lt, a, zero);
            let above = s.compare(Compare::Gt, a, zero);
            let low = s.select(below, minus, zero);
            let sign = s.select(above, one, low);
            t.times(sign, s)
        }
        Unary::Exp => t.times(y, s),
        Unary::Log => t.divided(a, s),
        Unary::Sqrt => t.divided(y, s).scaled(0.5),
        Unary::Rsqrt => t.times(y, s).times(y, s).times(y, s).scaled(-0.5),
        Unary::Reciprocal => t.divided(a, s).divided(a, s).scaled(-1.0),
        Unary::Sin => {
            let cos = s.unary(Unary::Cos, a);
            t.times(cos, s)
        }
        Unary::Cos => {
            let sin = s.unary(Unary::Sin, a);
            t.times(sin, s).scaled(-1.0)
        }
        Unary::Tan => {
            let (square, one) = (s.mul(y, y), s.literal(1.0));
            let slope = s.add(square, one);
            t.times(slope, s)
        }
        Unary::Tanh => {
            let slope = one_minus_square(s, y);
            t.times(slope, s)
        }
        Unary::Sigmoid => {
            let square = s.mul(y, y);
            let slope = s.sub(y, square);
            t.times(slope, s)
        }
        Unary::Erf => {
            let bell = bell(s, a, 1.0);
            t.times(bell, s).scaled(std::f64::consts::FRAC_2_SQRT_PI)
        }
        Unary::Floor | Unary::Ceil => return None,
        Unary::Relu => return above_zero(s, a, t, None),
        Unary::Elu => {
            let exp = s.unary(Unary::Exp, a);
            let below = t.clone().times(exp, s);
            return above_zero(s, a, t, Some(below));
        }
        Unary::Gelu => {
            let slope = gelu_slope(s, a);
            t.times(slope, s)
        }
        Unary::GeluTanh => {
            let slope = gelu_tanh_slope(s, a);
            t.times(slope, s)
        }
        Unary::Softplus => {
            let sigmoid = s.unary(Unary::Sigmoid, a);
            t.times(sigmoid, s)
        }
        Unary::Swish => {
            // Not `sigmoid + y - sigmoid * y`: for large `a`, that is the difference of two large numbers.
            let (sigmoid, one) = (s.unary(Unary::Sigmoid, a), s.literal(1.0));
            let rest = s.sub(one, sigmoid);
            let bend = s.mul(rest, y);
            let slope = s.add(bend, sigmoid);
            t.times(slope, s)
        }
    })
}

/// Derivative of `y = op(a, b)` if `a` has derivative `ta` and `b` has derivative `tb`.
pub(super) fn binary(
    s: &mut Simplifier,
    op: Binary,
    [a, b]: [NodeId; 2],
    y: NodeId,
    ta: Tangent,
    tb: Tangent,
) -> Tangent {
    match op {
        Binary::Add => sum(s, ta, tb),
        Binary::Sub => sum(s, ta, tb.map(|t| t.scaled(-1.0))),
        Binary::Mul => {
            let (by_a, by_b) = (ta.map(|t| t.times(b, s)), tb.map(|t| t.times(a, s)));
            sum(s, by_a, by_b)
        }
        Binary::Div => {
            let (by_a, by_b) = (ta.map(|t| t.divided(b, s)), tb.map(|t| t.times(y, s).divided(b, s).scaled(-1.0)));
            sum(s, by_a, by_b)
        }
        Binary::Min | Binary::Max => {
            let first = if op == Binary::Min { Compare::Lt } else { Compare::Gt };
            let keep = s.compare(first, a, b);
            choice(s, keep, ta, tb)
        }
        Binary::Pow => {
            let by_a = ta.and_then(|t| power_by_base(s, a, b, t));
            let by_b = tb.map(|t| power_by_exponent(s, a, y, t));
            sum(s, by_a, by_b)
        }
        Binary::Rem | Binary::FloorRem => {
            let by_b = tb.map(|t| {
                let whole = s.sub(a, y);
                t.times(whole, s).divided(b, s).scaled(-1.0)
            });
            sum(s, ta, by_b)
        }
        // Integers have no derivative.
        Binary::FloorDiv => None,
        Binary::Atan2 => {
            // In parts of the larger one: float32 does not hold the square of every number.
            let (size_a, size_b) = (s.unary(Unary::Abs, a), s.unary(Unary::Abs, b));
            let (most, finite) = (s.binary(Binary::Max, size_a, size_b), s.literal(3e38));
            let most = s.binary(Binary::Min, most, finite);
            let (a, b) = (s.div(a, most), s.div(b, most));
            let (aa, bb) = (s.mul(a, a), s.mul(b, b));
            let square = s.add(aa, bb);
            let by_a = ta.map(|t| t.times(b, s).divided(square, s).divided(most, s));
            let by_b = tb.map(|t| t.times(a, s).divided(square, s).divided(most, s).scaled(-1.0));
            sum(s, by_a, by_b)
        }
    }
}

/// Derivative of a selection: that of the selected arm.
///
/// Each arm is inside a selection, so that an infinite derivative of the other arm has no influence; common factors are
/// taken out of the selection.
pub(super) fn choice(s: &mut Simplifier, keep: NodeId, yes: Tangent, no: Tangent) -> Tangent {
    if let Node::Bool(value) = s.arena.node(keep) {
        return if value { yes } else { no };
    }
    match (yes, no) {
        (None, None) => None,
        (Some(yes), None) => Some(yes.guarded(keep, true)),
        (None, Some(no)) => Some(no.guarded(keep, false)),
        (Some(yes), Some(no)) => {
            let (common, yes, no) =
                if yes.is_guarded() || no.is_guarded() { (Term::one(), yes, no) } else { yes.split_factors(no) };
            let (yes, no) = (yes.write(s), no.write(s));
            let chosen = s.select(keep, yes, no);
            Some(common.times(chosen, s))
        }
    }
}

fn sum(s: &mut Simplifier, a: Tangent, b: Tangent) -> Tangent {
    match (a, b) {
        (Some(a), Some(b)) => a.plus(b, s),
        (one, None) | (None, one) => one,
    }
}

fn above_zero(s: &mut Simplifier, a: NodeId, above: Term, below: Tangent) -> Tangent {
    let zero = s.literal(0.0);
    let keep = s.compare(Compare::Gt, a, zero);
    choice(s, keep, Some(above), below)
}

/// `b * a^(b - 1) * t`; `None` for the constant exponent 0, and 0 if the exponent is 0.
fn power_by_base(s: &mut Simplifier, a: NodeId, b: NodeId, t: Term) -> Tangent {
    match s.constant(b).map(|c| c.value()) {
        Some(0.0) => None,
        Some(1.0) => Some(t),
        Some(2.0) => Some(t.times(a, s).scaled(2.0)),
        Some(c) => {
            let exponent = s.literal(f64::from(c) - 1.0);
            let power = s.binary(Binary::Pow, a, exponent);
            Some(t.times(power, s).scaled(f64::from(c)))
        }
        None => {
            let (zero, one) = (s.literal(0.0), s.literal(1.0));
            let exponent = s.sub(b, one);
            let power = s.binary(Binary::Pow, a, exponent);
            let slope = s.mul(power, b);
            // At the base 0 the power is infinite, but `a^0` is 1 everywhere.
            let flat = s.compare(Compare::Eq, b, zero);
            let slope = s.select(flat, zero, slope);
            Some(t.times(slope, s))
        }
    }
}

/// `a^b * log(a) * t`, and 0 if `a` is 0.
fn power_by_exponent(s: &mut Simplifier, a: NodeId, y: NodeId, t: Term) -> Term {
    let zero = s.literal(0.0);
    let (log, at_zero) = (s.unary(Unary::Log, a), s.compare(Compare::Eq, a, zero));
    let growth = s.mul(y, log);
    let growth = s.select(at_zero, zero, growth);
    t.times(growth, s)
}
