//! The operands of an expression, of two kinds: scalars, which are numbers on the host, and device tensors.
//!
//! There are no host tensors of several elements: a scalar is one number, and anything larger is a device tensor.

use serde::{Deserialize, Serialize};

use super::alibi::AlibiSlopes;
use super::node::{Axis, Ty};
use crate::DType;

/// Type of a scalar: how the host passes the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScalarTy {
    /// A float32.
    Float,
    /// A 32-bit signed integer.
    Int,
}

impl ScalarTy {
    /// The number of this type in canonical bytes.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            ScalarTy::Float => 1,
            ScalarTy::Int => 2,
        }
    }

    /// Type of the value inside an expression.
    #[must_use]
    pub const fn ty(self) -> Ty {
        match self {
            ScalarTy::Float => Ty::Float,
            ScalarTy::Int => Ty::Int,
        }
    }

    /// The element type of the scalar on a device.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            ScalarTy::Float => DType::F32,
            ScalarTy::Int => DType::I32,
        }
    }
}

/// A host scalar: one number that a launch gets, never part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalarSpec {
    /// How the number is passed.
    pub ty: ScalarTy,
}

/// Whether the gradient of a tensor is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grad {
    /// No gradient.
    None,
    /// The backward computes the gradient, or the description is refused.
    Needed,
}

impl Grad {
    /// The number of this value in canonical bytes.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Grad::None => 0,
            Grad::Needed => 1,
        }
    }
}

/// A device tensor that an expression reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TensorSpec {
    /// Extents over (batch, head, query, key). An extent of 1 is broadcast; any other must equal the scores' extent.
    pub dims: [i64; 4],
    /// Element type: `f32`, `f16`, `bf16` (read as float) or `i32` (read as int).
    pub dtype: DType,
    /// Whether its gradient is computed.
    pub grad: Grad,
    /// The ALiBi slopes that the tensor holds, if it does: it then is f32 with dims (1, heads, 1, 1) and has no
    /// gradient, and the code that prepares a plan puts the slopes on the GPU. The caller binds every other tensor.
    pub alibi: Option<AlibiSlopes>,
}

impl TensorSpec {
    /// A tensor without a gradient.
    #[must_use]
    pub const fn new(dtype: DType, dims: [i64; 4]) -> Self {
        TensorSpec { dims, dtype, grad: Grad::None, alibi: None }
    }

    /// The same tensor, with a gradient.
    #[must_use]
    pub const fn with_grad(self) -> Self {
        TensorSpec { grad: Grad::Needed, ..self }
    }

    /// A tensor of ALiBi slopes for this many heads of an attention.
    #[must_use]
    pub const fn of_slopes(heads: i64, slopes: AlibiSlopes) -> Self {
        TensorSpec { dims: [1, heads, 1, 1], dtype: DType::F32, grad: Grad::None, alibi: Some(slopes) }
    }

    /// Type of an element inside an expression; `None` for element types that expressions do not read.
    #[must_use]
    pub const fn ty(&self) -> Option<Ty> {
        match self.dtype {
            DType::F32 | DType::F16 | DType::BF16 => Some(Ty::Float),
            DType::I32 => Some(Ty::Int),
            DType::E4M3 | DType::E5M2 | DType::E8M0 | DType::I64 | DType::U8 | DType::Bool => None,
        }
    }

    /// The first axis on which this tensor does not broadcast to scores of extents `scores` = (batch, head, query,
    /// key).
    #[must_use]
    pub fn misfit(&self, scores: [i64; 4]) -> Option<Axis> {
        Axis::ALL.into_iter().find(|axis| self.dims[axis.dim()] != 1 && self.dims[axis.dim()] != scores[axis.dim()])
    }
}
