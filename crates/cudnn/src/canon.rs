//! Op graphs as numbers, which are hashed, as attentions are by [`canonical_bytes`](qkvault_graph::canonical_bytes).

use serde::Serialize;

use crate::op::{Constant, NamedEngine, OfOrigins, Op, OpGraph, OpTensor, TensorId, TensorKind};

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
