//! Each operation on numbers, and its slope: written from the definitions in `qkvault_graph::expr`, in float64.
//!
//! The language has one zero: no operation receives or returns -0, so the sign of zero never shows (in a division by
//! it, or in `atan2`). Booleans are 0 and 1, and integers have 32 bits and wrap; float64 holds both exactly.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use qkvault_graph::expr::{Binary, Compare, Logic, Unary};

/// The number, with -0 as 0.
fn unsigned(x: f64) -> f64 {
    x + 0.0
}

pub(crate) fn unary(op: Unary, x: f64) -> f64 {
    let x = unsigned(x);
    unsigned(match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => sigmoid(x),
        Unary::Erf => libm::erf(x),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
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
        Unary::Gelu => x * normal_cdf(x),
        Unary::GeluTanh => 0.5 * x * (1.0 + gelu_argument(x).tanh()),
        Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Unary::Swish => x * sigmoid(x),
    })
}

/// The slope of a unary operation at `x`, where its value is `y`.
///
/// At a kink or a step, the slope is defined as follows: 0 for `abs` at 0, the left slope for `relu`, the right slope
/// for `elu` (where both are 1), and 0 for the steps of `floor` and `ceil`.
pub(crate) fn slope(op: Unary, x: f64, y: f64) -> f64 {
    let (x, y) = (unsigned(x), unsigned(y));
    match op {
        Unary::Neg => -1.0,
        Unary::Abs => {
            if x == 0.0 {
                0.0
            } else {
                x.signum()
            }
        }
        Unary::Exp => y,
        Unary::Log => 1.0 / x,
        Unary::Sqrt => 0.5 / y,
        Unary::Rsqrt => -0.5 * y * y * y,
        Unary::Reciprocal => -y * y,
        Unary::Sin => x.cos(),
        Unary::Cos => -x.sin(),
        Unary::Tan => 1.0 + y * y,
        Unary::Tanh => 1.0 - y * y,
        Unary::Sigmoid => y * (1.0 - y),
        Unary::Erf => FRAC_2_SQRT_PI * (-x * x).exp(),
        Unary::Floor | Unary::Ceil => 0.0,
        Unary::Relu => {
            if x > 0.0 {
                1.0
            } else {
                0.0
            }
        }
        Unary::Elu => {
            if x < 0.0 {
                x.exp()
            } else {
                1.0
            }
        }
        Unary::Gelu => normal_cdf(x) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt(),
        Unary::GeluTanh => {
            let t = gelu_argument(x).tanh();
            let inner = (2.0 / PI).sqrt() * (1.0 + 3.0 * GELU_CUBE * x * x);
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner
        }
        Unary::Softplus => sigmoid(x),
        Unary::Swish => {
            let s = sigmoid(x);
            s + x * s * (1.0 - s)
        }
    }
}

const GELU_CUBE: f64 = 0.044_715;

fn gelu_argument(x: f64) -> f64 {
    (2.0 / PI).sqrt() * (x + GELU_CUBE * x * x * x)
}

fn normal_cdf(x: f64) -> f64 {
    0.5 * (1.0 + libm::erf(x * FRAC_1_SQRT_2))
}

fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

pub(crate) fn binary(op: Binary, a: f64, b: f64) -> f64 {
    let (a, b) = (unsigned(a), unsigned(b));
    unsigned(match op {
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
            if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
        }
        Binary::Atan2 => a.atan2(b),
        Binary::FloorDiv => (a / b).floor(),
    })
}

/// The slopes of a binary operation along its two operands at (a, b), where its value is `y`.
///
/// Where the slope does not exist: at a tie of `min` and `max` the second operand has the whole slope; at the jump of a
/// remainder the slopes are those beside it; `pow` is flat along its base if the exponent is 0, and along its exponent
/// if the base is 0.
pub(crate) fn slopes(op: Binary, a: f64, b: f64, y: f64) -> [f64; 2] {
    let (a, b) = (unsigned(a), unsigned(b));
    let first = |taken: bool| if taken { [1.0, 0.0] } else { [0.0, 1.0] };
    match op {
        Binary::Add => [1.0, 1.0],
        Binary::Sub => [1.0, -1.0],
        Binary::Mul => [b, a],
        Binary::Div => [1.0 / b, -y / b],
        Binary::Min => first(a < b),
        Binary::Max => first(a > b),
        Binary::Pow => {
            let to_base = if b == 0.0 { 0.0 } else { b * a.powf(unsigned(b - 1.0)) };
            let to_exponent = if a == 0.0 { 0.0 } else { y * a.ln() };
            [to_base, to_exponent]
        }
        // The integer quotient that this remainder belongs to; `a / b` itself may round up to the next integer.
        Binary::Rem | Binary::FloorRem => [1.0, -((a - y) / b).round()],
        Binary::FloorDiv => [0.0, 0.0],
        Binary::Atan2 => {
            let r = a * a + b * b;
            [b / r, -a / r]
        }
    }
}

pub(crate) fn unary_int(op: Unary, x: f64) -> f64 {
    let n = x as i32;
    f64::from(if op == Unary::Neg { n.wrapping_neg() } else { n.wrapping_abs() })
}

pub(crate) fn binary_int(op: Binary, a: f64, b: f64) -> f64 {
    let (a, b) = (a as i32, b as i32);
    f64::from(match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        // The language defines a remainder by zero as zero; it has no quotient by zero.
        Binary::Rem | Binary::FloorRem | Binary::FloorDiv if b == 0 => 0,
        Binary::Rem => a.wrapping_rem(b),
        Binary::FloorRem => {
            let r = a.wrapping_rem(b);
            if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
        }
        Binary::FloorDiv => (i64::from(a)).div_euclid(i64::from(b)) as i32 - i32::from(b < 0 && a.wrapping_rem(b) != 0),
        Binary::Div | Binary::Pow | Binary::Atan2 => unreachable!("the language has {op} for floats only"),
    })
}

pub(crate) fn compare(op: Compare, a: f64, b: f64) -> bool {
    match op {
        Compare::Eq => a == b,
        Compare::Ne => a != b,
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Gt => a > b,
        Compare::Ge => a >= b,
    }
}

pub(crate) fn logic(op: Logic, a: f64, b: f64) -> bool {
    match op {
        Logic::And => a != 0.0 && b != 0.0,
        Logic::Or => a != 0.0 || b != 0.0,
    }
}
