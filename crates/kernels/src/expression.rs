//! Expressions of score modifications and masks as straight-line CUDA C.

use std::fmt::Write as _;

use qkvault_graph::DType;
use qkvault_graph::expr::{Axis, Binary, Logic, Node, NodeId, Program, Side, TensorSpec, Ty, Unary};

/// Functions that an expression may call. Integers wrap, and remainders of a zero divisor are 0, as their definitions
/// say (`qkvault_graph::expr::ops`).
pub(crate) const FUNCTIONS: &str = include_str!("cuda/functions.cu");

/// Statements that compute an expression at a point, and the name of its value. `scalar` and `tensor` are the numbers
/// of the program's first scalar and tensor among those of the attention, and `prefix` begins every name.
/// With `origins`, queries and keys count from those of the launch; tensors do not.
pub(crate) fn statements(
    program: &Program,
    scalar: usize,
    tensor: usize,
    prefix: &str,
    origins: bool,
) -> (String, String) {
    statements_with(program, scalar, tensor, prefix, origins, element, AS_IT_IS)
}

/// What is written in the place of a node, from its operands' names.
pub(crate) type Instead<'a> = &'a dyn Fn(&Program, NodeId, &dyn Fn(NodeId) -> String) -> Option<String>;

/// Writes nothing else.
pub(crate) const AS_IT_IS: Instead<'static> = &|_, _, _| None;

/// The same, with elements of tensors as `element` writes them, from a tensor and its number, and other nodes as
/// `instead` does where it writes something.
pub(crate) fn statements_with(
    program: &Program,
    scalar: usize,
    tensor: usize,
    prefix: &str,
    origins: bool,
    element: impl Fn(&TensorSpec, usize) -> String,
    instead: Instead<'_>,
) -> (String, String) {
    let mut text = String::new();
    let name = |id: NodeId| format!("{prefix}{}", id.0);
    for (at, &node) in program.nodes().iter().enumerate() {
        let id = NodeId(at as u32);
        let ty = match program.ty(id) {
            Ty::Float => "float",
            Ty::Int => "int",
            Ty::Bool => "bool",
        };
        let value = match node {
            Node::Scalar(id) => format!("p.scalar{}", scalar + id.at()),
            Node::Tensor(id) => element(&program.tensors()[id.at()], tensor + id.at()),
            Node::Index(axis @ (Axis::Query | Axis::Key)) if origins => {
                format!("point.{0} + p.{0}_origin", axis.name())
            }
            node => instead(program, id, &name).unwrap_or_else(|| value(program, node, &name)),
        };
        let _ = writeln!(text, "  const {ty} {} = {value};", name(id));
    }
    (text, name(program.root()))
}

/// The element of a tensor at a point.
pub(crate) fn element(spec: &TensorSpec, number: usize) -> String {
    let read = format!("__ldg(p.tensor{number} + ({}))", offset(spec));
    match spec.dtype {
        DType::F16 => format!("from_f16({read})"),
        DType::BF16 => format!("from_bf16({read})"),
        _ => read,
    }
}

/// The place of that element. Rows and keys beyond the tensor, which no result depends on, read its last ones.
pub(crate) fn offset(spec: &TensorSpec) -> String {
    let [_, h, q, k] = spec.dims;
    let mut at = String::from("0ll");
    let steps = [h * q * k, q * k, k, 1];
    for ((axis, n), step) in Axis::ALL.into_iter().zip(spec.dims).zip(steps) {
        if n > 1 {
            let _ = write!(at, " + (i64)min(point.{}, {}) * {step}", axis.name(), n - 1);
        }
    }
    at
}

/// The type in CUDA C of a tensor's elements.
pub(crate) const fn element_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::BF16 => "const u16",
        DType::I32 => "const int",
        _ => "const float",
    }
}

