//! The handle for writing expressions in Rust: cheap to clone; its methods never fail, and `build` reports problems.

use std::fmt;
use std::sync::Arc;

use super::node::{Axis, Side};
use super::operand::{ScalarTy, TensorSpec};
use super::ops::{Binary, Compare, Logic, Unary};

/// An expression under construction.
///
/// Operators and methods never fail and do not check types: [`Expr::build`] checks the whole expression and reports
/// every problem. Integers that meet floats become floats; nothing else is converted. Scalars (or tensors) with the
/// same name are the same.
///
/// ```
/// use qkvault_graph::expr::{score, scalar};
///
/// let cap = scalar("softcap");
/// let softcap = (score() / &cap).tanh() * &cap;
/// assert_eq!(softcap.build()?.scalars().len(), 1);
/// # Ok::<(), qkvault_graph::expr::ExprErrors>(())
/// ```
#[derive(Clone)]
pub struct Expr(pub(super) Arc<Inner>);

/// The content of a handle: one operation and the handles of its operands.
pub(super) struct Inner {
    pub(super) op: Op,
    pub(super) operands: [Option<Expr>; 3],
}

/// An operation as written, before types are known.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Score,
    Index(Axis),
    Length(Side),
    Float(f32),
    Int(i32),
    Bool(bool),
    Scalar(Arc<str>, ScalarTy),
    Tensor(Arc<str>, TensorSpec),
    ToFloat,
    Unary(Unary),
    Binary(Binary),
    Compare(Compare),
    Not,
    Logic(Logic),
    Select,
}

impl Drop for Inner {
    /// Drops long chains in a loop: the derived drop would recurse once per link and overflow the stack.
    fn drop(&mut self) {
        let mut rest: Vec<Expr> = self.operands.iter_mut().filter_map(Option::take).collect();
        while let Some(expr) = rest.pop() {
            if let Some(mut inner) = Arc::into_inner(expr.0) {
                rest.extend(inner.operands.iter_mut().filter_map(Option::take));
            }
        }
    }
}

impl fmt::Debug for Expr {
    /// Shows only the operation at the root: an expression under construction may be arbitrarily deep.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expr({:?} of {} operands)", self.0.op, self.operands().count())
    }
}

impl Expr {
    pub(super) fn leaf(op: Op) -> Expr {
        Expr(Arc::new(Inner { op, operands: [None, None, None] }))
    }

    pub(crate) fn unary(&self, op: Unary) -> Expr {
        Expr(Arc::new(Inner { op: Op::Unary(op), operands: [Some(self.clone()), None, None] }))
    }

    pub(super) fn two(op: Op, a: Expr, b: Expr) -> Expr {
        Expr(Arc::new(Inner { op, operands: [Some(a), Some(b), None] }))
    }

    pub(crate) fn binary(op: Binary, a: Expr, b: Expr) -> Expr {
        Expr::two(Op::Binary(op), a, b)
    }

    pub(crate) fn compare(&self, op: Compare, other: impl Into<Expr>) -> Expr {
        Expr::two(Op::Compare(op), self.clone(), other.into())
    }

    pub(super) fn logic(op: Logic, a: Expr, b: Expr) -> Expr {
        Expr::two(Op::Logic(op), a, b)
    }

    pub(super) fn negated_truth(&self) -> Expr {
        Expr(Arc::new(Inner { op: Op::Not, operands: [Some(self.clone()), None, None] }))
    }

    pub(super) fn operands(&self) -> impl Iterator<Item = &Expr> {
        self.0.operands.iter().flatten()
    }

    /// An integer expression as a float.
    #[must_use]
    pub fn to_float(&self) -> Expr {
        Expr(Arc::new(Inner { op: Op::ToFloat, operands: [Some(self.clone()), None, None] }))
    }

    /// `yes` if this truth value holds, otherwise `no`.
    #[must_use]
    pub fn select(&self, yes: impl Into<Expr>, no: impl Into<Expr>) -> Expr {
        Expr(Arc::new(Inner { op: Op::Select, operands: [Some(self.clone()), Some(yes.into()), Some(no.into())] }))
    }
}

/// The scaled score: `scale * sum over head dim of Q * K`, before any mask.
#[must_use]
pub fn score() -> Expr {
    Expr::leaf(Op::Score)
}

/// Index of the sequence in the batch.
#[must_use]
pub fn batch() -> Expr {
    Expr::leaf(Op::Index(Axis::Batch))
}

/// Query head.
#[must_use]
pub fn head() -> Expr {
    Expr::leaf(Op::Index(Axis::Head))
}

/// Row of the query in this launch, counted from 0 in its sequence. If a launch has fewer queries than keys (one new
/// token, a piece of a prompt), this is not its position among the keys: see [`position`](super::position()).
#[must_use]
pub fn query() -> Expr {
    Expr::leaf(Op::Index(Axis::Query))
}

/// Position of the key in its sequence.
#[must_use]
pub fn key() -> Expr {
    Expr::leaf(Op::Index(Axis::Key))
}

/// Number of queries of this batch item: its actual length if the attention has lengths, the dimension otherwise.
#[must_use]
pub fn query_len() -> Expr {
    Expr::leaf(Op::Length(Side::Query))
}

/// Number of keys of this batch item: its actual length if the attention has lengths, the dimension otherwise.
#[must_use]
pub fn key_len() -> Expr {
    Expr::leaf(Op::Length(Side::Key))
}

/// A float that a launch gets. The name distinguishes the scalars of one expression, and is otherwise for display.
#[must_use]
pub fn scalar(name: &str) -> Expr {
    Expr::leaf(Op::Scalar(name.into(), ScalarTy::Float))
}

/// An integer that a launch gets.
#[must_use]
pub fn int_scalar(name: &str) -> Expr {
    Expr::leaf(Op::Scalar(name.into(), ScalarTy::Int))
}

/// A device tensor, read at the point of the score and broadcast along its extents of 1.
#[must_use]
pub fn tensor(name: &str, spec: TensorSpec) -> Expr {
    Expr::leaf(Op::Tensor(name.into(), spec))
}

/// A constant: `constant(1.5)`, `constant(3)`, `constant(true)`.
#[must_use]
pub fn constant(value: impl Into<Expr>) -> Expr {
    value.into()
}

/// `yes` if `keep` holds, otherwise `no`.
#[must_use]
pub fn select(keep: &Expr, yes: impl Into<Expr>, no: impl Into<Expr>) -> Expr {
    keep.select(yes, no)
}

impl From<&Expr> for Expr {
    fn from(expr: &Expr) -> Expr {
        expr.clone()
    }
}

impl From<f32> for Expr {
    fn from(value: f32) -> Expr {
        Expr::leaf(Op::Float(value))
    }
}

impl From<i32> for Expr {
    fn from(value: i32) -> Expr {
        Expr::leaf(Op::Int(value))
    }
}

impl From<bool> for Expr {
    fn from(value: bool) -> Expr {
        Expr::leaf(Op::Bool(value))
    }
}
