//! Powers in the form that is right over their whole domain: cuDNN's own is `2^(b log2 a)`, which is NaN for every base
//! below 0 (seen with `score^3` on an H100 under cuDNN 9.19) and may be for an exponent of 0.

use super::score::Scope;
use super::step::Step;
use crate::DType;
use crate::expr::{Power, product};
use crate::op::{Pointwise, TensorId};

/// Writes `a^b`.
pub(super) fn write(scope: &mut Scope<'_>, power: Power, a: TensorId, b: TensorId) -> TensorId {
    match power {
        Power::One => {
            // Of the shape of the scores, also where nothing else of an expression is.
            let zero = scope.zero();
            let one = scope.number(1.0);
            scope.float(Pointwise::Add, zero, one)
        }
        Power::Product { factors, inverse } => {
            let found = product(a, factors, |x, y| scope.float(Pointwise::Mul, x, y));
            if inverse { scope.unary(Pointwise::Reciprocal, found) } else { found }
        }
        Power::Plain => scope.float(Pointwise::Pow, a, b),
        Power::Whole { odd } => {
            let size = of_size(scope, a, b);
            if odd { with_sign(scope, a, size) } else { size }
        }
        Power::Any { signed } => {
            let found = if signed { any(scope, a, b) } else { scope.float(Pointwise::Pow, a, b) };
            let (zero, one) = (scope.number(0.0), scope.number(1.0));
            let flat = scope.compare(Pointwise::CmpEq, b, zero);
            scope.step(Step::Select(flat, one, found, DType::F32))
        }
    }
}

/// `|a|^b`.
fn of_size(scope: &mut Scope<'_>, a: TensorId, b: TensorId) -> TensorId {
    let size = scope.unary(Pointwise::Abs, a);
    scope.float(Pointwise::Pow, size, b)
}

/// `x`, negated where `a` is below 0.
fn with_sign(scope: &mut Scope<'_>, a: TensorId, x: TensorId) -> TensorId {
    let (zero, negated) = (scope.number(0.0), scope.unary(Pointwise::Neg, x));
    let below = scope.compare(Pointwise::CmpLt, a, zero);
    scope.step(Step::Select(below, negated, x, DType::F32))
}

/// The power of any base: of a base below 0 by a whole exponent it has the sign that the exponent says, and by another
/// it is what cuDNN gives, NaN.
fn any(scope: &mut Scope<'_>, a: TensorId, b: TensorId) -> TensorId {
    let half = scope.number(0.5);
    let halved = scope.float(Pointwise::Mul, b, half);
    let below = scope.unary(Pointwise::Floor, halved);
    // Both are exact, also where every float is a whole or an even number.
    let even = scope.compare(Pointwise::CmpEq, below, halved);
    let floor = scope.unary(Pointwise::Floor, b);
    let whole = scope.compare(Pointwise::CmpEq, floor, b);
    let size = of_size(scope, a, b);
    let signed = with_sign(scope, a, size);
    let exact = scope.step(Step::Select(even, size, signed, DType::F32));
    let plain = scope.float(Pointwise::Pow, a, b);
    scope.step(Step::Select(whole, exact, plain, DType::F32))
}
