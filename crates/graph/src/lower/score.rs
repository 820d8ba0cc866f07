//! Score expressions as operations: one operation per node, in the expression's canonical order.
//!
//! The canonical order puts what reads the score first in every operation, which is how cuDNN wants it. Floats are computed
//! in f32, integers in i32, truth values are booleans.

use std::collections::BTreeMap;

use super::builder::Builder;
use crate::expr::{Binary, Compare, Logic, Node, NodeId, Program, Side, Ty, Unary};
use crate::op::{Constant, Pointwise, TensorId};
use crate::{DType, Order, Role, Tensor};

/// What an expression reads besides its own slots and tensors.
#[derive(Clone, Copy)]
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

/// What was written already, so that an expression and its derivative share their common parts.
///
/// Masks keep operations of their own: cuDNN skips hidden blocks only where a mask's index and comparison stand next to its
/// select (a factor of two on an H200 with cuDNN 9.19).
#[derive(Default)]
pub(super) struct Memo {
    known: BTreeMap<Step, TensorId>,
    sealed: bool,
    anew: bool,
}

/// One operation, before it is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Constant(u8, u32),
    Index(u8),
    Unary(Pointwise, TensorId, DType),
    Binary(Pointwise, TensorId, TensorId, DType, DType),
    Select(TensorId, TensorId, TensorId, DType),
}

impl Memo {
    fn write(&mut self, g: &mut Builder, score: TensorId, step: Step) -> TensorId {
        if let Some(&known) = self.known.get(&step) {
            return known;
        }
        self.anew |= self.sealed && matches!(step, Step::Index(_));
        match step {
            Step::Constant(..) | Step::Index(_) => {}
            Step::Unary(_, x, _) => self.leaf(g, score, &[x]),
            Step::Binary(_, x, b, ..) => self.leaf(g, score, &[x, b]),
            Step::Select(keep, yes, no, _) => self.leaf(g, score, &[keep, yes, no]),
        }
        let written = match step {
            Step::Constant(0, bits) => g.constant(Constant::F32(bits)),
            Step::Constant(_, bits) => g.constant(Constant::I32(bits.cast_signed())),
            Step::Index(axis) => g.index(score, axis, DType::I32),
            Step::Unary(mode, x, out) => g.unary_as(mode, x, out, out),
            Step::Binary(mode, x, b, compute, out) => g.binary_as(mode, x, b, compute, out),
            Step::Select(keep, yes, no, out) => g.select_as(keep, yes, no, out),
        };
        self.known.insert(step, written);
        written
    }

    /// From here on, what reads the score, an index, a slot or a tensor anew is remembered.
    pub(super) fn seal(&mut self) {
        self.sealed = true;
    }

    /// Whether something was read anew since.
    pub(super) const fn reads_anew(&self) -> bool {
        self.anew
    }

    /// A new operation of a derivative over an operand that no operation computed.
    fn leaf(&mut self, g: &Builder, score: TensorId, steps: &[TensorId]) {
        self.anew |= self.sealed && steps.iter().any(|&x| x == score || g.is_input(x));
    }
}

/// Writes a program and gives its result.
pub(super) fn expression(g: &mut Builder, program: &Program, context: &Context) -> TensorId {
    expression_with(g, program, context, &mut Memo::default())
}

/// Writes what of a program is not written yet, and gives its result.
pub(super) fn expression_with(g: &mut Builder, program: &Program, context: &Context, memo: &mut Memo) -> TensorId {
    let mut done: Vec<TensorId> = Vec::with_capacity(program.nodes().len());
    for (i, &node) in program.nodes().iter().enumerate() {
        let ty = program.ty(NodeId(i as u32));
        let result = one(&mut Scope { g, program, context, memo }, &done, node, ty);
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

struct Scope<'a> {
    g: &'a mut Builder,
    program: &'a Program,
    context: &'a Context,
    memo: &'a mut Memo,
}

impl Scope<'_> {
    fn step(&mut self, step: Step) -> TensorId {
        self.memo.write(self.g, self.context.score, step)
    }

    fn int(&mut self, x: i32) -> TensorId {
        self.step(Step::Constant(1, x.cast_unsigned()))
    }

    fn float(&mut self, mode: Pointwise, x: TensorId, b: TensorId) -> TensorId {
        self.step(Step::Binary(mode, x, b, DType::F32, DType::F32))
    }
}

