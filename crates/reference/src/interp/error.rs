//! Errors for op graphs that cannot be interpreted.

use qkvault_cudnn::op::{GraphFault, TensorId};
use qkvault_graph::Role;

use crate::ReferenceError;

/// Why an op graph could not be interpreted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InterpretError {
    /// The graph's structure is broken.
    #[error(transparent)]
    Fault(#[from] GraphFault),
    /// An operand is missing or invalid.
    #[error(transparent)]
    Operand(#[from] ReferenceError),
    /// An operation reads a tensor that has no value.
    #[error("tensor {id:?} is read, but nothing gives it a value")]
    NoValue {
        /// The tensor.
        id: TensorId,
    },
    /// The dims of an operation's tensors do not match.
    #[error("operation {op}: dims {given:?} do not go with {with:?}; {rule}")]
    Dims {
        /// Index of the operation.
        op: usize,
        /// Dims of one tensor.
        given: [usize; 4],
        /// Dims of the other.
        with: [usize; 4],
        /// The rule that the dims break.
        rule: &'static str,
    },
    /// An operation lacks an operand, or has one too many.
    #[error("operation {op}: {what}")]
    Operands {
        /// Index of the operation.
        op: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A page, length or index is out of range.
    #[error("operation {op}: {what} {given} is outside 0..={most}")]
    Range {
        /// Index of the operation.
        op: usize,
        /// The kind of number.
        what: &'static str,
        /// The number.
        given: f64,
        /// The largest valid number.
        most: usize,
    },
    /// A view reads memory that its source does not have.
    #[error("operation {op}: element {index:?} of the view lies at {address}, where its source has none")]
    Hole {
        /// Index of the operation.
        op: usize,
        /// The element of the view.
        index: [usize; 4],
        /// Its address, in elements.
        address: usize,
    },
    /// A tensor is too large to interpret.
    #[error("tensor {id:?} of dims {dims:?} has too many elements to be interpreted")]
    TooLarge {
        /// The tensor.
        id: TensorId,
        /// Its dims.
        dims: [i64; 4],
    },
    /// A scalar's buffer does not hold exactly one element.
    #[error("{role} must be one number")]
    NoNumber {
        /// The scalar.
        role: Role,
    },
}
