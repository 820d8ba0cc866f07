//! The nodes of a closed score expression.

use serde::{Deserialize, Serialize};

pub use super::constant::{FloatConst, NotFinite};
pub use super::leaf::{Axis, NodeId, ScalarId, Side, TensorId, Ty};
use super::ops::{Binary, Compare, Logic, Unary};

/// One node of a closed expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Node {
    /// The scaled score of (batch, head, query, key): float.
    Score,
    /// Gradient of the loss with respect to the value of the forward expression: float. Only in a [`super::Derived`].
    Upstream,
    /// A coordinate: int.
    Index(Axis),
    /// The actual length of this batch item's sequence if the attention has lengths, otherwise the dimension: int.
    Length(Side),
    /// A float constant.
    Float(FloatConst),
    /// An integer constant.
    Int(i32),
    /// A truth value.
    Bool(bool),
    /// A number that a launch gets; its type is in the scalar table.
    Scalar(ScalarId),
    /// The element of a device tensor at this point, broadcast along extents of 1: float, or int for integer tensors.
    Tensor(TensorId),
    /// An integer as a float. Exact up to 2^24 on a device.
    ToFloat(NodeId),
    /// An operation on one number.
    Unary(Unary, NodeId),
    /// An operation on two numbers of the same type.
    Binary(Binary, NodeId, NodeId),
    /// A comparison of two numbers of the same type: bool.
    Compare(Compare, NodeId, NodeId),
    /// The opposite truth value.
    Not(NodeId),
    /// An operation on two truth values.
    Logic(Logic, NodeId, NodeId),
    /// `yes` if `keep` is true, otherwise `no`. The other arm has no influence, not even as NaN.
    Select {
        /// The condition: bool.
        keep: NodeId,
        /// The value if the condition is true: float or int.
        yes: NodeId,
        /// The value if it is false, with the type of `yes`.
        no: NodeId,
    },
}

impl Node {
    /// The operands in the order of the fields.
    pub fn operands(self) -> impl Iterator<Item = NodeId> {
        let list = match self {
            Node::Score
            | Node::Upstream
            | Node::Index(_)
            | Node::Length(_)
            | Node::Float(_)
            | Node::Int(_)
            | Node::Bool(_)
            | Node::Scalar(_)
            | Node::Tensor(_) => [None, None, None],
            Node::ToFloat(a) | Node::Unary(_, a) | Node::Not(a) => [Some(a), None, None],
            Node::Binary(_, a, b) | Node::Compare(_, a, b) | Node::Logic(_, a, b) => [Some(a), Some(b), None],
            Node::Select { keep, yes, no } => [Some(keep), Some(yes), Some(no)],
        };
        list.into_iter().flatten()
    }

    /// The same node with other operands.
    #[must_use]
    pub fn map_operands(self, mut to: impl FnMut(NodeId) -> NodeId) -> Node {
        match self {
            leaf @ (Node::Score
            | Node::Upstream
            | Node::Index(_)
            | Node::Length(_)
            | Node::Float(_)
            | Node::Int(_)
            | Node::Bool(_)
            | Node::Scalar(_)
            | Node::Tensor(_)) => leaf,
            Node::ToFloat(a) => Node::ToFloat(to(a)),
            Node::Unary(op, a) => Node::Unary(op, to(a)),
            Node::Binary(op, a, b) => Node::Binary(op, to(a), to(b)),
            Node::Compare(op, a, b) => Node::Compare(op, to(a), to(b)),
            Node::Not(a) => Node::Not(to(a)),
            Node::Logic(op, a, b) => Node::Logic(op, to(a), to(b)),
            Node::Select { keep, yes, no } => Node::Select { keep: to(keep), yes: to(yes), no: to(no) },
        }
    }

    /// Number of this kind of node in canonical bytes; it never changes and is never reused.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Node::Score => 1,
            Node::Upstream => 2,
            Node::Index(_) => 3,
            Node::Length(_) => 4,
            Node::Float(_) => 5,
            Node::Int(_) => 6,
            Node::Bool(_) => 7,
            Node::Scalar(_) => 8,
            Node::Tensor(_) => 9,
            Node::ToFloat(_) => 10,
            Node::Unary(..) => 11,
            Node::Binary(..) => 12,
            Node::Compare(..) => 13,
            Node::Not(_) => 14,
            Node::Logic(..) => 15,
            Node::Select { .. } => 16,
        }
    }
}
