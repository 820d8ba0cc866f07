//! Random small attentions of 16-bit tensors: every layout, mask and output that a dense forward can have.

use proptest::prelude::*;
use qkvault_graph::{Attention, Band, Corner, DType, Interleave, Lengths, Order, Outputs, Tensor};

/// A dense tensor in some order, contiguous, a part of a shared buffer, or with room between rows.
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

/// Dense forwards.
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
            let [stats, max, sum_exp, sink] = flags;
            a.outputs = Outputs { stats, max, sum_exp };
            // Lowering has no Max and Sum_exp beside a sink: cuDNN's would count the sink.
            a.sink = sink && !max && !sum_exp;
            a
        },
    )
}
