//! Canonical bytes, which are hashed. They are equal exactly if the meaning is equal.
//!
//! Everything is written as MessagePack arrays of numbers. Enumerations have numbers here that do not depend on names
//! or declaration order. Every struct is destructured without `..`, so that a new field cannot be forgotten. Display
//! names and values that a launch gets are left out.

use serde::Serialize;

use crate::expr::{AlibiSlopes, Node, ScoreExpr, TensorSpec};
use crate::op::{Constant, NamedEngine, OfOrigins, Op, OpGraph, OpTensor, TensorId, TensorKind};
use crate::{
    Attention, Band, Corner, Dropout, DropoutSource, Fp8, Gradients, Lengths, Mask, Origins, Outputs, PaddedRows, Pass,
    ScoreModBprop, Storage, Tensor, Valid, codec,
};

/// The canonical bytes of a valid attention.
#[must_use]
pub fn bytes(valid: &Valid) -> Vec<u8> {
    attention(valid.get())
}

/// The same of an attention in canonical form, before it is a valid one.
pub(crate) fn attention(canonical: &Attention) -> Vec<u8> {
    let Attention {
        q,
        k,
        v,
        o,
        mask,
        score_mod,
        score_mod_bprop,
        origins,
        sink,
        dropout,
        block_mask,
        outputs,
        padded_rows,
        fp8,
        pass,
    } = canonical;
    let Outputs { stats, max, sum_exp, amax } = *outputs;
    let padded_rows = match padded_rows {
        PaddedRows::Undefined => 0_u8,
        PaddedRows::Zero => 1,
    };
    // Only 8-bit attentions have largest magnitudes; without them, 16 is added.
    let fp8 = fp8.map(|scaling| {
        let scaling = match scaling {
            Fp8::Delayed => 1_u8,
            Fp8::Current => 2,
            Fp8::Block => 3,
        };
        if amax { scaling } else { scaling + 16 }
    });
    // The dropout probability is a scalar: its value is not part of the key.
    let dropout = dropout.map(|Dropout { source, probability: _ }| match source {
        DropoutSource::Philox => 1_u8,
        DropoutSource::Mask => 2,
        DropoutSource::Places => 3,
    });
    let operands = [q, k, v, o].map(tensor);
    let features =
        (score_mod.as_ref().map(expression), sink, dropout, block_mask, (stats, max, sum_exp), padded_rows, fp8);
    let pass = match pass {
        Pass::Forward => None,
        Pass::Backward(Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink, deterministic }) => {
            // The length of the list tells whether there is a 16-bit dO.
            let tensors: Vec<_> = [d_o, d_q, d_k, d_v].into_iter().chain(d_o_half).map(tensor).collect();
            Some((tensors, d_sink, deterministic))
        }
    };
    let mut bytes = codec::encode(&(operands, mask_bytes(mask), features, pass));
    if let (Some(score_mod), Some(ScoreModBprop { derivative, trusted: _ })) = (score_mod, score_mod_bprop) {
        // Only display names tell which of two scalars the derivative reads, so their places in the modification are
        // written, in the order of each table.
        let places = |names: &[String], of: &[String]| -> Vec<usize> {
            names.iter().map(|name| of.iter().position(|n| n == name).unwrap_or(of.len())).collect()
        };
        let scalars = places(derivative.scalar_names(), score_mod.scalar_names());
        let tensors = places(derivative.tensor_names(), score_mod.tensor_names());
        bytes.extend(codec::encode(&(expression(derivative), scalars, tensors)));
    }
    // A number, where the author's derivative is a list. Keys of attentions without origins stay unchanged.
    if let Some(origins) = origins {
        let code = match origins {
            Origins::Any => 1_u8,
            Origins::EveryQuerySeesAKey => 2,
        };
        bytes.extend(codec::encode(&code));
    }
    bytes
}

fn tensor(t: &Tensor) -> impl Serialize + use<> {
    let Tensor { dims, strides, dtype, storage } = *t;
    let storage = match storage {
        Storage::Dense => (0_u8, 0, 0),
        Storage::Varlen { tokens } => (1, tokens, 0),
        Storage::Paged { pages, page_size } => (2, pages, page_size),
    };
    (dims, strides, dtype.code(), storage)
}

fn mask_bytes(mask: &Mask) -> impl Serialize + use<> {
    let Mask { band, lengths, mask_mod } = mask;
    let band = band.map(|Band { corner, left, right }| {
        let corner = match corner {
            Corner::TopLeft => 1_u8,
            Corner::BottomRight => 2,
        };
        (corner, left, right)
    });
    let lengths = match lengths {
        Lengths::Full => 0_u8,
        Lengths::PerSequence => 1,
    };
    (band, lengths, mask_mod.as_ref().map(expression))
}

/// An expression: its nodes in canonical order, and the kinds of its scalars and tensors, without names.
fn expression(e: &ScoreExpr) -> impl Serialize + use<> {
    let nodes: Vec<(u8, u8, Vec<i64>)> = e.nodes().iter().map(node).collect();
    let scalars: Vec<u8> = e.scalars().iter().map(|crate::expr::ScalarSpec { ty }| ty.code()).collect();
    let tensors: Vec<_> = e.tensors().iter().map(tensor_spec).collect();
    (nodes, scalars, tensors, e.root().0)
}

