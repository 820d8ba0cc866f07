//! The nodes of a score expression: what a closed expression is made of, and of which type each piece is.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ops::{Binary, Compare, Logic, Unary};

/// Ty of a value inside a score expression.
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

/// Position of a slot in [`super::Program::slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotId(pub u32);

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

impl SlotId {
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

/// One of the four coordinates of a score. The discriminant is the dimension it runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Sequence of the batch, from 0.
    Batch = 0,
    /// Query head, from 0.
    Head = 1,
    /// Query position within its sequence, from 0.
    Query = 2,
    /// Key position within its sequence, from 0.
    Key = 3,
}

impl Axis {
    /// The four axes in the order of the dimensions.
    pub const ALL: [Axis; 4] = [Axis::Batch, Axis::Head, Axis::Query, Axis::Key];

    /// The dimension this coordinate runs over (0 to 3), which is also its number in canonical bytes.
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

/// Which sequence a length is asked of.
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

    /// Number under which this side enters canonical bytes.
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

/// A float32 constant that is finite and not minus zero, so that equal values have equal bits.
///
/// NaN is refused because it equals nothing. Infinities are refused because a masked score is not a number that an expression
/// should compute with (infinity times a derivative of 0 is NaN): what a query may not see belongs in the mask of the attention,
/// and a strong penalty is a large finite number such as `-1e9`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct FloatConst(u32);

/// A float that cannot be a constant: NaN or an infinity.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "{given} is no constant of a score expression: a finite number is needed (use the mask of the attention to hide scores)"
)]
pub struct NotFinite {
    /// What came.
    pub given: f32,
}

impl FloatConst {
    /// 0.
    pub const ZERO: FloatConst = FloatConst(0);
    /// 1.
    pub const ONE: FloatConst = FloatConst(0x3f80_0000);

    /// Takes a finite number; minus zero becomes zero.
    ///
    /// # Errors
    /// [`NotFinite`] for NaN and infinities.
    pub fn new(value: f32) -> Result<Self, NotFinite> {
        if value.is_finite() {
            // Adding zero turns -0.0 into 0.0 and leaves every other number alone.
            Ok(FloatConst((value + 0.0).to_bits()))
        } else {
            Err(NotFinite { given: value })
        }
    }

    /// The number.
    #[must_use]
    pub const fn value(self) -> f32 {
        f32::from_bits(self.0)
    }

    /// Its IEEE 754 bits, which stand for it in canonical bytes and in serde forms.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for FloatConst {
    type Error = NotFinite;

    fn try_from(bits: u32) -> Result<Self, NotFinite> {
        FloatConst::new(f32::from_bits(bits))
    }
}

impl From<FloatConst> for u32 {
    fn from(value: FloatConst) -> u32 {
        value.0
    }
}

impl fmt::Debug for FloatConst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.value())
    }
}

impl PartialOrd for FloatConst {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FloatConst {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.value().total_cmp(&other.value())
    }
}

/// One node of a closed expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Node {
    /// The scaled score of (batch, head, query, key): float.
    Score,
    /// Gradient of the loss with respect to the value of the forward expression: float. Only in a [`super::Derived`].
    Upstream,
    /// A coordinate: int.
    Index(Axis),
    /// The actual length of this batch item's sequence where the attention has lengths, the dimension otherwise: int.
    Length(Side),
    /// A float constant.
    Float(FloatConst),
    /// An integer constant.
    Int(i32),
    /// A truth value.
    Bool(bool),
    /// A number given at launch; its type is in the slot table.
    Slot(SlotId),
    /// The element of a device tensor at this point, broadcast over its dimensions of 1: float, or int for integer tensors.
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
    /// `yes` where `keep` is true, `no` elsewhere. The arm that is not taken has no influence, not even as NaN.
    Select {
        /// The condition: bool.
        keep: NodeId,
        /// Taken where the condition is true: float or int.
        yes: NodeId,
        /// Taken elsewhere: of the type of `yes`.
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
            | Node::Slot(_)
            | Node::Tensor(_) => [None, None, None],
            Node::ToFloat(a) | Node::Unary(_, a) | Node::Not(a) => [Some(a), None, None],
            Node::Binary(_, a, b) | Node::Compare(_, a, b) | Node::Logic(_, a, b) => [Some(a), Some(b), None],
            Node::Select { keep, yes, no } => [Some(keep), Some(yes), Some(no)],
        };
        list.into_iter().flatten()
    }

    /// The same node over other operands.
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
            | Node::Slot(_)
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

    /// Number of this kind of node in canonical bytes; never reused, never renumbered.
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
            Node::Slot(_) => 8,
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
