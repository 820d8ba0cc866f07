//! The derivative of an expression with respect to the score or a tensor, as another expression over the recomputed
//! score.
//!
//! Derivatives are computed together with the values (forward mode), because then the arm of a selection that is not
//! taken never enters a product: the reverse mode multiplies its infinities by zero and gets NaN.

use super::arena::Arena;
use super::canon;
use super::limits::MAX_DERIVED_NODES;
use super::node::{Node, NodeId, TensorId, Ty};
use super::program::{Derived, Program, ScoreExpr};
use super::rules::{self, Tangent};
use super::simplify::Simplifier;
use super::term::Term;

/// The variable of a derivative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wrt {
    /// The scaled score.
    Score,
    /// The element of a tensor.
    Tensor(TensorId),
}

/// A derivative that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeriveError {
    /// The expression is not a float.
    #[error(
        "an expression of type {given} has no derivative; only floats have one; put masks into the mask of the attention"
    )]
    NotAScore {
        /// Type of the expression.
        given: Ty,
    },
    /// The derivative is zero everywhere because of the expression's structure, so a gradient would be zeros without an
    /// error.
    #[error(
        "the expression has no derivative with respect to {by}: {why}; do not request this gradient, or use {by} in arithmetic"
    )]
    NoDerivative {
        /// The variable: the score, or a tensor with its name.
        by: String,
        /// How the expression uses it.
        why: &'static str,
    },
    /// The table has no such tensor.
    #[error("the expression has {count} tensors, and none has the number {}", tensor.0)]
    NoSuchTensor {
        /// The tensor.
        tensor: TensorId,
        /// The number of tensors.
        count: usize,
    },
    /// The author's own derivative does not fit the expression ([`super::OverrideError`]).
    #[error("{error}")]
    Own {
        /// The reason.
        error: String,
    },
    /// The derivative has too many nodes.
    #[error("the derivative has more than {limit} nodes; split the expression, or move parts into a bias tensor")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
}

/// The derivative of a float expression, simplified. It is the constant 0 ([`Derived::is_zero`]) if the expression
/// depends on the variable only through comparisons, conditions, `floor` and `ceil`; [`super::vjp`] refuses those.
///
/// Conventions for points without a derivative:
///
/// | at | value |
/// |---|---|
/// | `abs` and `relu` at 0 | 0 |
/// | `min`, `max` of equal operands, and where one is NaN | that of the operand printed second; constants are printed last, so `max(x, 0)` agrees with `relu(x)` |
/// | `floor`, `ceil` | 0, also at whole numbers |
/// | `%`, `floor_rem` at their jumps | the value beside the jump |
/// | `pow(a, b)` with respect to `b` at `a` = 0, with respect to `a` at `b` = 0 | 0 |
/// | the border of a selection | that of the selected arm; conditions have no derivative |
/// | poles (`log` at 0, division by 0, ...) | the IEEE 754 result of the formula |
///
/// The formula equals the derivative over the real numbers; products are rearranged so that factors cancel.
///
/// # Errors
/// If the expression is not a float, the tensor does not exist, or the derivative is too large.
pub fn derivative(expr: &ScoreExpr, wrt: Wrt) -> Result<Derived, DeriveError> {
    let program = expr.program();
    if program.root_ty() != Ty::Float {
        return Err(DeriveError::NotAScore { given: program.root_ty() });
    }
    let by = match wrt {
        Wrt::Score => Node::Score,
        Wrt::Tensor(tensor) if tensor.at() < program.tensors().len() => Node::Tensor(tensor),
        Wrt::Tensor(tensor) => return Err(DeriveError::NoSuchTensor { tensor, count: program.tensors().len() }),
    };
    let mut s = Simplifier::over(Arena::over(program.operands().clone()));
    let root = tangent(program, by, &mut s)?;
    let root = match root.filter(|t| !t.is_zero()) {
        Some(term) => term.write(&mut s),
        None => s.literal(0.0),
    };
    let nodes = canon::ordered(&s.arena, root);
    if nodes.len() > MAX_DERIVED_NODES {
        return Err(DeriveError::TooLarge { limit: MAX_DERIVED_NODES });
    }
    Ok(Derived::from_program(Program::from_parts(nodes, program.operands().clone())))
}

fn tangent(program: &Program, by: Node, s: &mut Simplifier) -> Result<Tangent, DeriveError> {
    let mut values: Vec<NodeId> = Vec::with_capacity(program.nodes().len());
    let mut tangents: Vec<Tangent> = Vec::with_capacity(program.nodes().len());
    for &node in program.nodes() {
        let value = s.node(node.map_operands(|id| values[id.at()]));
        let next = if node == by { Some(Term::one()) } else { chained(node, value, &values, &tangents, s) };
        values.push(value);
        tangents.push(next.filter(|t| !t.is_zero()));
        if s.arena.len() > MAX_DERIVED_NODES {
            return Err(DeriveError::TooLarge { limit: MAX_DERIVED_NODES });
        }
    }
    Ok(tangents.pop().flatten())
}

fn chained(node: Node, y: NodeId, values: &[NodeId], tangents: &[Tangent], s: &mut Simplifier) -> Tangent {
    let of = |id: NodeId| tangents[id.at()].clone();
    let value = |id: NodeId| values[id.at()];
    match node {
        Node::Unary(op, a) => of(a).and_then(|t| rules::unary(s, op, value(a), y, t)),
        Node::Binary(op, a, b) => match (of(a), of(b)) {
            (None, None) => None,
            (ta, tb) => rules::binary(s, op, [value(a), value(b)], y, ta, tb),
        },
        Node::Select { keep, yes, no } => rules::choice(s, value(keep), of(yes), of(no)),
        // Constants and other leaves, integers and truth values have no derivative.
        Node::Score
        | Node::Upstream
        | Node::Index(_)
        | Node::Length(_)
        | Node::Float(_)
        | Node::Int(_)
        | Node::Bool(_)
        | Node::Scalar(_)
        | Node::Tensor(_)
        | Node::ToFloat(_)
        | Node::Compare(..)
        | Node::Not(_)
        | Node::Logic(..) => None,
    }
}

/// The same expression in simpler form: parts that provably change nothing are removed (see the rules in `simplify`).
#[must_use]
pub fn simplified(expr: &ScoreExpr) -> ScoreExpr {
    let program = expr.program();
    let mut s = Simplifier::over(Arena::over(program.operands().clone()));
    let mut values: Vec<NodeId> = Vec::with_capacity(program.nodes().len());
    for &node in program.nodes() {
        values.push(s.node(node.map_operands(|id| values[id.at()])));
    }
    // If no canonical order is found for the simplified expression, the original is used.
    canon::closed(&s.arena, values[program.root().at()]).unwrap_or_else(|_| expr.clone())
}
