//! Checks operands of expressions: names that text can contain, valid tensors, and constant divisors.

use super::error::ExprError;
use super::limits::{MAX_EXTENT, MAX_NAME};
use super::node::{Axis, Node, Ty};
use super::operand::{Grad, TensorSpec};
use super::ops::Binary;
use crate::DType;

/// Problems of a single tensor.
pub(super) fn tensor_problems(name: &str, spec: TensorSpec) -> Vec<ExprError> {
    let TensorSpec { dims, dtype, grad, alibi } = spec;
    let mut problems = Vec::new();
    let mut elements: i64 = 1;
    for axis in Axis::ALL {
        let given = dims[axis.dim()];
        let product = elements.checked_mul(given);
        if !(1..=MAX_EXTENT).contains(&given) || product.is_none() {
            problems.push(ExprError::Extent { name: name.into(), axis, given });
        }
        elements = product.unwrap_or(elements).max(1);
    }
    match (spec.ty(), grad) {
        (None, _) => problems.push(ExprError::TensorType { name: name.into(), given: dtype }),
        (Some(Ty::Int), Grad::Needed) => problems.push(ExprError::IntegerGradient { name: name.into(), given: dtype }),
        (Some(_), _) => {}
    }
    if let Some(slopes) = alibi {
        let plain = dims == [1, dims[1], 1, 1] && dtype == DType::F32 && grad == Grad::None;
        if !plain || !slopes.covers(dims[1]) {
            problems.push(ExprError::Slopes { name: name.into(), given: spec });
        }
    }
    problems
}

/// Whether text forms can contain this name.
pub(super) fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= MAX_NAME
}

/// Whether an integer can be divided by this node, for operations that are particular about it.
pub(super) fn divisor(op: Binary, by: Node, place: impl FnOnce() -> String) -> Result<(), ExprError> {
    match (op, by) {
        (Binary::Rem | Binary::FloorRem | Binary::FloorDiv, Node::Int(0)) => {
            Err(ExprError::DivisionByZero { place: place(), op: op.name() })
        }
        // The type check reports floats.
        (Binary::FloorDiv, Node::Int(_) | Node::Float(_)) => Ok(()),
        (Binary::FloorDiv, _) => Err(ExprError::NoConstant { place: place(), op: op.name() }),
        _ => Ok(()),
    }
}
