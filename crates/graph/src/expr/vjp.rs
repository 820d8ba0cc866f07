//! The backward of a score expression: the factor for the score, and one for every tensor that asks for its gradient.

use super::derive::{DeriveError, Wrt, derivative};
use super::node::{Axis, Node, NodeId, TensorId, Ty};
use super::operand::{Grad, TensorSpec};
use super::own_backward::over_operands_of;
use super::program::{Derived, Program, ScoreExpr};

/// What the backward of a score expression needs. With `g` the gradient of the loss by the value of the expression at a point:
/// the gradient by the score is `g * d_score`, and by an element of a tensor the sum of `g * factor` over the points that read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vjp {
    /// Derivative of the expression by the score.
    pub d_score: Derived,
    /// One entry for each tensor with [`Grad::Needed`], in the order of the tensors.
    pub d_tensors: Vec<TensorGrad>,
}

/// The gradient of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorGrad {
    /// Which tensor.
    pub tensor: TensorId,
    /// Derivative of the expression by the element of the tensor.
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

/// Derives the backward. Every gradient asked for is given or refused; none is silently zero.
///
/// # Errors
/// Every derivative that cannot be had: of an expression that is no float, by the score if no gradient passes through it,
/// by a tensor with [`Grad::Needed`] that the value depends on only through conditions, comparisons, `floor` and `ceil`.
pub fn vjp(expr: &ScoreExpr) -> Result<Vjp, Vec<DeriveError>> {
    with(expr, None)
}

/// The backward of `expr` with `own` as the derivative by the score; gradients of tensors are derived.
///
/// # Errors
/// As [`vjp`], but for the score; and if `own` reads what `expr` does not.
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

/// Why a derivative is zero, in words.
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

/// Whether a way from the node to the root consists of operations that have derivatives.
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
