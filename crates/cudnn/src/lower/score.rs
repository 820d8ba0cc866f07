//! Score expressions as operations: one operation per node, in the expression's canonical order.
//!
//! Floats are computed in f32, integers and truth values in i32. Comparisons are computed as booleans, as in NVIDIA's
//! front end. [`Memo`] gives each operation the form that cuDNN accepts.

use super::builder::Builder;
use super::power;
use super::remainder::{floor_div, floor_rem, never_zero, real_below_zero};
use super::step::{Memo, Step};
use super::variants::Variant;
use crate::expr::{Axis, Binary, Compare, Logic, Node, NodeId, Power, Program, Side, Ty, Unary};
use crate::op::{OfOrigins, Pointwise, TensorId};
use crate::{Attention, DType, Order, Role, Tensor};

/// The inputs of an expression besides its scalars and tensors.
#[derive(Clone, Copy)]
pub(super) struct Context {
    /// The scaled score, (b, h_q, s_q, s_kv).
    pub(super) score: TensorId,
    /// Gradient of the loss with respect to the expression's value, for derivatives that are multiplied by it.
    pub(super) upstream: Option<TensorId>,
    /// Lengths of queries and keys, if they are operands.
    pub(super) lengths: Option<(TensorId, TensorId)>,
    /// Whether an expression reads the second declaration of the lengths.
    pub(super) whole_lengths: bool,
    /// Lengths of queries and keys, if they are fixed.
    pub(super) seq: [i64; 2],
    /// How indices become positions.
    pub(super) positions: Positions,
    /// Number of the expression's first scalar: those of the predicate come after those of the score expression.
    pub(super) first_scalar: u16,
    /// Number of its first tensor.
    pub(super) first_tensor: u16,
}

impl Context {
    /// The context of a score expression, which reads the same lengths as masks.
    pub(super) const fn new(score: TensorId, lengths: Option<(TensorId, TensorId)>, seq: [i64; 2]) -> Context {
        let positions = Positions::Indices;
        Context {
            score,
            upstream: None,
            lengths,
            whole_lengths: false,
            seq,
            positions,
            first_scalar: 0,
            first_tensor: 0,
        }
    }

    /// The context of the predicate: its scalars and tensors come after those of the score expression.
    pub(super) fn after(self, score: Option<&crate::expr::ScoreExpr>) -> Context {
        let count = |n: usize| n as u16;
        Context {
            first_scalar: score.map_or(0, |e| count(e.scalars().len())),
            first_tensor: score.map_or(0, |e| count(e.tensors().len())),
            ..self
        }
    }
}

/// What expressions count as positions of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Positions {
    /// Rows and columns of the scores.
    Indices,
    /// Rows and columns, each plus its origin.
    Absolute,
    /// Rows, and columns plus the distance of the origins: enough for expressions of distances, and one addition less.
    Distances,
}

impl Positions {
    /// What the expressions of an attention count: the modification and its derivative share operations.
    pub(super) fn for_attention(a: &Attention) -> Positions {
        let expressions =
            [a.score_mod.as_ref(), a.score_mod_bprop.as_ref().map(|own| &own.derivative), a.mask.mask_mod.as_ref()];
        match a.origins {
            None => Positions::Indices,
            Some(_) if expressions.into_iter().flatten().all(|e| e.counts_distances()) => Positions::Distances,
            Some(_) => Positions::Absolute,
        }
    }
}

/// An index along an axis, or the position there.
fn position(scope: &mut Scope<'_>, axis: Axis) -> TensorId {
    let origin = |query, key| OfOrigins { dtype: DType::I32, start: 0, query, key, least: None };
    let number = match (scope.context.positions, axis) {
        (Positions::Indices, _) | (_, Axis::Batch | Axis::Head) | (Positions::Distances, Axis::Query) => None,
        (Positions::Absolute, Axis::Query) => Some(origin(1, 0)),
        (Positions::Absolute, Axis::Key) => Some(origin(0, 1)),
        (Positions::Distances, Axis::Key) => Some(origin(-1, 1)),
    };
    let index = scope.step(Step::Index(axis.dim() as u8));
    let Some(number) = number else { return index };
    let origin = scope.step(Step::OfOrigins(number));
    scope.step(Step::Binary(Pointwise::Add, index, origin, DType::I32, DType::I32))
}

/// Writes a program and returns its result.
pub(super) fn expression(g: &mut Builder, program: &Program, context: &Context) -> TensorId {
    expression_with(g, program, context, &mut Memo::default())
}

