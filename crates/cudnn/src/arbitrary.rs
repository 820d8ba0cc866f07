//! Random op graphs without any check: tensors and operations that refer to each other at random, with any dims and
//! roles; and readers of arbitrary data, which fuzzing calls. Only with the feature `testing`.

use proptest::prelude::*;
use qkvault_graph::arbitrary::read_as;

use crate::op::{
    Constant, Knob, NamedEngine, OfOrigins, Op, OpGraph, OpTensor, Pointwise, Reduce, TensorId, TensorKind,
};
use crate::{CompileOptions, DType, Profile, Role, op};

/// Range of random tensor ids; there may be fewer tensors.
const IDS: u32 = 10;

fn id() -> impl Strategy<Value = TensorId> + Clone {
    prop_oneof![40 => (0..IDS).prop_map(TensorId), 1 => any::<u32>().prop_map(TensorId)]
}

fn maybe() -> impl Strategy<Value = Option<TensorId>> + Clone {
    prop::option::of(id())
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![
        4 => (0..4_000_i64).prop_filter_map("an id of a role", Role::from_uid),
        1 => any::<u16>().prop_map(Role::Scalar),
        1 => any::<u16>().prop_map(Role::ScoreTensor),
    ]
}

fn of_origins() -> impl Strategy<Value = OfOrigins> {
    let dtype = prop::sample::select(vec![DType::I32, DType::F32]);
    (dtype, any::<i32>(), -1..2_i8, -1..2_i8, any::<Option<i32>>())
        .prop_map(|(dtype, start, query, key, least)| OfOrigins { dtype, start, query, key, least })
}

fn tensor() -> impl Strategy<Value = OpTensor> {
    let extent = || prop_oneof![20 => 1..4_i64, 1 => any::<i64>()];
    let kind = prop_oneof![
        4 => Just(TensorKind::Virtual),
        2 => role().prop_map(TensorKind::Operand),
        1 => role().prop_map(TensorKind::Scalar),
        1 => any::<u32>().prop_map(|bits| TensorKind::Constant(Constant::F32(bits))),
        1 => any::<i32>().prop_map(|value| TensorKind::Constant(Constant::I32(value))),
        1 => of_origins().prop_map(|number| TensorKind::Constant(Constant::OfOrigins(number))),
    ];
    let dims = || prop_oneof![Just([1; 4]), prop::array::uniform4(extent())];
    (dims(), dims(), prop::sample::select(DType::ALL.to_vec()), kind, maybe())
        .prop_map(|(dims, strides, dtype, kind, offsets)| OpTensor { dims, strides, dtype, kind, offsets })
}

fn op() -> impl Strategy<Value = Op> {
    let modes = vec![Pointwise::Add, Pointwise::Exp, Pointwise::Select, Pointwise::GenIndex, Pointwise::CmpGe];
    let mode = prop::sample::select(modes);
    let reduce = prop::sample::select(vec![Reduce::Add, Reduce::Max, Reduce::Amax]);
    let dtype = prop::sample::select(DType::ALL.to_vec());
    prop_oneof![
        (id(), id(), id(), maybe(), maybe(), maybe()).prop_map(|(a, b, c, m, n, k)| Op::Matmul { a, b, c, m, n, k }),
        (mode.clone(), id(), maybe(), maybe(), id(), prop::option::of(any::<u8>()), dtype)
            .prop_map(|(mode, x, b, t, y, axis, compute)| Op::Pointwise { mode, x, b, t, y, axis, compute }),
        (reduce, id(), id()).prop_map(|(op, x, y)| Op::Reduction { op, x, y }),
        (any::<u64>(), id(), id(), id()).prop_map(|(keep, seed, offset, y)| Op::Rng { keep, seed, offset, y }),
        (id(), id()).prop_map(|(x, y)| Op::Reshape { x, y }),
        (id(), id(), id()).prop_map(|(x, scale, y)| Op::Dequantize { x, scale, y }),
        (id(), id(), id(), id()).prop_map(|(container, table, lengths, y)| Op::PagedLoad {
            container,
            table,
            lengths,
            y
        }),
        ((id(), id(), id(), mode), (maybe(), maybe(), maybe(), maybe())).prop_map(
            |((x, fill, y, compare), (seq_q, seq_kv, left, shift_right))| Op::BandMask {
                x,
                fill,
                seq_q,
                seq_kv,
                left,
                shift_right,
                y,
                compare,
            }
        ),
        (id(), id(), maybe(), maybe(), maybe(), maybe()).prop_map(|(x, y, stats, max, sum_exp, sink)| Op::Softmax {
            x,
            y,
            stats,
            max,
            sum_exp,
            sink
        }),
    ]
}

fn engine() -> impl Strategy<Value = NamedEngine> {
    let knobs = vec![Knob::Stages, Knob::KernelCfg, Knob::TileCgaM, Knob::StreamK, Knob::TileM, Knob::TileN];
    let knobs = prop::collection::vec((prop::sample::select(knobs), any::<i64>()), 0..4);
    (any::<i64>(), knobs).prop_map(|(index, knobs)| NamedEngine { index, knobs })
}

/// Random op graphs; nearly all of them are invalid.
pub fn op_graph() -> impl Strategy<Value = OpGraph> {
    let tensors = prop::collection::vec(tensor(), 0..IDS as usize + 2);
    (tensors, prop::collection::vec(op(), 0..8), prop::option::of(engine()))
        .prop_map(|(tensors, ops, engine)| OpGraph { tensors, ops, engine, ..OpGraph::default() })
}

/// Reads bytes as MessagePack and JSON of every stored or sent type of this crate and below, and as text. Returns the
/// types that they are.
///
/// # Panics
///
/// If a value that was read changes when it is written and read again: the bug that fuzzing searches.
pub fn read_bytes(data: &[u8]) -> Vec<&'static str> {
    let mut read = qkvault_graph::arbitrary::read_bytes(data);
    let graph = |graph: &OpGraph| {
        let _ = (op::check(graph), graph.to_string(), graph.roles());
    };
    read.extend(read_as::<Profile>(data, |_| {}).then_some("profile"));
    read.extend(read_as::<CompileOptions>(data, |_| {}).then_some("options"));
    read.extend(read_as(data, graph).then_some("op graph"));
    read
}
