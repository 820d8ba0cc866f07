//! The backward of a score expression: the factor for the score, and one for every tensor with a gradient.

use super::derive::{DeriveError, Wrt, derivative};
use super::node::{Axis, Node, NodeId, TensorId, Ty};
use super::operand::{Grad, TensorSpec};
use super::own_backward::over_operands_of;
use super::program::{Derived, Program, ScoreExpr};

/// The backward of a score expression. With `g` the gradient of the loss with respect to the value of the expression at
/// a point, the gradient with respect to the score is `g * d_score`, and with respect to an element of a tensor the sum
/// of `g * factor` over the points that read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vjp {
    /// Derivative of the expression with respect to the score.
    pub d_score: Derived,
    /// One entry for each tensor with [`Grad::Needed`], in the order of the tensors.
    pub d_tensors: Vec<TensorGrad>,
}

/// The gradient of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorGrad {
    /// The tensor.
    pub tensor: TensorId,
    /// Derivative of the expression with respect to the element of the tensor.
    pub factor: Derived,
    /// Dimensions (batch, head, query, key) over which `g * factor` is summed: those in which the tensor is broadcast.
    pub reduce: [bool; 4],
}

impl TensorGrad {
    /// The axes over which `g * factor` is summed.
    pub fn reduced_axes(&self) -> impl Iterator<Item = Axis> + use<> {
        let reduce = self.reduce;
        Axis::ALL.into_iter().filter(move |axis| reduce[axis.dim()])
    }
}

/// Derives the backward. Every requested gradient is computed or refused; none is silently zero.
///
/// # Errors
/// Every derivative that does not exist: of an expression that is not a float; with respect to the score, if no
/// gradient passes through it; with respect to a tensor with [`Grad::Needed`], if the value depends on it only through
/// conditions, comparisons, `floor` and `ceil`.
pub fn vjp(expr: &ScoreExpr) -> Result<Vjp, Vec<DeriveError>> {
    with(expr, None)
}

/// The backward of `expr` with `own` as the derivative with respect to the score; gradients of tensors are derived.
///
/// # Errors
/// The same as [`vjp`], except for the score; and if `own` reads a scalar or tensor that `expr` does not read.
pub(crate) fn vjp_with(expr: &ScoreExpr, own: &ScoreExpr) -> Result<Vjp, Vec<DeriveError>> {
    let own = over_operands_of(expr, own).map_err(|error| vec![DeriveError::Own { error: error.to_string() }])?;
    with(expr, Some(own))
}

fn with(expr: &ScoreExpr, own: Option<Derived>) -> Result<Vjp, Vec<DeriveError>> {
    if expr.root_ty() != Ty::Float {
        return Err(vec![DeriveError::NotAScore { given: expr.root_ty() }]);
    }
    let mut problems = Vec::new();
    let mut nonzero = |wrt, by: String| match derivative(expr, wrt) {
        Ok(derived) if derived.is_zero() => {
            problems.push(DeriveError::NoDerivative { by, why: why_none(expr, wrt) });
            None
        }
        Ok(derived) => Some(derived),
        Err(problem) => {
            problems.push(problem);
            None
        }
    };
    let d_score = own.or_else(|| nonzero(Wrt::Score, "the score".to_owned()));
    let mut d_tensors = Vec::new();
    for (&spec, id) in expr.tensors().iter().zip(0..) {
        let TensorSpec { dims, dtype: _, grad, alibi: _ } = spec;
        let tensor = TensorId(id);
        match grad {
            Grad::None => {}
            Grad::Needed => {
                let by = format!("the tensor '{}'", expr.tensor_name(tensor));
                let factor = nonzero(Wrt::Tensor(tensor), by);
                d_tensors.extend(factor.map(|factor| TensorGrad {
                    tensor,
                    factor,
                    reduce: dims.map(|extent| extent == 1),
                }));
            }
        }
    }
    match d_score {
        Some(d_score) if problems.is_empty() => Ok(Vjp { d_score, d_tensors }),
        _ => Err(problems),
    }
}

/// The reason for a zero derivative, in words.
fn why_none(expr: &ScoreExpr, wrt: Wrt) -> &'static str {
    let leaf = match wrt {
        Wrt::Score => Node::Score,
        Wrt::Tensor(tensor) => Node::Tensor(tensor),
    };
    let Some(at) = expr.nodes().iter().position(|&node| node == leaf) else {
        return "it is not read";
    };
    if expr.ty(NodeId(at as u32)) == Ty::Int {
        return "integers have none";
    }
    if reaches_root_smoothly(expr.program(), at) {
        "its contributions cancel"
    } else {
        "it is used only in conditions, comparisons, floor or ceil, through which no gradient passes"
    }
}

/// Whether a path from the node to the root consists of operations with derivatives.
fn reaches_root_smoothly(program: &Program, at: usize) -> bool {
    let mut reached = vec![false; program.nodes().len()];
    reached[at] = true;
    for (id, &node) in program.nodes().iter().enumerate() {
        let through = |id: NodeId| reached[id.at()];
        let passes = match node {
            Node::Unary(super::ops::Unary::Floor | super::ops::Unary::Ceil, _) => false,
            Node::Unary(_, a) => through(a),
            Node::Binary(_, a, b) => through(a) || through(b),
            Node::Select { keep: _, yes, no } => through(yes) || through(no),
            _ => false,
        };
        reached[id] |= passes;
    }
    reached[program.root().at()]
}
