//! The least number that an expression may give, for kernels that cannot hold the lowest floats.
//!
//! Kernels whose exponentials have the base 2 multiply scores by `log2(e)`: a score below the lowest float over that
//! factor becomes minus infinity, and a row of such scores one of infinities. Padding masks are biases of the lowest
//! float, so such rows are common (pytorch issue 109517).

use super::node::{Node, NodeId};
use super::ops::{Binary, Unary};
use super::program::Program;
use crate::DType;

/// How kernels with exponentials of base 2 hold the lowest floats: what is below [`Lowest::BEGIN`] becomes
/// `x * FACTOR + SHIFT`, which is larger. Order stays, and so do minus infinity and what is no number.
///
/// The lowest float becomes -2.275e38, and times `log2(e)` that is -3.283e38, a float. `max(x, x * FACTOR + SHIFT)`
/// computes it, because the two lines meet at [`Lowest::BEGIN`].
#[derive(Clone, Copy, Debug)]
pub struct Lowest;

impl Lowest {
    /// Where it begins.
    pub const BEGIN: f32 = -2.2e38;
    /// What the score is multiplied by.
    pub const FACTOR: f32 = 0.0625;
    /// What is added to the product: `BEGIN * (1 - FACTOR)`.
    pub const SHIFT: f32 = -2.0625e38;
    /// The least score that stays a float when it is multiplied by `log2(e)`.
    pub const HELD: f32 = -2.3586e38;
}

/// Largest magnitude that scores are taken to have.
const SCORES: f64 = (1 << 30) as f64;

/// Largest magnitude of a number of a launch that something is multiplied by, and of the reciprocal of one that it is
/// divided by: a slope, a cap or a weight, and never a mask.
const FACTORS: f64 = 1e6;

/// The finite numbers that a node may have; none if `least > most`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reach {
    least: f64,
    most: f64,
}

const MOST: f64 = f32::MAX as f64;

impl Reach {
    const ALL: Reach = Reach { least: -MOST, most: MOST };

    const fn within(magnitude: f64) -> Reach {
        Reach { least: -magnitude, most: magnitude }
    }

    /// The smallest range with these numbers. What overflows may be just below.
    fn spanning(all: &[f64]) -> Reach {
        let one = |x: f64| {
            if x.is_nan() { Reach::ALL } else { Reach { least: x.clamp(-MOST, MOST), most: x.clamp(-MOST, MOST) } }
        };
        let join = |a: Reach, b: Reach| Reach { least: a.least.min(b.least), most: a.most.max(b.most) };
        all.iter().copied().map(one).reduce(join).unwrap_or(Reach::ALL)
    }

    fn at_ends(self, other: Reach, f: impl Fn(f64, f64) -> f64) -> Reach {
        let (a, b) = (self, other);
        Reach::spanning(&[f(a.least, b.least), f(a.least, b.most), f(a.most, b.least), f(a.most, b.most)])
    }

    fn rising(self, f: impl Fn(f64) -> f64) -> Reach {
        Reach::spanning(&[f(self.least), f(self.most)])
    }

    const fn has_zero(self) -> bool {
        self.least <= 0.0 && self.most >= 0.0
    }
}

impl Program {
    /// The least finite number that the expression may give, for any scores that are not near the largest floats. What
    /// a launch gives may be any number of its type, but where something is multiplied by it or divided by it, it is
    /// taken for a slope, a cap or a weight.
    #[must_use]
    pub fn lowest(&self) -> f32 {
        self.reaches()[self.root().at()].least as f32
    }

    /// Whether the expression may give numbers that kernels with exponentials of base 2 cannot hold.
    #[must_use]
    pub fn meets_lowest(&self) -> bool {
        self.lowest() < Lowest::HELD
    }

    fn reaches(&self) -> Vec<Reach> {
        let mut all: Vec<Reach> = Vec::with_capacity(self.nodes().len());
        for &node in self.nodes() {
            let reach = self.reach(node, &|id: NodeId| all[id.at()]);
            all.push(reach);
        }
        all
    }

    fn reach(&self, node: Node, of: &impl Fn(NodeId) -> Reach) -> Reach {
        match node {
            Node::Score | Node::Upstream => Reach::within(SCORES),
            Node::Float(x) => Reach::spanning(&[x.value().into()]),
            Node::ToFloat(_) => Reach::within(f64::from(u32::MAX)),
            Node::Tensor(id) if self.tensors()[id.at()].dtype == DType::F16 => Reach::within(65_504.0),
            Node::Unary(op, a) => unary(op, of(a)),
            Node::Binary(op, a, b) => self.binary(op, [a, b], of),
            Node::Select { keep: _, yes, no } => {
                let (yes, no) = (of(yes), of(no));
                Reach { least: yes.least.min(no.least), most: yes.most.max(no.most) }
            }
            Node::Scalar(_)
            | Node::Tensor(_)
            | Node::Index(_)
            | Node::Length(_)
            | Node::Int(_)
            | Node::Bool(_)
            | Node::Compare(..)
            | Node::Not(_)
            | Node::Logic(..) => Reach::ALL,
        }
    }

    /// The reach of a factor.
    fn factor(&self, id: NodeId, reach: Reach) -> Reach {
        match self.node(id) {
            Node::Scalar(_) | Node::Tensor(_) => {
                Reach { least: reach.least.max(-FACTORS), most: reach.most.min(FACTORS) }
            }
            _ => reach,
        }
    }

