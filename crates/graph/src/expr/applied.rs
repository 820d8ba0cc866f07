//! A derivative times the upstream gradient: `factor` becomes `upstream * factor`, in the form that cuDNN accepts and
//! runs best.

use super::arena::Arena;
use super::canon;
use super::node::{Node, NodeId};
use super::ops::{Binary, Unary};
use super::program::{Derived, Program};
use super::simplify::Simplifier;

impl Derived {
    /// `upstream * self`, where the upstream gradient is [`Node::Upstream`].
    ///
    /// The product is moved inside if that saves operations or keeps scalars from being the first operand: `upstream *
    /// (1 - t^2)` becomes `upstream - upstream * t^2`, a division stays a division, and a selection between a number
    /// and zero selects the product.
    #[must_use]
    pub fn applied(&self) -> Derived {
        let program = self.program();
        let mut arena = Arena::over(program.operands().clone());
        // Derivatives are already in their simplest form, and adding the nodes unchanged keeps their ids.
        for &node in program.nodes() {
            arena.add(node);
        }
        let mut s = Simplifier::over(arena);
        let upstream = s.node(Node::Upstream);
        let root = apply(&mut s, upstream, program.root());
        let nodes = canon::ordered(&s.arena, root);
        Derived::from_program(Program::from_parts(nodes, program.operands().clone()))
    }
}

/// `upstream * factor`, with products and quotients at the root of the factor split.
fn apply(s: &mut Simplifier, mut upstream: NodeId, mut factor: NodeId) -> NodeId {
    loop {
        match s.arena.node(factor) {
            Node::Binary(Binary::Mul, a, b) => {
                // The second factor comes first: it is the scalar, if one of them is.
                upstream = product(s, upstream, b);
                factor = a;
            }
            Node::Binary(Binary::Div, a, b) => {
                upstream = s.div(upstream, b);
                factor = a;
            }
            Node::Unary(Unary::Reciprocal, b) => return s.div(upstream, b),
            Node::Unary(Unary::Neg, a) => {
                let applied = product(s, upstream, a);
                return s.neg(applied);
            }
            _ => return product(s, upstream, factor),
        }
    }
}

/// One multiplication, moved inside a sum with 1 or a selection with 0 or 1.
fn product(s: &mut Simplifier, upstream: NodeId, factor: NodeId) -> NodeId {
    let unit = |s: &Simplifier, id: NodeId| s.constant(id).map(|c| c.value()).filter(|c| [0.0, 1.0, -1.0].contains(c));
    match s.arena.node(factor) {
        Node::Binary(Binary::Add, a, b) if unit(s, b).is_some() => {
            let (left, right) = (s.mul(upstream, a), unit_product(s, upstream, b));
            s.add(left, right)
        }
        Node::Binary(Binary::Sub, a, b) if unit(s, b).is_some() => {
            let (left, right) = (s.mul(upstream, a), unit_product(s, upstream, b));
            s.sub(left, right)
        }
        Node::Select { keep, yes, no } if unit(s, yes).is_some() || unit(s, no).is_some() => {
            let (yes, no) = (unit_product(s, upstream, yes), unit_product(s, upstream, no));
            s.select(keep, yes, no)
        }
        _ => s.mul(upstream, factor),
    }
}

/// A product with one of these constants, or with the other operand. A factor of 0 gives 0 even if the upstream
/// gradient is infinite: masked scores have no gradient.
fn unit_product(s: &mut Simplifier, upstream: NodeId, factor: NodeId) -> NodeId {
    match s.constant(factor) {
        Some(zero) if zero.value() == 0.0 => factor,
        Some(_) => s.mul(upstream, factor),
        // At most one of two arms gets here, so shared parts are visited once.
        None => apply(s, upstream, factor),
    }
}
