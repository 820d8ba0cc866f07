//! The operations on numbers: float64 reference semantics, and the wrapping 32-bit integers of the language.
//!
//! There is only one zero: no operation gets or gives -0. Where the sign of a zero matters in IEEE 754 (division by it,
//! `atan2` on the negative axis), it counts as positive. A device may use the sign, and give the other infinity or the
//! other end of the range of `atan2` at such points.

use super::ops::{Binary, Compare, Logic, Unary};

impl Unary {
    /// The operation on a float, as in IEEE 754: division by zero gives infinities, a logarithm or root of a negative
    /// number NaN.
    #[must_use]
    pub fn apply(self, x: f64) -> f64 {
        let x = unsigned(x);
        unsigned(match self {
            Unary::Neg => -x,
            Unary::Abs => x.abs(),
            Unary::Exp => x.exp(),
            Unary::Log => x.ln(),
            Unary::Sqrt => x.sqrt(),
            Unary::Rsqrt => x.sqrt().recip(),
            Unary::Reciprocal => x.recip(),
            Unary::Sin => x.sin(),
            Unary::Cos => x.cos(),
            Unary::Tan => x.tan(),
            Unary::Tanh => x.tanh(),
            Unary::Sigmoid => sigmoid(x),
            Unary::Erf => libm::erf(x),
            Unary::Floor => x.floor(),
            Unary::Ceil => x.ceil(),
            // Comparisons instead of `max`, so that NaN stays NaN.
            Unary::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Unary::Elu => {
                if x < 0.0 {
                    x.exp_m1()
                } else {
                    x
                }
            }
            Unary::Gelu => 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Unary::GeluTanh => 0.5 * x * (1.0 + gelu_inner(x).tanh()),
            Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            Unary::Swish => x * sigmoid(x),
        })
    }

    /// The operation on an integer; `None` for operations on floats only.
    #[must_use]
    pub const fn apply_int(self, x: i32) -> Option<i32> {
        match self {
            Unary::Neg => Some(x.wrapping_neg()),
            Unary::Abs => Some(x.wrapping_abs()),
            _ => None,
        }
    }
}

/// The number, with 0 in place of -0.
fn unsigned(x: f64) -> f64 {
    x + 0.0
}

/// `1 / (1 + e^-x)` without overflow on either side.
fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        (1.0 + (-x).exp()).recip()
    } else {
        let e = x.exp();
        e / (1.0 + e)
    }
}

fn gelu_inner(x: f64) -> f64 {
    (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)
}

impl Binary {
    /// The operation on floats, as in IEEE 754.
    #[must_use]
    pub fn apply(self, a: f64, b: f64) -> f64 {
        let (a, b) = (unsigned(a), unsigned(b));
        unsigned(match self {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            Binary::Min => a.min(b),
            Binary::Max => a.max(b),
            Binary::Pow => a.powf(b),
            Binary::Rem => a % b,
            Binary::FloorRem => {
                let r = a % b;
                // A remainder with the other sign belongs to the next lower quotient.
                if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
            }
            Binary::Atan2 => a.atan2(b),
            Binary::FloorDiv => (a / b).floor(),
        })
    }

    /// The operation on integers; `None` for operations on floats only.
    #[must_use]
    pub fn apply_int(self, a: i32, b: i32) -> Option<i32> {
        match self {
            Binary::Add => Some(a.wrapping_add(b)),
            Binary::Sub => Some(a.wrapping_sub(b)),
            Binary::Mul => Some(a.wrapping_mul(b)),
            Binary::Min => Some(a.min(b)),
            Binary::Max => Some(a.max(b)),
            Binary::Rem => Some(if b == 0 { 0 } else { a.wrapping_rem(b) }),
            Binary::FloorRem => Some(if b == 0 {
                0
            } else {
                let r = a.wrapping_rem(b);
                if r != 0 && (r < 0) != (b < 0) { r.wrapping_add(b) } else { r }
            }),
            // 0 by 0, which is never written: a divisor is a constant other than 0.
            Binary::FloorDiv => Some(if b == 0 {
                0
            } else {
                let (q, r) = (a.wrapping_div(b), a.wrapping_rem(b));
                if r != 0 && (r < 0) != (b < 0) { q - 1 } else { q }
            }),
            Binary::Div | Binary::Pow | Binary::Atan2 => None,
        }
    }
}

impl Compare {
    /// The comparison of two floats, or of two integers.
    #[must_use]
    pub fn apply<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            Compare::Eq => a == b,
            Compare::Ne => a != b,
            Compare::Lt => a < b,
            Compare::Le => a <= b,
            Compare::Gt => a > b,
            Compare::Ge => a >= b,
        }
    }
}

impl Logic {
    /// The operation on truth values.
    #[must_use]
    pub const fn apply(self, a: bool, b: bool) -> bool {
        match self {
            Logic::And => a && b,
            Logic::Or => a || b,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remainders_have_the_documented_sign() {
        for (a, b) in [(7, 3), (-7, 3), (7, -3), (-7, -3), (6, 3), (-6, 3), (i32::MIN, -1)] {
            let (fa, fb) = (f64::from(a), f64::from(b));
            let rem = Binary::Rem.apply_int(a, b).expect("for integers too");
            let floor = Binary::FloorRem.apply_int(a, b).expect("for integers too");
            assert!(rem == 0 || (rem < 0) == (a < 0), "{a} % {b} = {rem}");
            assert!(floor == 0 || (floor < 0) == (b < 0), "{a} floor_rem {b} = {floor}");
            assert_eq!(f64::from(rem), Binary::Rem.apply(fa, fb));
            assert_eq!(f64::from(floor), Binary::FloorRem.apply(fa, fb));
            assert_eq!(f64::from(floor), fa - (fa / fb).floor() * fb);
        }
        assert_eq!(Binary::Rem.apply_int(5, 0), Some(0));
    }

    #[test]
    fn whole_quotients_are_rounded_down() {
        let of = |a: i32, b: i32| Binary::FloorDiv.apply_int(a, b).expect("for integers");
        for (a, b, floor) in [(7, 3, 2), (-7, 3, -3), (7, -3, -3), (-7, -3, 2), (6, 3, 2), (-6, 3, -2), (0, -5, 0)] {
            assert_eq!(of(a, b), floor, "{a} // {b}");
        }
        for a in [i32::MIN, i32::MIN + 1, -129, -128, -1, 0, 127, 128, i32::MAX] {
            for b in [i32::MIN, -128, -3, -1, 1, 3, 128, i32::MAX] {
                let exact = (f64::from(a) / f64::from(b)).floor();
                // Integers wrap.
                let wrapped = if exact > f64::from(i32::MAX) { i32::MIN } else { exact as i32 };
                assert_eq!(of(a, b), wrapped, "{a} // {b}");
                let rest = Binary::FloorRem.apply_int(a, b).expect("for integers");
                assert_eq!(of(a, b).wrapping_mul(b).wrapping_add(rest), a, "{a} and {b}");
            }
        }
    }

    #[test]
    fn activations_do_not_overflow_and_keep_nan() {
        assert_eq!(Unary::Sigmoid.apply(-1e9), 0.0);
        assert_eq!(Unary::Sigmoid.apply(1e9), 1.0);
        assert_eq!(Unary::Softplus.apply(1e9), 1e9);
        assert_eq!(Unary::Softplus.apply(-1e9), 0.0);
        for op in Unary::ALL {
            assert!(op.apply(f64::NAN).is_nan() || *op == Unary::Softplus, "{op}");
        }
    }
}
