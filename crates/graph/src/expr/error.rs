//! Problems of expressions, each with its place, what was given, what is needed and the fix.

use std::fmt;

use super::limits::{MAX_EXTENT, MAX_NAME, MAX_SLOPES};
use super::node::{Axis, Ty};
use super::operand::{ScalarTy, TensorSpec};
use crate::DType;

/// One problem of an expression.
///
/// `place` is the path from the root of the expression to the operation at fault, for example `add.right > tanh`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExprError {
    /// An operand has a type that the operation does not support.
    #[error("at {place}: the {operand} operand of '{op}' is {given}, but {needed} is needed; {fix}")]
    WrongType {
        /// Path of the operation.
        place: String,
        /// Name of the operation.
        op: &'static str,
        /// Which operand.
        operand: &'static str,
        /// Type of that operand.
        given: Ty,
        /// Types that are supported.
        needed: &'static str,
        /// What to write instead.
        fix: &'static str,
    },
    /// A constant is NaN or infinite.
    #[error(
        "at {place}: the constant {given} is not finite; hide scores with the mask of the attention, or use a large finite number such as -1e9"
    )]
    NotFinite {
        /// Path of the constant.
        place: String,
        /// The number as text (NaN does not equal itself).
        given: String,
    },
    /// An integer remainder or floor division by the constant 0.
    #[error("at {place}: '{op}' by the constant 0; the divisor must be another integer")]
    DivisionByZero {
        /// Path of the operation.
        place: String,
        /// Name of the operation.
        op: &'static str,
    },
    /// A floor division by an operand that is not a constant.
    #[error(
        "at {place}: '{op}' by something that is not a constant; divide by an integer such as 128, or divide floats and take the floor"
    )]
    NoConstant {
        /// Path of the operation.
        place: String,
        /// Name of the operation.
        op: &'static str,
    },
    /// A name that text forms and messages cannot contain.
    #[error(
        "the name '{name}' is refused: a letter or '_' followed by letters, digits or '_', at most {MAX_NAME} characters in all, is needed"
    )]
    BadName {
        /// The name, cut to a displayable length.
        name: String,
    },
    /// One name is used for two different operands.
    #[error("'{name}' is {first} and also {second}; give them different names")]
    NameConflict {
        /// The name.
        name: String,
        /// Its first meaning.
        first: Box<OperandKind>,
        /// Its other meaning.
        second: Box<OperandKind>,
    },
    /// A tensor with an element type that expressions do not read.
    #[error("the tensor '{name}' is {given}; f32, f16, bf16 (read as float) or i32 (read as int) is needed")]
    TensorType {
        /// The tensor.
        name: String,
        /// Its element type.
        given: DType,
    },
    /// A tensor with an invalid extent.
    #[error("the tensor '{name}' has extent {given} over {axis}; 1 to {MAX_EXTENT} is needed, and fewer than 2^63 elements in all", axis = axis.name())]
    Extent {
        /// The tensor.
        name: String,
        /// Its dimension.
        axis: Axis,
        /// Its extent.
        given: i64,
    },
    /// A gradient of an integer tensor is requested.
    #[error("the tensor '{name}' is {given} and has no gradient: only float tensors have one; use Grad::None")]
    IntegerGradient {
        /// The tensor.
        name: String,
        /// Its element type.
        given: DType,
    },
    /// A tensor that cannot hold its declared ALiBi slopes.
    #[error(
        "the tensor '{name}' is {}; ALiBi slopes need f32[1, heads, 1, 1] without a gradient, for heads that the model has and at most {MAX_SLOPES}, with a maximum above 0",
        OperandKind::Tensor(*given)
    )]
    Slopes {
        /// The tensor.
        name: String,
        /// Its specification.
        given: TensorSpec,
    },
    /// More of something than an expression may have.
    #[error(
        "the expression has {given} {what}, and at most {limit} are allowed; split it, or move parts into a bias tensor"
    )]
    TooMany {
        /// The things that are counted.
        what: &'static str,
        /// Their number (at least).
        given: usize,
        /// The largest number.
        limit: usize,
    },
    /// Operands that could not be distinguished within reasonable time.
    #[error(
        "no canonical order of the {operands} scalars and tensors was found in {tried} tries, because their uses are too similar; make their uses differ"
    )]
    TooSymmetric {
        /// Number of scalars and tensors.
        operands: usize,
        /// Number of orders that were tried.
        tried: usize,
    },
    /// The whole expression has another type than required.
    #[error("the expression is {given}, but {needed} is needed here; {fix}")]
    RootType {
        /// Type of the expression.
        given: Ty,
        /// The required type.
        needed: Ty,
        /// What to write instead.
        fix: &'static str,
    },
    /// A list of nodes that is not an expression.
    #[error("node {node}: {why}; nodes must refer to earlier nodes, and to scalars and tensors of their tables")]
    BadArena {
        /// Position of the node.
        node: usize,
        /// The fault.
        why: &'static str,
    },
}

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandKind {
    /// A host scalar.
    Scalar(ScalarTy),
    /// A device tensor.
    Tensor(TensorSpec),
}

impl fmt::Display for OperandKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OperandKind::Scalar(ty) => write!(f, "a scalar ({})", ty.ty()),
            OperandKind::Tensor(TensorSpec { dims: [b, h, q, k], dtype, grad, alibi }) => {
                write!(f, "a tensor ({dtype}[{b}, {h}, {q}, {k}], gradient {grad:?}")?;
                match alibi {
                    None => f.write_str(")"),
                    Some(slopes) => write!(f, ", {slopes})"),
                }
            }
        }
    }
}

/// Every problem of an expression; never empty.
#[derive(Clone, Debug, PartialEq)]
pub struct ExprErrors(Vec<ExprError>);

impl ExprErrors {
    /// `None` for an empty list.
    pub(super) fn from_list(problems: Vec<ExprError>) -> Option<Self> {
        (!problems.is_empty()).then_some(ExprErrors(problems))
    }

    /// The problems in the order in which they were found: operands before the operations that use them.
    #[must_use]
    pub fn list(&self) -> &[ExprError] {
        &self.0
    }

    /// The problems one by one.
    pub fn iter(&self) -> std::slice::Iter<'_, ExprError> {
        self.0.iter()
    }

    /// The problems, by value.
    #[must_use]
    pub fn into_list(self) -> Vec<ExprError> {
        self.0
    }
}

impl<'e> IntoIterator for &'e ExprErrors {
    type Item = &'e ExprError;
    type IntoIter = std::slice::Iter<'e, ExprError>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl From<ExprError> for ExprErrors {
    fn from(problem: ExprError) -> Self {
        ExprErrors(vec![problem])
    }
}

impl fmt::Display for ExprErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ExprErrors {}
