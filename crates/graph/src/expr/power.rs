//! Powers by their exponents, for engines whose power is that of a logarithm: `2^(b log2 a)` is NaN for every base
//! below 0, and for an exponent of 0 where the logarithm is infinite.

use super::node::{Node, NodeId, Ty};
use super::ops::{Binary, Unary};
use super::program::Program;

/// The largest whole exponent that becomes products, at most twelve of them.
///
/// Products are exact to a rounding each, and a power of a logarithm is off by the exponent times one.
const MOST_FACTORS: u32 = 64;

/// How a power is computed over its whole domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// 1, whatever the base is.
    One,
    /// The base times itself: this many factors, of its reciprocal if the exponent is below 0.
    Product {
        /// The number of factors, at least 1.
        factors: u32,
        /// Whether the product is divided into 1.
        inverse: bool,
    },
    /// `2^(b log2 a)` is right: the base is never below 0, or the exponent is no whole number.
    Plain,
    /// `2^(b log2 |a|)`, with the sign of the base if the exponent is odd, which a constant tells.
    Whole {
        /// Whether the exponent is odd.
        odd: bool,
    },
    /// The exponent is known on the device alone.
    Any {
        /// Whether the base may be below 0.
        signed: bool,
    },
}

impl Program {
    /// How the power of `base` by `exponent` is computed.
    #[must_use]
    pub fn power(&self, base: NodeId, exponent: NodeId) -> Power {
        let signed = !self.is_never_negative(base);
        let Node::Float(constant) = self.node(exponent) else {
            let above_zero = matches!(self.node(base), Node::Float(x) if x.value() > 0.0);
            return if above_zero { Power::Plain } else { Power::Any { signed } };
        };
        let b = constant.value();
        if b == 0.0 {
            Power::One
        } else if b.fract() != 0.0 {
            Power::Plain
        } else if b.abs() <= MOST_FACTORS as f32 {
            Power::Product { factors: b.abs() as u32, inverse: b < 0.0 }
        } else if signed {
            Power::Whole { odd: b % 2.0 != 0.0 }
        } else {
            Power::Plain
        }
    }

    /// Whether a number is known not to be below 0 for all inputs; it may be NaN. No quotient is: a device may divide
    /// by -0.
    fn is_never_negative(&self, id: NodeId) -> bool {
        let sure = |id: NodeId| self.is_never_negative(id);
        match self.node(id) {
            Node::Float(x) => x.value() >= 0.0,
            Node::Int(n) => n >= 0,
            Node::Index(_) | Node::Length(_) => true,
            Node::ToFloat(a) => sure(a),
            Node::Unary(op, a) => match op {
                // The absolute value of the smallest integer is itself.
                Unary::Abs => self.ty(a) == Ty::Float,
                Unary::Exp | Unary::Sqrt | Unary::Rsqrt | Unary::Sigmoid | Unary::Relu | Unary::Softplus => true,
                Unary::Floor | Unary::Ceil | Unary::Tanh | Unary::Erf => sure(a),
                _ => false,
            },
            // Integers wrap.
            Node::Binary(Binary::Mul, a, b) if self.ty(id) == Ty::Float => a == b || sure(a) && sure(b),
            Node::Binary(Binary::Add, a, b) if self.ty(id) == Ty::Float => sure(a) && sure(b),
            Node::Binary(Binary::Min, a, b) => sure(a) && sure(b),
            Node::Binary(Binary::Max, a, b) => sure(a) || sure(b),
            Node::Binary(Binary::Rem, a, _) => sure(a),
            Node::Select { keep: _, yes, no } => sure(yes) && sure(no),
            _ => false,
        }
    }
}

/// The product of `factors` times `x`, by squares. `factors` is at least 1.
pub fn product<T: Copy>(x: T, factors: u32, mut times: impl FnMut(T, T) -> T) -> T {
    let (mut square, mut rest, mut found) = (x, factors, None);
    loop {
        if rest & 1 == 1 {
            found = Some(found.map_or(square, |found| times(found, square)));
        }
        rest >>= 1;
        if rest == 0 {
            return found.unwrap_or(square);
        }
        square = times(square, square);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::parse_expr;

    fn power_in(text: &str) -> Power {
        let e = parse_expr(text).expect("reads");
        let power = e.nodes().iter().find_map(|&node| match node {
            Node::Binary(Binary::Pow, a, b) => Some(e.power(a, b)),
            _ => None,
        });
        power.expect("a power")
    }

    #[test]
    fn a_power_is_computed_by_its_exponent() {
        let exact = |factors, inverse| Power::Product { factors, inverse };
        for (text, power) in [
            ("score + pow(score, 0.0)", Power::One),
            ("pow(score, 1.0)", exact(1, false)),
            ("pow(score, 3.0)", exact(3, false)),
            ("pow(abs(score), -64.0)", exact(64, true)),
            ("pow(score, 65.0)", Power::Whole { odd: true }),
            ("pow(score, -66.0)", Power::Whole { odd: false }),
            ("pow(score, 3e38)", Power::Whole { odd: false }),
            ("pow(score * score, 65.0)", Power::Plain),
            ("pow(score, 2.5)", Power::Plain),
            ("pow(2.0, score)", Power::Plain),
            ("pow(score, float(query))", Power::Any { signed: true }),
            ("pow(-2.0, score)", Power::Any { signed: true }),
            ("pow(0.0, score)", Power::Any { signed: false }),
            ("pow(exp(score) + 1.0, score)", Power::Any { signed: false }),
            ("pow(max(score, 0.5), score)", Power::Any { signed: false }),
            ("score + pow(float(query * key), score)", Power::Any { signed: true }),
        ] {
            assert_eq!(power_in(text), power, "{text}");
        }
    }

    #[test]
    fn products_have_as_many_factors() {
        for factors in 1..=MOST_FACTORS {
            let (mut times, of) = (0, product(1_u32, factors, |a, b| a + b));
            product((), factors, |(), ()| times += 1);
            assert!(of == factors && times <= 12, "{factors}: {of}, {times} products");
        }
    }
}
