//! Arithmetic on constants, only if float32 holds the result without rounding.

use super::node::FloatConst;
use super::ops::Binary;

/// The result of an operation on constants, if float32 holds it without rounding.
pub(super) fn exact(op: Binary, a: FloatConst, b: FloatConst) -> Option<FloatConst> {
    let (x, y) = (f64::from(a.value()), f64::from(b.value()));
    let wide = op.apply(x, y);
    let narrow = FloatConst::new(wide as f32).ok()?;
    let kept = f64::from(narrow.value()) == wide;
    let exact = match op {
        // The sum of two float32 numbers is exact in float64 if subtracting either operand gives the other.
        Binary::Add => wide - x == y && wide - y == x,
        Binary::Sub => wide + y == x && x - wide == y,
        // Float64 holds every product of two float32 numbers, so a quotient is exact if multiplying back gives the
        // dividend.
        Binary::Mul | Binary::Min | Binary::Max => true,
        Binary::Div => wide * y == x,
        Binary::Pow | Binary::Rem | Binary::FloorRem | Binary::Atan2 | Binary::FloorDiv => false,
    };
    (kept && exact).then_some(narrow)
}
