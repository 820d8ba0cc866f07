//! The place of a problem as text: the path from the root of an expression to an operation.

use super::handle::{Expr, Op};
use super::operand::ScalarTy;

/// Each handle with the number of its visited operands: a path from the root.
pub(super) type Path<'e> = Vec<(&'e Expr, usize)>;

/// The path as text: `add.right > tanh`. Only both ends of a long path are kept.
pub(super) fn place(path: &Path<'_>) -> String {
    const ENDS: usize = 6;
    let last = path.len() - 1;
    let mut text = String::new();
    for (i, (expr, visited)) in path.iter().enumerate() {
        if i >= ENDS && i + ENDS <= last {
            if i == ENDS {
                text.push_str(" > ...");
            }
            continue;
        }
        if i > 0 {
            text.push_str(" > ");
        }
        text.push_str(op_name(&expr.0.op));
        let operands = expr.operands().count();
        if i < last && operands > 1 {
            let names: [&str; 3] = if operands == 3 { ["keep", "yes", "no"] } else { ["left", "right", ""] };
            text.push('.');
            text.push_str(names[visited - 1]);
        }
    }
    text
}

fn op_name(op: &Op) -> &'static str {
    match op {
        Op::Score => "score",
        Op::Index(axis) => axis.name(),
        Op::Length(side) => side.name(),
        Op::Float(_) | Op::Int(_) | Op::Bool(_) => "constant",
        Op::Scalar(_, ScalarTy::Float | ScalarTy::Int) => "scalar",
        Op::Tensor(..) => "tensor",
        Op::ToFloat => "to_float",
        Op::Unary(op) => op.name(),
        Op::Binary(op) => op.name(),
        Op::Compare(op) => op.name(),
        Op::Not => "!",
        Op::Logic(op) => op.name(),
        Op::Select => "select",
    }
}
