//! Random small attentions of 16-bit tensors, with every layout, mask and output of a dense forward.

use proptest::prelude::*;
use qkvault_graph::expr::{Expr, TensorSpec, head, key, query, scalar, score, select, tensor as operand};
use qkvault_graph::{Attention, Band, Corner, DType, Interleave, Lengths, Order, Outputs, Tensor};

/// A dense tensor in some order: contiguous, part of a shared buffer, or with room between rows.
pub(crate) fn tensor(dims: [i64; 4], dtype: DType, layout: (usize, usize, i64)) -> Tensor {
    let (order, kind, room) = layout;
    let order = Order::ALL[order];
    match kind {
        0 => Tensor::dense(order, dims, dtype),
        1 => Tensor::parts::<3>(order, Interleave::Parts, dims, dtype)[0].tensor,
        2 => Tensor::parts::<2>(order, Interleave::Heads, dims, dtype)[0].tensor,
        _ => {
            let [b, h, s, d] = dims;
            let mut t = Tensor::dense(order, [b, h, s, d + room], dtype);
            t.dims = dims;
            t
        }
    }
}

pub(crate) fn layout() -> impl Strategy<Value = (usize, usize, i64)> {
    (0..3_usize, 0..4_usize, 0..5_i64)
}

pub(crate) fn band() -> impl Strategy<Value = Band> {
    let corner = prop::sample::select(vec![Corner::TopLeft, Corner::BottomRight]);
    let bounds = prop_oneof![
        2 => Just((None, Some(0))),
        2 => (1..8_i64).prop_map(|l| (Some(l), Some(0))),
        1 => (1..8_i64).prop_map(|l| (Some(l), None)),
        1 => (0..5_i64).prop_map(|r| (None, Some(r))),
        1 => (1..9_i64, 0..9_i64).prop_map(|(l, r)| (Some(l), Some(r))),
    ];
    (corner, bounds).prop_map(|(corner, (left, right))| Band { corner, left, right })
}

/// Random dense forwards.
pub(crate) fn dense() -> impl Strategy<Value = Attention> {
    let heads = (1..=2_i64, prop::sample::select(vec![(1, 1), (2, 1), (1, 2), (3, 1), (2, 2)]));
    let shape = (1..=3_i64, heads, (1..=9_i64, 1..=9_i64), (1..=3_i64, 1..=3_i64), any::<bool>());
    let layouts = (layout(), layout(), layout(), layout());
    let mask = (prop::option::weighted(0.7, band()), any::<bool>());
    (shape, layouts, mask, any::<[bool; 4]>()).prop_map(
        |((b, (h, (k, v)), (s_q, s_kv), (d_qk, d_v), bf16), (q, key, value, o), (band, lengths), flags)| {
            let dtype = if bf16 { DType::BF16 } else { DType::F16 };
            let (h_q, h_k, h_v, d_qk, d_v) = (h * k * v, h * k, h * v, 8 * d_qk, 8 * d_v);
            let mut a = Attention::forward(
                tensor([b, h_q, s_q, d_qk], dtype, q),
                tensor([b, h_k, s_kv, d_qk], dtype, key),
                tensor([b, h_v, s_kv, d_v], dtype, value),
                tensor([b, h_q, s_q, d_v], dtype, o),
            );
            a.mask.band = band;
            a.mask.lengths = if lengths { Lengths::PerSequence } else { Lengths::Full };
            // cuDNN has Max and Sum_exp only together, before 9.21 not beside Stats, and never beside a sink.
            let [stats, max, sink, _] = flags;
            a.outputs = Outputs::new(stats && !max, max, max);
            a.sink = sink && !max;
            a
        },
    )
}

/// Score expressions that are smooth at random scores, with tensors that request gradients.
pub(crate) fn smooth(a: &Attention) -> Vec<(&'static str, Expr)> {
    let [b, h, s_q, s_kv] = [a.q.dims[0], a.q.dims[1], a.q.dims[2], a.k.dims[2]];
    let t = |name: &str, dims| operand(name, TensorSpec::new(DType::F32, dims).with_grad());
    let distance = || (query() - key()).to_float();
    vec![
        ("softcap", (score() / scalar("cap")).tanh() * scalar("cap")),
        ("alibi with learnt slopes", score() - t("slopes", [1, h, 1, 1]) * distance().abs()),
        (
            "bias of every shape",
            score() + t("full", [b, h, s_q, s_kv]) + t("rows", [1, h, s_q, s_kv]) * t("batch", [b, 1, 1, s_kv]),
        ),
        ("a bias inside a softcap", ((score() + t("bias", [1, 1, s_q, s_kv])) / scalar("cap")).tanh() * scalar("cap")),
        ("score squared", score() * score() * t("one", [1, 1, 1, 1])),
        ("a soft window", score() + (t("width", [1, h, 1, 1]) - distance().abs()).sigmoid().log()),
        ("arms of a selection", select(&head().lt(1), score() * 2.0, (score() * t("w", [1, 1, 1, s_kv])).sin())),
        (
            "many kinds",
            score().softplus() + score().erf() * t("a", [1, h, 1, s_kv]).cos() - score().swish()
                + (score() * score() + 1.0).sqrt(),
        ),
        ("a number of its own", t("only", [1, h, s_q, s_kv]).exp() + score() * 0.5),
    ]
}
