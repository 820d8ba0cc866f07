//! Arguments of every kind, and expressions that give each operation to them: what each engine is tried with.

use crate::expr::{Binary, Compare, Unary};

/// Numbers of both signs, zero, whole and odd ones, large, tiny, subnormal, huge, infinite, NaN.
pub const NUMBERS: [f32; 25] = [
    0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    2.5,
    -2.5,
    -7.25,
    65.0,
    -65.0,
    300.0,
    -300.0,
    1e-20,
    -1e-20,
    1e-40,
    16_777_216.0,
    1e30,
    -1e30,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

/// Second operands, as text.
const OTHERS: [&str; 19] = [
    "0.0",
    "1.0",
    "-1.0",
    "0.5",
    "-0.5",
    "2.0",
    "-2.0",
    "3.0",
    "-3.0",
    "2.5",
    "-2.5",
    "7.25",
    "65.0",
    "-66.0",
    "1e-20",
    "1e30",
    "exp(1000.0)",
    "(-exp(1000.0))",
    "sqrt(-1.0)",
];

/// Every operation on floats of the score, and of the score and another number in both orders, in the text form.
#[must_use]
pub fn of_every_operation() -> Vec<String> {
    let one = Unary::ALL.iter().map(|op| format!("{op}(score)"));
    let two = Binary::ALL
        .iter()
        .filter(|op| op.takes_float())
        .flat_map(|op| OTHERS.iter().flat_map(move |c| [format!("{op}(score, {c})"), format!("{op}({c}, score)")]));
    let compared = Compare::ALL.iter().flat_map(|op| {
        OTHERS.iter().map(move |c| format!("select(score {op} {c}, 2.0, 3.0) + select(!(score {op} {c}), 0.0, 10.0)"))
    });
    one.chain(two).chain(compared).collect()
}
