//! Tensors of op graphs: their declarations, and the sources of their values.

use serde::{Deserialize, Serialize};

use super::TensorId;
use crate::{DType, Role};

/// One tensor of an op graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpTensor {
    /// Logical dims as this graph declares them (K of the composite form has its last two swapped).
    pub dims: [i64; 4],
    /// Strides in elements.
    pub strides: [i64; 4],
    /// Element type.
    pub dtype: DType,
    /// The source of the tensor's values.
    pub kind: TensorKind,
    /// The tensor of offsets at which sequences begin, for varlen operands.
    #[serde(deserialize_with = "crate::attention_form::present")]
    pub offsets: Option<TensorId>,
}

/// The source of the values of a tensor of an op graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TensorKind {
    /// The result of an operation, never in memory.
    Virtual,
    /// An operand in device memory, bound at launch.
    Operand(Role),
    /// One number on the host, given at launch.
    Scalar(Role),
    /// One number on the host, fixed by the graph. cuDNN does not store it in a plan, so the plan's record does.
    Constant(Constant),
}

/// A constant of the graph. Floats are stored as bits so that equality and hashing are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Constant {
    /// Bits of an f32.
    F32(u32),
    /// An i32.
    I32(i32),
}

impl Constant {
    /// A float constant; negative zero becomes zero.
    #[must_use]
    pub fn f32(value: f32) -> Constant {
        Constant::F32(if value == 0.0 { 0 } else { value.to_bits() })
    }

    /// The element type of its tensor.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            Constant::F32(_) => DType::F32,
            Constant::I32(_) => DType::I32,
        }
    }

    /// The value as bytes in host order, as cuDNN reads it.
    #[must_use]
    pub const fn bytes(self) -> [u8; 4] {
        match self {
            Constant::F32(bits) => bits.to_ne_bytes(),
            Constant::I32(value) => value.to_ne_bytes(),
        }
    }
}
