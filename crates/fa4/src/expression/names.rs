//! The words of operations in requests to the compiler.

use qkvault_graph::expr::{Binary, Compare, Ty, Unary};

pub(super) fn compare(op: Compare) -> &'static str {
    match op {
        Compare::Eq => "eq",
        Compare::Ne => "ne",
        Compare::Lt => "lt",
        Compare::Le => "le",
        Compare::Gt => "gt",
        Compare::Ge => "ge",
    }
}

pub(super) fn unary(op: Unary, ty: Ty) -> &'static str {
    match op {
        Unary::Neg => "neg",
        Unary::Abs if ty == Ty::Int => "absolute_whole",
        Unary::Abs => "absolute",
        Unary::Reciprocal => "reciprocal",
        Unary::Exp => "exp",
        Unary::Log => "log",
        Unary::Sqrt => "sqrt",
        Unary::Rsqrt => "rsqrt",
        Unary::Sin => "sin",
        Unary::Cos => "cos",
        Unary::Tan => "tan",
        Unary::Tanh => "tanh",
        Unary::Erf => "erf",
        Unary::Floor => "floor",
        Unary::Ceil => "ceil",
        Unary::Sigmoid => "sigmoid",
        Unary::Relu => "relu",
        Unary::Elu => "elu",
        Unary::Gelu => "gelu",
        Unary::GeluTanh => "gelu_tanh",
        Unary::Softplus => "softplus",
        Unary::Swish => "swish",
    }
}

pub(super) fn binary(op: Binary, ty: Ty) -> &'static str {
    let int = ty == Ty::Int;
    match op {
        Binary::Add => "add",
        Binary::Sub => "sub",
        Binary::Mul => "mul",
        Binary::Div => "div",
        Binary::FloorDiv => unreachable!("the caller writes these"),
        Binary::Min => "minimum",
        Binary::Max => "maximum",
        Binary::Pow => "power",
        Binary::Rem if int => "rem_whole",
        Binary::Rem => "rem",
        Binary::FloorRem if int => "floor_rem_whole",
        Binary::FloorRem => "floor_rem",
        Binary::Atan2 => "atan2",
    }
}
