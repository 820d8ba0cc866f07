//! The typing rules: the operand types of each node, and its result type.

use super::node::{Node, NodeId, Ty};
use super::operand::{ScalarSpec, TensorSpec};
use super::ops::{Binary, Compare, Logic, Unary};

/// An operand with a type that its node does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) op: &'static str,
    pub(super) operand: &'static str,
    pub(super) given: Ty,
    pub(super) needed: &'static str,
    pub(super) fix: &'static str,
}

const TO_FLOAT: &str = "convert it with to_float() (`float(x)` in text)";
const WHOLE: &str = "convert it with to_float() (`float(x)` in text), or divide integers with floor_div (`//` in text)";
const OF_INTEGERS: &str = "write floor(a / b) for floats";
const NO_NUMBER: &str = "turn the truth value into a number with select(1.0, 0.0)";
const NO_TRUTH: &str = "compare it with something to get a truth value";

fn need_float(op: &'static str, operand: &'static str, given: Ty) -> Result<(), Mismatch> {
    match given {
        Ty::Float => Ok(()),
        Ty::Int => Err(Mismatch { op, operand, given, needed: "float", fix: TO_FLOAT }),
        Ty::Bool => Err(Mismatch { op, operand, given, needed: "float", fix: NO_NUMBER }),
    }
}

fn need_int(op: &'static str, operand: &'static str, given: Ty) -> Result<(), Mismatch> {
    match given {
        Ty::Int => Ok(()),
        Ty::Float => Err(Mismatch { op, operand, given, needed: "int", fix: OF_INTEGERS }),
        Ty::Bool => Err(Mismatch { op, operand, given, needed: "int", fix: NO_NUMBER }),
    }
}

fn need_number(op: &'static str, operand: &'static str, given: Ty) -> Result<(), Mismatch> {
    match given {
        Ty::Float | Ty::Int => Ok(()),
        Ty::Bool => Err(Mismatch { op, operand, given, needed: "float or int", fix: NO_NUMBER }),
    }
}

fn need_truth(op: &'static str, operand: &'static str, given: Ty) -> Result<(), Mismatch> {
    match given {
        Ty::Bool => Ok(()),
        Ty::Float | Ty::Int => Err(Mismatch { op, operand, given, needed: "bool", fix: NO_TRUTH }),
    }
}

fn need_same(op: &'static str, operand: &'static str, given: Ty, other: Ty) -> Result<(), Mismatch> {
    if given == other { Ok(()) } else { Err(Mismatch { op, operand, given, needed: other.name(), fix: TO_FLOAT }) }
}

pub(super) fn unary(op: Unary, a: Ty) -> Result<Ty, Mismatch> {
    if op.takes_int() {
        need_number(op.name(), "only", a)?;
        Ok(a)
    } else {
        need_float(op.name(), "only", a)?;
        Ok(Ty::Float)
    }
}

pub(super) fn binary(op: Binary, a: Ty, b: Ty) -> Result<Ty, Mismatch> {
    if !op.takes_float() {
        need_int(op.name(), "left", a)?;
        need_int(op.name(), "right", b)?;
        Ok(Ty::Int)
    } else if op.takes_int() {
        need_number(op.name(), "left", a)?;
        need_number(op.name(), "right", b)?;
        need_same(op.name(), "right", b, a)?;
        Ok(a)
    } else {
        let whole =
            |m: Mismatch| if op == Binary::Div && m.given == Ty::Int { Mismatch { fix: WHOLE, ..m } } else { m };
        need_float(op.name(), "left", a).map_err(whole)?;
        need_float(op.name(), "right", b).map_err(whole)?;
        Ok(Ty::Float)
    }
}

pub(super) fn compare(op: Compare, a: Ty, b: Ty) -> Result<Ty, Mismatch> {
    need_number(op.name(), "left", a)?;
    need_number(op.name(), "right", b)?;
    need_same(op.name(), "right", b, a)?;
    Ok(Ty::Bool)
}

pub(super) fn logic(op: Logic, a: Ty, b: Ty) -> Result<Ty, Mismatch> {
    need_truth(op.name(), "left", a)?;
    need_truth(op.name(), "right", b)?;
    Ok(Ty::Bool)
}

pub(super) fn not(a: Ty) -> Result<Ty, Mismatch> {
    need_truth("!", "only", a)?;
    Ok(Ty::Bool)
}

pub(super) fn to_float(a: Ty) -> Result<Ty, Mismatch> {
    match a {
        Ty::Int => Ok(Ty::Float),
        Ty::Float | Ty::Bool => {
            Err(Mismatch { op: "to_float", operand: "only", given: a, needed: "int", fix: "remove the conversion" })
        }
    }
}

pub(super) fn select(keep: Ty, yes: Ty, no: Ty) -> Result<Ty, Mismatch> {
    need_truth("select", "keep", keep)?;
    need_number("select", "yes", yes)?;
    need_number("select", "no", no)?;
    need_same("select", "no", no, yes)?;
    Ok(yes)
}

/// Type of a node whose operands, scalar and tensor are known to exist.
///
/// A tensor without a type (an element type that expressions do not read) counts as float here; it is reported
/// elsewhere.
pub(super) fn node(node: Node, types: &[Ty], scalars: &[ScalarSpec], tensors: &[TensorSpec]) -> Result<Ty, Mismatch> {
    let of = |id: NodeId| types[id.at()];
    match node {
        Node::Score | Node::Upstream | Node::Float(_) => Ok(Ty::Float),
        Node::Index(_) | Node::Length(_) | Node::Int(_) => Ok(Ty::Int),
        Node::Bool(_) => Ok(Ty::Bool),
        Node::Scalar(id) => Ok(scalars[id.at()].ty.ty()),
        Node::Tensor(id) => Ok(tensors[id.at()].ty().unwrap_or(Ty::Float)),
        Node::ToFloat(a) => to_float(of(a)),
        Node::Unary(op, a) => unary(op, of(a)),
        Node::Binary(op, a, b) => binary(op, of(a), of(b)),
        Node::Compare(op, a, b) => compare(op, of(a), of(b)),
        Node::Not(a) => not(of(a)),
        Node::Logic(op, a, b) => logic(op, of(a), of(b)),
        Node::Select { keep, yes, no } => select(of(keep), of(yes), of(no)),
    }
}
