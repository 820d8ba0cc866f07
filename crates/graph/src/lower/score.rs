//! Score expressions as operations: one operation per node, in the expression's canonical order.
//!
//! The canonical order puts what reads the score first in every operation, which is how cuDNN wants it. Floats are computed
//! in f32, integers in i32, truth values are booleans.

use super::builder::Builder;
use crate::expr::{Axis, Binary, Compare, Logic, Node, NodeId, Program, Side, Ty, Unary};
use crate::op::{Constant, Pointwise, TensorId};
use crate::{DType, Order, Role, Tensor};

/// What an expression reads besides its own slots and tensors.
pub(super) struct Context {
    /// The scaled score, (b, h_q, s_q, s_kv).
    pub(super) score: TensorId,
    /// Lengths of queries and keys, where they are operands.
    pub(super) lengths: Option<(TensorId, TensorId)>,
    /// Lengths of queries and keys, where they are not.
    pub(super) seq: [i64; 2],
    /// Number of the expression's first slot: the keep predicate's come after the score expression's.
    pub(super) first_slot: u16,
    /// Number of its first tensor.
    pub(super) first_tensor: u16,
}

/// Writes a program and gives its result.
pub(super) fn expression(g: &mut Builder, program: &Program, context: &Context) -> TensorId {
    let mut done: Vec<TensorId> = Vec::with_capacity(program.nodes().len());
    for (i, &node) in program.nodes().iter().enumerate() {
        let result = one(g, program, context, &done, node, program.ty(NodeId(i as u32)));
        done.push(result);
    }
    done[program.root().at()]
}

const fn dtype(ty: Ty) -> DType {
    match ty {
        Ty::Float => DType::F32,
        Ty::Int => DType::I32,
        Ty::Bool => DType::Bool,
    }
}

fn one(g: &mut Builder, program: &Program, context: &Context, done: &[TensorId], node: Node, ty: Ty) -> TensorId {
    let at = |id: NodeId| done[id.at()];
    let out = dtype(ty);
    match node {
        Node::Score => context.score,
        // A forward expression has no upstream; validation and the expression's own types see to it.
        Node::Upstream => context.score,
        Node::Index(axis) => g.index(context.score, axis_dim(axis), DType::I32),
        Node::Length(side) => match (side, context.lengths) {
            (Side::Query, Some((q, _))) => q,
            (Side::Key, Some((_, kv))) => kv,
            (Side::Query, None) => g.constant(Constant::I32(context.seq[0] as i32)),
            (Side::Key, None) => g.constant(Constant::I32(context.seq[1] as i32)),
        },
        Node::Float(x) => g.constant(Constant::f32(x.value())),
        Node::Int(x) => g.constant(Constant::I32(x)),
        // cuDNN has no boolean constants: an index is never below zero.
        Node::Bool(x) => {
            let index = g.index(context.score, 3, DType::I32);
            let zero = g.constant(Constant::I32(0));
            let mode = if x { Pointwise::CmpGe } else { Pointwise::CmpLt };
            g.binary_as(mode, index, zero, DType::Bool, DType::Bool)
        }
        Node::Slot(slot) => {
            let ty = program.slots()[slot.at()].ty;
            g.slot(Role::Slot(context.first_slot + slot.0 as u16), ty.dtype())
        }
        Node::Tensor(tensor) => {
            let spec = program.tensors()[tensor.at()];
            let dims = spec.dims.map(u64::cast_signed);
            let operand = Tensor::dense(Order::Bhsd, dims, spec.dtype);
            g.operand(Role::ScoreTensor(context.first_tensor + tensor.0 as u16), &operand)
        }
        Node::ToFloat(a) => g.unary(Pointwise::Identity, at(a)),
        Node::Unary(op, a) => g.unary_as(unary(op), at(a), out, out),
        Node::Binary(op, a, b) => match op {
            Binary::FloorRem => floor_rem(g, at(a), at(b), out),
            other => g.binary_as(binary(other), at(a), at(b), out, out),
        },
        Node::Compare(op, a, b) => {
            let compute = if program.ty(a) == Ty::Float { DType::F32 } else { DType::Bool };
            g.binary_as(compare(op), at(a), at(b), compute, DType::Bool)
        }
        Node::Not(a) => g.unary_as(Pointwise::Not, at(a), DType::Bool, DType::Bool),
        Node::Logic(op, a, b) => {
            let mode = match op {
                Logic::And => Pointwise::And,
                Logic::Or => Pointwise::Or,
            };
            g.binary_as(mode, at(a), at(b), DType::Bool, DType::Bool)
        }
        Node::Select { keep, yes, no } => g.select_as(at(keep), at(yes), at(no), out),
    }
}

const fn axis_dim(axis: Axis) -> u8 {
    axis.dim() as u8
}

/// `a - b * floor(a / b)`: the mode of its own is known to 9.27 on only.
fn floor_rem(g: &mut Builder, a: TensorId, b: TensorId, out: DType) -> TensorId {
    let quotient = g.binary_as(Pointwise::Div, a, b, DType::F32, DType::F32);
    let whole = g.unary(Pointwise::Floor, quotient);
    let multiple = g.binary_as(Pointwise::Mul, whole, b, DType::F32, out);
    g.binary_as(Pointwise::Sub, a, multiple, out, out)
}

const fn unary(op: Unary) -> Pointwise {
    match op {
        Unary::Neg => Pointwise::Neg,
        Unary::Abs => Pointwise::Abs,
        Unary::Exp => Pointwise::Exp,
        Unary::Log => Pointwise::Log,
        Unary::Sqrt => Pointwise::Sqrt,
        Unary::Rsqrt => Pointwise::Rsqrt,
        Unary::Reciprocal => Pointwise::Reciprocal,
        Unary::Sin => Pointwise::Sin,
        Unary::Cos => Pointwise::Cos,
        Unary::Tan => Pointwise::Tan,
        Unary::Tanh => Pointwise::Tanh,
        Unary::Sigmoid => Pointwise::Sigmoid,
        Unary::Erf => Pointwise::Erf,
        Unary::Floor => Pointwise::Floor,
        Unary::Ceil => Pointwise::Ceil,
        Unary::Relu => Pointwise::Relu,
        Unary::Elu => Pointwise::Elu,
        Unary::Gelu => Pointwise::Gelu,
        Unary::GeluTanh => Pointwise::GeluTanh,
        Unary::Softplus => Pointwise::Softplus,
        Unary::Swish => Pointwise::Swish,
    }
}

const fn binary(op: Binary) -> Pointwise {
    match op {
        Binary::Add => Pointwise::Add,
        Binary::Sub => Pointwise::Sub,
        Binary::Mul => Pointwise::Mul,
        Binary::Div => Pointwise::Div,
        Binary::Min => Pointwise::Min,
        Binary::Max => Pointwise::Max,
        Binary::Pow => Pointwise::Pow,
        Binary::Rem | Binary::FloorRem => Pointwise::Mod,
        Binary::Atan2 => Pointwise::Atan2,
    }
}

const fn compare(op: Compare) -> Pointwise {
    match op {
        Compare::Eq => Pointwise::CmpEq,
        Compare::Ne => Pointwise::CmpNeq,
        Compare::Lt => Pointwise::CmpLt,
        Compare::Le => Pointwise::CmpLe,
        Compare::Gt => Pointwise::CmpGt,
        Compare::Ge => Pointwise::CmpGe,
    }
}