/// Writes the nodes of a program that `memo` does not have yet, and returns its result.
pub(super) fn expression_with(g: &mut Builder, program: &Program, context: &Context, memo: &mut Memo) -> TensorId {
    let read = read_as_tensors(program);
    let mut done: Vec<TensorId> = Vec::with_capacity(program.nodes().len());
    for (i, &node) in program.nodes().iter().enumerate() {
        let ty = program.ty(NodeId(i as u32));
        let result = match node {
            // Nothing reads this place. cuDNN refuses a launch with a number that its plan does not know.
            Node::Int(_) | Node::Float(_) if !read[i] => context.score,
            _ => one(&mut Scope { g, program, context, memo }, &done, node, ty),
        };
        done.push(result);
    }
    done[program.root().at()]
}

/// The nodes whose results operations read: all but the divisors of whole quotients, which are a part of other
/// constants, exponents of products, and those that are written as f32.
fn read_as_tensors(program: &Program) -> Vec<bool> {
    let mut read = vec![false; program.nodes().len()];
    read[program.root().at()] = true;
    for &node in program.nodes() {
        match node {
            Node::Binary(Binary::FloorDiv, a, _) => read[a.at()] = true,
            Node::Binary(Binary::FloorRem, a, b) if matches!(program.node(b), Node::Int(n) if n < 0) => {
                read[a.at()] = true;
            }
            Node::Binary(Binary::Pow, a, b) if matches!(program.power(a, b), Power::One | Power::Product { .. }) => {
                read[a.at()] = true;
            }
            _ => node.operands().for_each(|id| read[id.at()] = true),
        }
    }
    read
}

pub(super) fn dtype(g: &Builder, ty: Ty) -> DType {
    match ty {
        Ty::Float => DType::F32,
        Ty::Int => DType::I32,
        Ty::Bool if g.follows(Variant::TruthAsInt) => DType::I32,
        Ty::Bool => DType::Bool,
    }
}

pub(super) struct Scope<'a> {
    pub(super) g: &'a mut Builder,
    program: &'a Program,
    context: &'a Context,
    memo: &'a mut Memo,
}

impl Scope<'_> {
    pub(super) fn step(&mut self, step: Step) -> TensorId {
        self.memo.write(self.g, self.context.score, step)
    }

    pub(super) fn int(&mut self, x: i32) -> TensorId {
        self.step(Step::Int(x))
    }

    pub(super) fn number(&mut self, x: f32) -> TensorId {
        self.step(Step::Float(x.to_bits()))
    }

    /// A computed 0.
    pub(super) fn zero(&mut self) -> TensorId {
        let index = self.step(Step::Index(2));
        let zero = self.step(Step::Binary(Pointwise::Sub, index, index, DType::I32, DType::I32));
        self.step(Step::Unary(Pointwise::Identity, zero, DType::F32))
    }

    pub(super) fn unary(&mut self, mode: Pointwise, x: TensorId) -> TensorId {
        self.step(Step::Unary(mode, x, DType::F32))
    }

    pub(super) fn float(&mut self, mode: Pointwise, x: TensorId, b: TensorId) -> TensorId {
        self.step(Step::Binary(mode, x, b, DType::F32, DType::F32))
    }

    /// A comparison of floats.
    pub(super) fn compare(&mut self, mode: Pointwise, a: TensorId, b: TensorId) -> TensorId {
        let truth = dtype(self.g, Ty::Bool);
        self.step(Step::Binary(mode, a, b, DType::F32, truth))
    }
}

