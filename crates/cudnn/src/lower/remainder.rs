//! Floored quotients and remainders in forms that are right for every divisor.

use super::score::{Scope, dtype};
use super::step::Step;
use crate::DType;
use crate::expr::{Node, Ty};
use crate::op::{Pointwise, TensorId};

/// An integer divisor with 1 in place of 0, which gives the remainder 0 of its definition: on a GPU, division by 0 is
/// undefined.
pub(super) fn never_zero(scope: &mut Scope<'_>, b: TensorId) -> TensorId {
    let (zero, one, truth) = (scope.int(0), scope.int(1), dtype(scope.g, Ty::Bool));
    let is_zero = scope.step(Step::Binary(Pointwise::CmpEq, b, zero, DType::Bool, truth));
    scope.step(Step::Select(is_zero, one, b, DType::I32))
}

/// A constant below 0 as an f32: in a computation in f32, cuDNN reads an i32 constant without its sign (-1, -3 and -4
/// were wrong in a forward and a backward on an H100 under cuDNN 9.19; a computed divisor below 0 was right).
pub(super) fn real_below_zero(scope: &mut Scope<'_>, divisor: Node) -> Option<TensorId> {
    match divisor {
        Node::Int(n) if n < 0 => Some(scope.number(n as f32)),
        _ => None,
    }
}

/// `a - b * floor(a / b)`: only 9.27 and newer have a mode for it.
pub(super) fn floor_rem(scope: &mut Scope<'_>, a: TensorId, b: TensorId, out: DType) -> TensorId {
    let quotient = scope.float(Pointwise::Div, a, b);
    let whole = scope.step(Step::Unary(Pointwise::Floor, quotient, DType::F32));
    let multiple = scope.step(Step::Binary(Pointwise::Mul, whole, b, DType::F32, out));
    scope.step(Step::Binary(Pointwise::Sub, a, multiple, out, out))
}

/// `floor(a / b)` in float32, without a division, because a device does not guarantee its rounding.
///
/// For a power of two, the product with its reciprocal is exact. For any other constant, 0.5 is added first, so that
/// the quotient is at least `0.5 / |b|` away from the next whole number, which is more than the rounding of the
/// reciprocal and the product for `|a| < 2^22`.
pub(super) fn floor_div(scope: &mut Scope<'_>, a: TensorId, divisor: i32) -> TensorId {
    let mut dividend = scope.step(Step::Unary(Pointwise::Identity, a, DType::F32));
    if !divisor.unsigned_abs().is_power_of_two() {
        let half = scope.number(if divisor < 0 { -0.5 } else { 0.5 });
        dividend = scope.float(Pointwise::Add, dividend, half);
    }
    let reciprocal = scope.number((1.0 / f64::from(divisor)) as f32);
    let quotient = scope.float(Pointwise::Mul, dividend, reciprocal);
    let whole = scope.step(Step::Unary(Pointwise::Floor, quotient, DType::F32));
    let one = scope.int(1);
    scope.step(Step::Binary(Pointwise::Mul, whole, one, DType::F32, DType::I32))
}
