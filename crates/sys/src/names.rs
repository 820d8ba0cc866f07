//! Names for cuDNN's numbers: how statuses, kinds and attributes are printed.
//!
//! cuDNN's enums are integers here and never Rust enums: a newer library may return a number that the header does not
//! have, and such a number must be a valid value.

use std::fmt;

use crate::bindings::{
    AttributeName, AttributeType, BehaviorNote, DataType, HeurMode, Kind, KnobType, NumericalNote, OperationGraphMode,
    PointwiseMode, ReduceTensorOp, ReshapeMode, RngDistribution, Severity, Status, TensorReordering,
};

/// Prints the header's name, or the number of a value that the header does not name.
macro_rules! display {
    ($($number:ident),+ $(,)?) => {$(
        impl fmt::Display for $number {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.c_name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{} {}", stringify!($number), self.0),
                }
            }
        }
    )+};
}

display!(
    AttributeName,
    AttributeType,
    BehaviorNote,
    DataType,
    HeurMode,
    Kind,
    KnobType,
    NumericalNote,
    OperationGraphMode,
    PointwiseMode,
    ReduceTensorOp,
    ReshapeMode,
    RngDistribution,
    Severity,
    TensorReordering,
);

/// A status is always printed with its number: older libraries do not name newer ones, and users search for either.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.c_name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "status {}", self.0),
        }
    }
}

impl Status {
    /// The family of a status: 2000 for bad parameters, 3000 for unsupported requests, 4000 for internal errors, 5000
    /// for failed launches.
    #[must_use]
    pub const fn category(self) -> u32 {
        self.0 / 1000 * 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_and_unknown_numbers_print() {
        assert_eq!(Status::NOT_SUPPORTED_ARCH_MISMATCH.to_string(), "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH (3007)");
        assert_eq!(Status(3999).to_string(), "status 3999");
        assert_eq!(Kind::TENSOR.to_string(), "CUDNN_BACKEND_TENSOR_DESCRIPTOR");
        assert_eq!(AttributeName(408).to_string(), "AttributeName 408");
        assert_eq!(Status(3999).category(), 3000);
    }

    /// The numbers that documents and stored plans rely on; they must not change with the header.
    #[test]
    fn numbers_are_those_written_down() {
        assert_eq!(AttributeName::DEVICEPROP_JSON_REPRESENTATION.0, 2702);
        assert_eq!(AttributeName::EXECUTION_PLAN_JSON_REPRESENTATION.0, 405);
        assert_eq!(AttributeName::EXECUTION_PLAN_WORKSPACE_SIZE.0, 402);
        assert_eq!(AttributeName::ENGINEHEUR_DEVICEPROP.0, 204);
        assert_eq!(Kind::DEVICEPROP.0, 38);
        assert_eq!(DataType::BFLOAT16.0, 9);
        assert_eq!(PointwiseMode::BINARY_SELECT.0, 601);
        assert_eq!(AttributeType::CHAR.0, 24);
        assert_eq!(HeurMode::A.0, 3);
        assert_eq!(Status::NOT_INITIALIZED.0, 1001);
    }
}