/// A tensor of an expression. Slopes follow only if there are any, so that keys of other tensors stay unchanged.
fn tensor_spec(spec: &TensorSpec) -> SpecForm {
    let TensorSpec { dims, dtype, grad, alibi } = *spec;
    match alibi {
        None => SpecForm::Bound(dims, dtype.code(), grad.code()),
        Some(AlibiSlopes { model_heads, first_head, bias_max }) => {
            SpecForm::Slopes(dims, dtype.code(), grad.code(), (model_heads, first_head, bias_max.bits()))
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum SpecForm {
    Bound([i64; 4], u8, u8),
    Slopes([i64; 4], u8, u8, (u32, u32, u32)),
}

/// (kind, operation, operands or value).
fn node(n: &Node) -> (u8, u8, Vec<i64>) {
    let id = |n: crate::expr::NodeId| i64::from(n.0);
    let (op, args) = match *n {
        Node::Score | Node::Upstream => (0, vec![]),
        Node::Index(axis) => (axis.dim() as u8, vec![]),
        Node::Length(side) => (side.code(), vec![]),
        Node::Float(x) => (0, vec![i64::from(x.bits())]),
        Node::Int(x) => (0, vec![i64::from(x)]),
        Node::Bool(x) => (0, vec![i64::from(x)]),
        Node::Scalar(s) => (0, vec![i64::from(s.0)]),
        Node::Tensor(t) => (0, vec![i64::from(t.0)]),
        Node::ToFloat(a) | Node::Not(a) => (0, vec![id(a)]),
        Node::Unary(op, a) => (op.code(), vec![id(a)]),
        Node::Binary(op, a, b) => (op.code(), vec![id(a), id(b)]),
        Node::Compare(op, a, b) => (op.code(), vec![id(a), id(b)]),
        Node::Logic(op, a, b) => (op.code(), vec![id(a), id(b)]),
        Node::Select { keep, yes, no } => (0, vec![id(keep), id(yes), id(no)]),
    };
    (n.code(), op, args)
}

/// An op graph for hashing: every tensor and operation by number.
pub(crate) fn op_graph(graph: &OpGraph) -> impl Serialize + use<> {
    // Allowed quirks and a named engine follow in the plan's key only if there are any, so that other keys stay
    // unchanged.
    let OpGraph { tensors, ops, excluded_engines, accepted_quirks: _, engine: _ } = graph;
    let tensors: Vec<_> = tensors.iter().map(op_tensor).collect();
    let ops: Vec<(u8, Vec<i64>)> = ops.iter().map(op).collect();
    (tensors, ops, excluded_engines.clone())
}

/// A named engine for hashing.
pub(crate) fn engine(engine: &NamedEngine) -> impl Serialize + use<> {
    let NamedEngine { index, knobs } = engine;
    let knobs: Vec<(u32, i64)> = knobs.iter().map(|&(knob, value)| (knob as u32, value)).collect();
    (*index, knobs)
}

fn op_tensor(t: &OpTensor) -> impl Serialize + use<> {
    let OpTensor { dims, strides, dtype, kind, offsets } = t;
    let kind = match *kind {
        TensorKind::Virtual => (0_u8, 0_i64),
        TensorKind::Operand(role) => (1, role.uid()),
        TensorKind::Scalar(role) => (2, role.uid()),
        TensorKind::Constant(Constant::F32(bits)) => (3, i64::from(bits)),
        TensorKind::Constant(Constant::I32(value)) => (4, i64::from(value)),
        TensorKind::Constant(Constant::OfOrigins(number)) => of_origins(number),
    };
    (*dims, *strides, dtype.code(), kind, offsets.map(|t| t.0))
}

/// A number that follows from origins: its type, then everything else of it as the digits of one number.
fn of_origins(number: OfOrigins) -> (u8, i64) {
    let OfOrigins { dtype, start, query, key, least } = number;
    let sign = |x: i8| i64::from(x) + 1;
    // The least value follows from the extents, which are there: whether there is one says all.
    let digits = sign(query) | sign(key) << 2 | i64::from(least.is_some()) << 4;
    (5, i64::from(start) << 16 | digits << 8 | i64::from(dtype.code()))
}

/// (kind of operation, fields in declaration order; an absent tensor is -1).
fn op(op: &Op) -> (u8, Vec<i64>) {
    let t = |id: TensorId| i64::from(id.0);
    let o = |id: Option<TensorId>| id.map_or(-1, |id| i64::from(id.0));
    match *op {
        Op::Matmul { a, b, c, m, n, k } => (1, vec![t(a), t(b), t(c), o(m), o(n), o(k)]),
        Op::Pointwise { mode, x, b, t: when, y, axis, compute } => {
            let axis = axis.map_or(-1, i64::from);
            (2, vec![mode as i64, t(x), o(b), o(when), t(y), axis, i64::from(compute.code())])
        }
        Op::Reduction { op, x, y } => (3, vec![op as i64, t(x), t(y)]),
        Op::Rng { keep, seed, offset, y } => (4, vec![keep.cast_signed(), t(seed), t(offset), t(y)]),
        Op::Reshape { x, y } => (5, vec![t(x), t(y)]),
        Op::PagedLoad { container, table, lengths, y } => (6, vec![t(container), t(table), t(lengths), t(y)]),
        Op::BandMask { x, fill, seq_q, seq_kv, left, shift_right, y, compare } => {
            (7, vec![t(x), t(fill), o(seq_q), o(seq_kv), o(left), o(shift_right), t(y), compare as i64])
        }
        Op::Softmax { x, y, stats, max, sum_exp, sink } => (8, vec![t(x), t(y), o(stats), o(max), o(sum_exp), o(sink)]),
        // 9 and 10 were the halves of an operation that is written no more.
        Op::Dequantize { x, scale, y } => (11, vec![t(x), t(scale), t(y)]),
    }
}