pub(crate) fn value(program: &Program, node: Node, name: &impl Fn(NodeId) -> String) -> String {
    match node {
        Node::Score => "score".to_owned(),
        Node::Upstream => unreachable!("only derivatives read the upstream gradient"),
        Node::Index(axis) => format!("point.{}", axis.name()),
        Node::Length(Side::Query) => "point.queries".to_owned(),
        Node::Length(Side::Key) => "point.keys".to_owned(),
        Node::Float(x) => format!("__uint_as_float(0x{:08x}u) /* {} */", x.value().to_bits(), x.value()),
        Node::Int(i32::MIN) => "(int)0x80000000u".to_owned(),
        Node::Int(n) => n.to_string(),
        Node::Bool(truth) => truth.to_string(),
        Node::Scalar(_) | Node::Tensor(_) => unreachable!("the caller writes these"),
        Node::ToFloat(a) => format!("(float){}", name(a)),
        Node::Unary(op, a) => unary(op, program.ty(a), &name(a)),
        Node::Binary(op, a, b) => binary(op, program.ty(a), &name(a), &name(b)),
        Node::Compare(op, a, b) => format!("{} {} {}", name(a), op.name(), name(b)),
        Node::Not(a) => format!("!{}", name(a)),
        Node::Logic(Logic::And, a, b) => format!("{} & {}", name(a), name(b)),
        Node::Logic(Logic::Or, a, b) => format!("{} | {}", name(a), name(b)),
        Node::Select { keep, yes, no } => format!("{} ? {} : {}", name(keep), name(yes), name(no)),
    }
}

fn unary(op: Unary, ty: Ty, a: &str) -> String {
    let float = match op {
        Unary::Neg if ty == Ty::Int => return format!("wrap_sub(0, {a})"),
        Unary::Abs if ty == Ty::Int => return format!("({a} < 0 ? wrap_sub(0, {a}) : {a})"),
        Unary::Neg => return format!("-{a}"),
        Unary::Reciprocal => return format!("1.f / {a}"),
        Unary::Abs => "fabsf",
        Unary::Exp => "expf",
        Unary::Log => "logf",
        Unary::Sqrt => "sqrtf",
        Unary::Rsqrt => "rsqrtf",
        Unary::Sin => "sinf",
        Unary::Cos => "cosf",
        Unary::Tan => "tanf",
        Unary::Tanh => "tanhf",
        Unary::Erf => "erff",
        Unary::Floor => "floorf",
        Unary::Ceil => "ceilf",
        Unary::Sigmoid => "sigmoid",
        Unary::Relu => "relu",
        Unary::Elu => "elu",
        Unary::Gelu => "gelu",
        Unary::GeluTanh => "gelu_tanh",
        Unary::Softplus => "softplus",
        Unary::Swish => "swish",
    };
    format!("{float}({a})")
}

fn binary(op: Binary, ty: Ty, a: &str, b: &str) -> String {
    let int = ty == Ty::Int;
    match op {
        Binary::Add if int => format!("wrap_add({a}, {b})"),
        Binary::Sub if int => format!("wrap_sub({a}, {b})"),
        Binary::Mul if int => format!("wrap_mul({a}, {b})"),
        Binary::Min if int => format!("min({a}, {b})"),
        Binary::Max if int => format!("max({a}, {b})"),
        Binary::Rem if int => format!("rem_int({a}, {b})"),
        Binary::FloorRem if int => format!("floor_rem_int({a}, {b})"),
        Binary::FloorDiv => format!("floor_div_int({a}, {b})"),
        Binary::Add => format!("{a} + {b}"),
        Binary::Sub => format!("{a} - {b}"),
        Binary::Mul => format!("{a} * {b}"),
        Binary::Div => format!("{a} / {b}"),
        Binary::Min => format!("fminf({a}, {b})"),
        Binary::Max => format!("fmaxf({a}, {b})"),
        Binary::Pow => format!("powf({a}, {b})"),
        Binary::Rem => format!("fmodf({a}, {b})"),
        Binary::FloorRem => format!("floor_rem({a}, {b})"),
        Binary::Atan2 => format!("atan2f({a}, {b})"),
    }
}

#[cfg(test)]
mod tests;
