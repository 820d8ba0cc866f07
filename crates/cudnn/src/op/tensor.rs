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
    #[serde(deserialize_with = "qkvault_graph::codec::present")]
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
    /// A number that each launch computes from its origins.
    OfOrigins(OfOrigins),
}

/// The number `start + query · query_origin + key · key_origin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfOrigins {
    /// Its element type, i32 or f32.
    pub dtype: DType,
    /// The number if both origins are zero.
    pub start: i32,
    /// Factor of the queries' origin: -1, 0 or 1.
    pub query: i8,
    /// Factor of the keys' origin: -1, 0 or 1.
    pub key: i8,
    /// The least number with which every query sees a key, if the attention promises that.
    pub least: Option<i32>,
}

impl OfOrigins {
    /// The number in a launch with these origins of queries and keys.
    #[must_use]
    pub const fn value(self, [query, key]: [i32; 2]) -> i32 {
        let OfOrigins { dtype: _, start, query: by_query, key: by_key, least: _ } = self;
        start.wrapping_add(query.wrapping_mul(by_query as i32)).wrapping_add(key.wrapping_mul(by_key as i32))
    }

    /// Whether a launch may have these origins.
    #[must_use]
    pub const fn accepts(self, origins: [i32; 2]) -> bool {
        match self.least {
            Some(least) => self.value(origins) >= least,
            None => true,
        }
    }
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
            Constant::OfOrigins(OfOrigins { dtype, .. }) => dtype,
        }
    }

    /// The value as bytes in host order, as cuDNN reads it, in a launch with these origins of queries and keys.
    #[must_use]
    pub const fn bytes(self, origins: [i32; 2]) -> [u8; 4] {
        match self {
            Constant::F32(bits) => bits.to_ne_bytes(),
            Constant::I32(value) => value.to_ne_bytes(),
            Constant::OfOrigins(number) => match number.dtype {
                DType::F32 => (number.value(origins) as f32).to_ne_bytes(),
                _ => number.value(origins).to_ne_bytes(),
            },
        }
    }
}