fn one(scope: &mut Scope<'_>, done: &[TensorId], node: Node, ty: Ty) -> TensorId {
    let at = |id: NodeId| done[id.at()];
    let (program, context) = (scope.program, scope.context);
    let (out, truth) = (dtype(scope.g, ty), dtype(scope.g, Ty::Bool));
    match node {
        Node::Score => context.score,
        Node::Upstream => context.upstream.expect("only derivatives that are multiplied by a gradient read it"),
        Node::Index(axis) => position(scope, axis),
        Node::Length(side) => length(scope, side),
        Node::Float(x) => scope.step(Step::Float(x.bits())),
        Node::Int(x) => scope.int(x),
        // cuDNN has no boolean constants: an index is never below zero.
        Node::Bool(x) => {
            let (index, zero) = (scope.step(Step::Index(3)), scope.int(0));
            let mode = if x { Pointwise::CmpGe } else { Pointwise::CmpLt };
            scope.step(Step::Binary(mode, index, zero, DType::Bool, truth))
        }
        Node::Scalar(scalar) => {
            let ty = program.scalars()[scalar.at()].ty;
            scope.g.scalar(Role::Scalar(context.first_scalar + scalar.0 as u16), ty.dtype())
        }
        Node::Tensor(tensor) => {
            let spec = program.tensors()[tensor.at()];
            let operand = Tensor::dense(Order::Bhsd, spec.dims, spec.dtype);
            let operand = whole_queries(scope.g, &operand, context.seq);
            scope.g.operand(Role::ScoreTensor(context.first_tensor + tensor.0 as u16), &operand)
        }
        Node::ToFloat(a) => scope.step(Step::Unary(Pointwise::Identity, at(a), DType::F32)),
        Node::Unary(op, a) => scope.step(Step::Unary(unary(op), at(a), out)),
        Node::Binary(op @ (Binary::Rem | Binary::FloorRem), a, b) => {
            let sure = ty == Ty::Float || program.is_never_zero(b);
            let divisor = if sure { at(b) } else { never_zero(scope, at(b)) };
            match op {
                Binary::FloorRem => {
                    let divisor = real_below_zero(scope, program.node(b)).unwrap_or(divisor);
                    floor_rem(scope, at(a), divisor, out)
                }
                _ => scope.step(Step::Binary(binary(op), at(a), divisor, out, out)),
            }
        }
        Node::Binary(Binary::FloorDiv, a, b) => match program.node(b) {
            Node::Int(divisor) => floor_div(scope, at(a), divisor),
            _ => unreachable!("a floor division is by a constant"),
        },
        Node::Binary(Binary::Pow, a, b) => power::write(scope, program.power(a, b), at(a), at(b)),
        Node::Binary(op, a, b) => scope.step(Step::Binary(binary(op), at(a), at(b), out, out)),
        Node::Compare(op, a, b) => {
            let compute = if program.ty(a) == Ty::Float { DType::F32 } else { DType::Bool };
            scope.step(Step::Binary(compare(op), at(a), at(b), compute, truth))
        }
        Node::Not(a) => scope.step(Step::Unary(Pointwise::Not, at(a), truth)),
        Node::Logic(Logic::And, a, b) => scope.step(Step::Binary(Pointwise::And, at(a), at(b), truth, truth)),
        Node::Logic(Logic::Or, a, b) => scope.step(Step::Binary(Pointwise::Or, at(a), at(b), truth, truth)),
        Node::Select { keep, yes, no } => scope.step(Step::Select(at(keep), at(yes), at(no), out)),
    }
}

/// The length of a sequence: a number or an operand. In the declaration for masks, one number per sequence, an
/// expression in a forward of several queries reads it wrongly (84 of 84 cases on an H200, cuDNN 9.14 and 9.19;
/// docs/results/selftest.md), so it is declared a second time.
fn length(scope: &mut Scope<'_>, side: Side) -> TensorId {
    let context = scope.context;
    let (seq, lengths, role) = match side {
        Side::Query => (context.seq[0], context.lengths.map(|(q, _)| q), Role::SeqLenQWhole),
        Side::Key => (context.seq[1], context.lengths.map(|(_, kv)| kv), Role::SeqLenKvWhole),
    };
    let Some(declared) = lengths else { return scope.int(seq as i32) };
    let one_each = Tensor::dense(Order::Bhsd, scope.g.dims(declared), DType::I32);
    let whole = whole_queries(scope.g, &one_each, context.seq);
    let again = context.whole_lengths && context.seq[0] > 1 && whole != one_each;
    if again { scope.g.operand(role, &whole) } else { declared }
}

/// Declares a tensor that is broadcast over the queries with all queries, with a stride of zero; for one query, with
/// all keys. A tensor of one number, or of one per head, is read correctly as it is.
fn whole_queries(g: &Builder, t: &Tensor, seq: [i64; 2]) -> Tensor {
    let mut whole = *t;
    let [b, _, _, k] = t.dims;
    let axis = if seq[0] > 1 { 2 } else { 3 };
    if g.follows(Variant::WholeQueries) && whole.dims[axis] == 1 && (b > 1 || k > 1) {
        (whole.dims[axis], whole.strides[axis]) = (seq[axis - 2], 0);
    }
    whole
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
        Binary::Div | Binary::FloorDiv => Pointwise::Div,
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
