//! The parts of nodes: types, ids, the coordinates of a score and the sides of its matrix.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Type of a value inside a score expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ty {
    /// A real number: float32 on a device, float64 in [`super::Program::eval`].
    Float,
    /// A 32-bit signed integer that wraps.
    Int,
    /// A truth value.
    Bool,
}

impl Ty {
    /// The name used in text forms and errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Ty::Float => "float",
            Ty::Int => "int",
            Ty::Bool => "bool",
        }
    }
}

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Position of a node in [`super::Program::nodes`]. Operands always have smaller ids than the node that uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// Position of a scalar in [`super::Program::scalars`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ScalarId(pub u32);

/// Position of a tensor in [`super::Program::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TensorId(pub u32);

impl NodeId {
    /// The id as a position in a slice.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

impl ScalarId {
    /// The id as a position in a slice.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

impl TensorId {
    /// The id as a position in a slice.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

/// One of the four coordinates of a score. The discriminant is its dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Sequence in the batch, from 0.
    Batch = 0,
    /// Query head, from 0.
    Head = 1,
    /// Query of the launch within its sequence, from 0.
    Query = 2,
    /// Key position within its sequence, from 0.
    Key = 3,
}

impl Axis {
    /// The four axes in the order of the dimensions.
    pub const ALL: [Axis; 4] = [Axis::Batch, Axis::Head, Axis::Query, Axis::Key];

    /// The dimension of this coordinate (0 to 3), which is also its number in canonical bytes.
    #[must_use]
    pub const fn dim(self) -> usize {
        self as usize
    }

    /// The name used in text forms.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Axis::Batch => "batch",
            Axis::Head => "head",
            Axis::Query => "query",
            Axis::Key => "key",
        }
    }
}

/// The side of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The queries.
    Query = 0,
    /// The keys and values.
    Key = 1,
}

impl Side {
    /// Both sides.
    pub const ALL: [Side; 2] = [Side::Query, Side::Key];

    /// The number of this side in canonical bytes.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The name of that length in text forms.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Side::Query => "query_len",
            Side::Key => "key_len",
        }
    }
}