    fn binary(&self, op: Binary, [a, b]: [NodeId; 2], of: &impl Fn(NodeId) -> Reach) -> Reach {
        let (x, y) = (of(a), of(b));
        match op {
            Binary::Add => x.at_ends(y, |x, y| x + y),
            Binary::Sub => x.at_ends(y, |x, y| x - y),
            Binary::Mul => self.factor(a, x).at_ends(self.factor(b, y), |x, y| x * y),
            Binary::Div if !y.has_zero() => x.at_ends(y, |x, y| x / y),
            Binary::Div => match self.node(b) {
                Node::Scalar(_) | Node::Tensor(_) => self.factor(a, x).at_ends(Reach::within(FACTORS), |x, y| x * y),
                _ => Reach::ALL,
            },
            Binary::Min => Reach { least: x.least.min(y.least), most: x.most.min(y.most) },
            Binary::Max => Reach { least: x.least.max(y.least), most: x.most.max(y.most) },
            Binary::Rem | Binary::FloorRem => Reach::within(y.least.abs().max(y.most.abs())),
            Binary::Atan2 => Reach::within(4.0),
            Binary::Pow if y.least == y.most && y.least >= 0.0 => {
                Reach::within(x.least.abs().max(x.most.abs()).max(1.0).powf(y.most).min(MOST))
            }
            Binary::Pow | Binary::FloorDiv => Reach::ALL,
        }
    }
}

fn unary(op: Unary, x: Reach) -> Reach {
    match op {
        Unary::Neg => Reach { least: -x.most, most: -x.least },
        Unary::Abs if x.has_zero() => Reach { least: 0.0, most: x.most.max(-x.least) },
        Unary::Abs => Reach::spanning(&[x.least.abs(), x.most.abs()]),
        Unary::Exp => x.rising(f64::exp),
        Unary::Log => Reach::within(104.0),
        Unary::Sqrt => Reach { least: 0.0, most: x.most.max(0.0).sqrt() },
        Unary::Rsqrt => Reach { least: 0.0, most: 1e23 },
        Unary::Reciprocal if x.has_zero() => Reach::ALL,
        Unary::Reciprocal => x.rising(f64::recip),
        Unary::Sin | Unary::Cos | Unary::Tanh | Unary::Erf | Unary::Sigmoid => Reach::within(1.0),
        Unary::Tan => Reach::within(1e9),
        Unary::Floor | Unary::Ceil => x,
        Unary::Relu => x.rising(|x| x.max(0.0)),
        Unary::Elu | Unary::Gelu | Unary::GeluTanh | Unary::Swish => Reach { least: -1.0, most: x.most.max(0.0) },
        Unary::Softplus => Reach { least: 0.0, most: (x.most + 1.0).clamp(1.0, MOST) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::parse_expr;

    #[test]
    fn masks_of_the_lowest_float_are_found_and_slopes_are_none() {
        for (text, meets) in [
            ("score", false),
            ("score - 1.0e9", false),
            ("score * score * score", false),
            ("select(query >= 16, score, -3.0e38)", true),
            ("select(query >= 16, score, -1.0e38)", false),
            ("score + select(key < query, 0.0, -3.4028234e38)", true),
            ("tensor @bias: f32[1, 1, 8, 8]; score + @bias", true),
            ("tensor @bias: bf16[1, 1, 8, 8]; score * 0.5 + @bias", true),
            ("tensor @bias: f16[1, 1, 8, 8]; score + @bias", false),
            ("tensor @bias: f16[1, 1, 8, 8]; score + @bias * -3.4028234e38", true),
            ("tensor @keep: f32[1, 1, 8, 8]; score + (1.0 - @keep) * -3.4028234e38", true),
            ("tensor @keep: i32[1, 1, 8, 8]; select(@keep > 0, score, -3.4028234e38)", true),
            ("tensor @keep: i32[1, 1, 8, 8]; score + float(1 - @keep) * -1.0e9", false),
            ("tensor @slopes: f32[1, 2, 1, 1]; score + @slopes * float(key - query)", false),
            ("tensor @weights: f32[1, 1, 8, 8]; score * @weights", false),
            ("scalar $cap: float; tanh(score / $cap) * $cap", false),
            ("scalar $lowest: float; select(key < query, score, $lowest)", true),
            ("max(score - 3.0e38, -1.0e30)", false),
            ("min(score, 5.0)", false),
            ("-exp(score)", true),
            ("pow(score, 2.0) - softplus(score)", false),
        ] {
            let program = parse_expr(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(program.meets_lowest(), meets, "{text}: {}", program.lowest());
        }
    }

    #[test]
    fn what_is_compressed_is_held_and_keeps_its_order() {
        let held = |x: f32| x.max(x * Lowest::FACTOR + Lowest::SHIFT);
        let log2e = std::f32::consts::LOG2_E;
        assert!((f32::MIN * log2e).is_infinite() && (held(f32::MIN) * log2e).is_finite());
        assert!((Lowest::HELD * log2e).is_finite() && (Lowest::HELD * 1.0001 * log2e).is_infinite());
        let list = [f32::MIN, -3.389_531_4e38, -3e38, -2.5e38, -2.3e38, Lowest::BEGIN, -2e38, -1e30, -5.0, 0.0, 3e38];
        assert!(list.map(held).is_sorted_by(|a, b| a < b), "{:?}", list.map(held));
        assert!(list.iter().all(|&x| x <= Lowest::BEGIN || held(x) == x));
        assert!(held(f32::NEG_INFINITY) == f32::NEG_INFINITY && held(f32::NAN).is_nan());
    }
}
