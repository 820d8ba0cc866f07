//! Why an op graph could not be interpreted.

use qkvault_graph::Role;
use qkvault_graph::op::{GraphFault, TensorId};

use crate::ReferenceError;

/// Why an op graph could not be interpreted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InterpretError {
    /// The graph's structure is broken.
    #[error(transparent)]
    Fault(#[from] GraphFault),
    /// An operand is missing or wrong.
    #[error(transparent)]
    Operand(#[from] ReferenceError),
    /// A tensor that is read has no value.
    #[error("tensor {id:?} is read, but nothing gives it a value")]
    NoValue {
        /// The tensor.
        id: TensorId,
    },
    /// Dims of an operation's tensors that do not go together.
    #[error("operation {op}: dims {given:?} do not go with {with:?}; {rule}")]
    Dims {
        /// Index of the operation.
        op: usize,
        /// Dims of one tensor.
        given: [usize; 4],
        /// Dims of the other.
        with: [usize; 4],
        /// What must hold.
        rule: &'static str,
    },
    /// An operation without one of its operands, or with one too many.
    #[error("operation {op}: {what}")]
    Operands {
        /// Index of the operation.
        op: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A page, length or index outside its range.
    #[error("operation {op}: {what} {given} is outside 0..={most}")]
    Range {
        /// Index of the operation.
        op: usize,
        /// What it is.
        what: &'static str,
        /// What came.
        given: f64,
        /// The most allowed.
        most: usize,
    },
    /// A view of memory that its source does not fill.
    #[error("operation {op}: element {index:?} of the view lies at {address}, where its source has none")]
    Hole {
        /// Index of the operation.
        op: usize,
        /// Element of the view.
        index: [usize; 4],
        /// Its address, in elements.
        address: usize,
    },
    /// A tensor too large to be interpreted.
    #[error("tensor {id:?} of dims {dims:?} has too many elements to be interpreted")]
    TooLarge {
        /// The tensor.
        id: TensorId,
        /// Its dims.
        dims: [i64; 4],
    },
    /// A host number that is no single element.
    #[error("{role} must be one number")]
    NoNumber {
        /// The scalar.
        role: Role,
    },
}