fn one(scope: &mut Scope<'_>, done: &[TensorId], node: Node, ty: Ty) -> TensorId {
    let at = |id: NodeId| done[id.at()];
    let (out, program, context) = (dtype(ty), scope.program, scope.context);
    match node {
        Node::Score => context.score,
        // Factors are multiplied onto the upstream gradient outside; they do not read it.
        Node::Upstream => context.score,
        Node::Index(axis) => scope.step(Step::Index(axis.dim() as u8)),
        Node::Length(side) => match (side, context.lengths) {
            (Side::Query, Some((q, _))) => q,
            (Side::Key, Some((_, kv))) => kv,
            (Side::Query, None) => scope.int(context.seq[0] as i32),
            (Side::Key, None) => scope.int(context.seq[1] as i32),
        },
        Node::Float(x) => scope.step(Step::Constant(0, x.bits())),
        Node::Int(x) => scope.int(x),
        // cuDNN has no boolean constants: an index is never below zero.
        Node::Bool(x) => {
            let (index, zero) = (scope.step(Step::Index(3)), scope.int(0));
            let mode = if x { Pointwise::CmpGe } else { Pointwise::CmpLt };
            scope.step(Step::Binary(mode, index, zero, DType::Bool, DType::Bool))
        }
        Node::Slot(slot) => {
            let ty = program.slots()[slot.at()].ty;
            scope.g.slot(Role::Slot(context.first_slot + slot.0 as u16), ty.dtype())
        }
        Node::Tensor(tensor) => {
            let spec = program.tensors()[tensor.at()];
            let operand = Tensor::dense(Order::Bhsd, spec.dims.map(u64::cast_signed), spec.dtype);
            scope.g.operand(Role::ScoreTensor(context.first_tensor + tensor.0 as u16), &operand)
        }
        Node::ToFloat(a) => scope.step(Step::Unary(Pointwise::Identity, at(a), DType::F32)),
        Node::Unary(op, a) => scope.step(Step::Unary(unary(op), at(a), out)),
        Node::Binary(Binary::FloorRem, a, b) => floor_rem(scope, at(a), at(b), out),
        Node::Binary(op, a, b) => scope.step(Step::Binary(binary(op), at(a), at(b), out, out)),
        Node::Compare(op, a, b) => {
            let compute = if program.ty(a) == Ty::Float { DType::F32 } else { DType::Bool };
            scope.step(Step::Binary(compare(op), at(a), at(b), compute, DType::Bool))
        }
        Node::Not(a) => scope.step(Step::Unary(Pointwise::Not, at(a), DType::Bool)),
        Node::Logic(Logic::And, a, b) => {
            scope.step(Step::Binary(Pointwise::And, at(a), at(b), DType::Bool, DType::Bool))
        }
        Node::Logic(Logic::Or, a, b) => scope.step(Step::Binary(Pointwise::Or, at(a), at(b), DType::Bool, DType::Bool)),
        Node::Select { keep, yes, no } => scope.step(Step::Select(at(keep), at(yes), at(no), out)),
    }
}

/// `a - b * floor(a / b)`: the mode of its own is known to 9.27 on only.
fn floor_rem(scope: &mut Scope<'_>, a: TensorId, b: TensorId, out: DType) -> TensorId {
    let quotient = scope.float(Pointwise::Div, a, b);
    let whole = scope.step(Step::Unary(Pointwise::Floor, quotient, DType::F32));
    let multiple = scope.step(Step::Binary(Pointwise::Mul, whole, b, DType::F32, out));
    scope.step(Step::Binary(Pointwise::Sub, a, multiple, out, out))
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
