//! What is known of a predicate over a whole tile of scores without looking at each score: bounds of its integers, and
//! whether it may be false or true. CUDA C, as `expression` writes values at one point.
//!
//! Bounds are never too narrow, so a tile that is surely seen or surely hidden is so. They may be too wide: a tile of
//! which nothing is sure is looked at score by score.

use std::fmt::Write as _;

use qkvault_graph::DType;
use qkvault_graph::expr::{Axis, Binary, Compare, Logic, Node, NodeId, Program, ScalarTy, TensorSpec, Ty, Unary};

/// Operations on bounds; they need `FUNCTIONS` before them.
pub(crate) const BOUNDS: &str = include_str!("cuda/bounds.cu");

/// Statements that compute the bounds of a program over `tile`, and the name of the root's. `bounds_of` gives the
/// least and the greatest of some elements in a row. Numbers and `prefix` are as in `expression::statements`.
pub(crate) fn statements(program: &Program, scalar: usize, tensor: usize, prefix: &str) -> (String, String) {
    let name = |id: NodeId| format!("{prefix}{}", id.0);
    let mut text = String::new();
    for (at, &node) in program.nodes().iter().enumerate() {
        let id = NodeId(at as u32);
        let (ty, unknown) = match program.ty(id) {
            // A predicate of floats is looked at score by score.
            Ty::Float => continue,
            Ty::Int => ("Bounds", "ANY_INT"),
            Ty::Bool => ("Truth", "EITHER"),
        };
        let value = match node {
            Node::Scalar(id) if program.scalars()[id.at()].ty == ScalarTy::Int => {
                Some(format!("exactly(p.scalar{})", scalar + id.at()))
            }
            Node::Tensor(id) => elements(&program.tensors()[id.at()], tensor + id.at()),
            node => value(program, node, &name),
        };
        let _ = writeln!(text, "  const {ty} {} = {};", name(id), value.as_deref().unwrap_or(unknown));
    }
    (text, name(program.root()))
}

/// The least and the greatest element of a tensor in a tile; none if it differs along queries and keys, or is of
/// floats.
fn elements(spec: &TensorSpec, number: usize) -> Option<String> {
    let [_, h, q, k] = spec.dims;
    if spec.dtype != DType::I32 || (q > 1 && k > 1) {
        return None;
    }
    let mut at = String::from("0ll");
    for (axis, step) in [(Axis::Batch, h * q * k), (Axis::Head, q * k)] {
        let n = spec.dims[axis.dim()];
        if n > 1 {
            let _ = write!(at, " + (i64)min(tile.{}, {}) * {step}", axis.name(), n - 1);
        }
    }
    let (first, last) = match [(q, Axis::Query), (k, Axis::Key)].into_iter().find(|(n, _)| *n > 1) {
        // Rows and keys beyond the tensor read its last ones.
        Some((n, axis)) => {
            let end = |which: &str| format!("min(tile.{}.{which}, {})", axis.name(), n - 1);
            (end("least"), end("greatest"))
        }
        None => ("0".to_owned(), "0".to_owned()),
    };
    Some(format!("bounds_of(p.tensor{number} + ({at}), {first}, {last}, lane)"))
}

fn value(program: &Program, node: Node, name: &impl Fn(NodeId) -> String) -> Option<String> {
    let float = |id: NodeId| program.ty(id) == Ty::Float;
    let two = |function: &str, a: NodeId, b: NodeId| format!("{function}({}, {})", name(a), name(b));
    let not = |truth: String| format!("truth_not({truth})");
    Some(match node {
        Node::Index(axis @ (Axis::Query | Axis::Key)) => format!("tile.{}", axis.name()),
        Node::Index(axis) => format!("exactly(tile.{})", axis.name()),
        Node::Length(side) => {
            format!("exactly({})", if side == qkvault_graph::expr::Side::Query { "QUERIES" } else { "KEYS" })
        }
        Node::Int(i32::MIN) => "exactly((int)0x80000000u)".to_owned(),
        Node::Int(n) => format!("exactly({n})"),
        Node::Bool(truth) => format!("surely({truth})"),
        Node::Unary(Unary::Neg, a) => format!("bound_neg({})", name(a)),
        Node::Unary(Unary::Abs, a) => format!("bound_abs({})", name(a)),
        Node::Binary(op, a, b) => two(binary(op)?, a, b),
        Node::Compare(_, a, _) if float(a) => return None,
        Node::Compare(Compare::Lt, a, b) => two("truth_lt", a, b),
        Node::Compare(Compare::Gt, a, b) => two("truth_lt", b, a),
        Node::Compare(Compare::Le, a, b) => not(two("truth_lt", b, a)),
        Node::Compare(Compare::Ge, a, b) => not(two("truth_lt", a, b)),
        Node::Compare(Compare::Eq, a, b) => two("truth_eq", a, b),
        Node::Compare(Compare::Ne, a, b) => not(two("truth_eq", a, b)),
        Node::Not(a) => not(name(a)),
        Node::Logic(Logic::And, a, b) => two("truth_and", a, b),
        Node::Logic(Logic::Or, a, b) => two("truth_or", a, b),
        Node::Select { keep, yes, no } => format!("bound_select({}, {}, {})", name(keep), name(yes), name(no)),
        Node::Score | Node::Upstream | Node::Float(_) | Node::ToFloat(_) | Node::Unary(..) => return None,
        Node::Scalar(_) | Node::Tensor(_) => return None,
    })
}

/// The function of an operation on integers; none of one whose results no bounds are known of.
const fn binary(op: Binary) -> Option<&'static str> {
    Some(match op {
        Binary::Add => "bound_add",
        Binary::Sub => "bound_sub",
        Binary::Mul => "bound_mul",
        Binary::Min => "bound_min",
        Binary::Max => "bound_max",
        Binary::FloorDiv => "bound_floor_div",
        Binary::FloorRem => "bound_floor_rem",
        Binary::Rem => "bound_rem",
        Binary::Div | Binary::Pow | Binary::Atan2 => return None,
    })
}

#[cfg(test)]
mod tests;
