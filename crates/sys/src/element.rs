//! The Rust type for each attribute type of cuDNN.

use crate::bindings::{
    AttributeName, AttributeType, BehaviorNote, DataType, HeurMode, KnobType, NumericalNote, OperationGraphMode,
    PointwiseMode, ReduceTensorOp, ReshapeMode, RngDistribution, TensorReordering,
};

/// A type whose values can be set and read as an attribute.
///
/// # Safety
///
/// The type must have the layout of the C type that [`Element::TYPE`] names, contain no pointer that cuDNN follows, and
/// be valid for any bytes that cuDNN may write.
pub unsafe trait Element: Copy {
    /// cuDNN's name for the type.
    const TYPE: AttributeType;
    /// Initial content of a buffer that cuDNN writes to.
    const ZERO: Self;
}

macro_rules! element {
    ($($rust:ty => $ty:ident, $zero:expr;)+) => {$(
        // SAFETY: an integer or float of the size that the header gives for this attribute type; all bit patterns are
        // valid.
        unsafe impl Element for $rust {
            const TYPE: AttributeType = AttributeType::$ty;
            const ZERO: Self = $zero;
        }
    )+};
}

element! {
    i64 => INT64, 0;
    i32 => INT32, 0;
    f32 => FLOAT, 0.0;
    f64 => DOUBLE, 0.0;
    u8 => CHAR, 0;
    DataType => DATA_TYPE, DataType(0);
    HeurMode => HEUR_MODE, HeurMode(0);
    KnobType => KNOB_TYPE, KnobType(0);
    NumericalNote => NUMERICAL_NOTE, NumericalNote(0);
    BehaviorNote => BEHAVIOR_NOTE, BehaviorNote(0);
    AttributeName => ATTRIB_NAME, AttributeName(0);
    PointwiseMode => POINTWISE_MODE, PointwiseMode(0);
    ReduceTensorOp => REDUCTION_OPERATOR_TYPE, ReduceTensorOp(0);
    TensorReordering => TENSOR_REORDERING_MODE, TensorReordering(0);
    RngDistribution => RNG_DISTRIBUTION, RngDistribution(0);
    ReshapeMode => RESHAPE_MODE, ReshapeMode(0);
    OperationGraphMode => OPERATIONGRAPH_MODE, OperationGraphMode(0);
}
