//! Random tensors of given dims: contiguous in every order, parts of shared buffers, padded, varlen and paged.

use proptest::prelude::*;

use crate::{DType, Interleave, Order, Storage, Tensor};

/// The layout of a dense tensor, before its dims are known.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layout {
    Contiguous(Order),
    /// One of two or three parts of a shared buffer.
    Part {
        three: bool,
        order: Order,
        interleave: Interleave,
    },
    /// Permuted axes, with padding between neighbours.
    Padded {
        permutation: usize,
        room: [i64; 3],
    },
}

pub(super) fn layout() -> impl Strategy<Value = Layout> {
    let order = || prop::sample::select(Order::ALL.to_vec());
    prop_oneof![
        4 => order().prop_map(Layout::Contiguous),
        2 => (any::<bool>(), order(), any::<bool>()).prop_map(|(three, order, heads)| Layout::Part {
            three,
            order,
            interleave: if heads { Interleave::Heads } else { Interleave::Parts },
        }),
        1 => (0..6_usize, prop::array::uniform3(0..40_i64))
            .prop_map(|(permutation, room)| Layout::Padded { permutation, room }),
    ]
}

/// A dense tensor of this layout whose elements do not overlap.
pub(super) fn dense(layout: Layout, dims: [i64; 4], dtype: DType) -> Tensor {
    match layout {
        Layout::Contiguous(order) => Tensor::dense(order, dims, dtype),
        Layout::Part { three: true, order, interleave } => Tensor::parts::<3>(order, interleave, dims, dtype)[0].tensor,
        Layout::Part { three: false, order, interleave } => {
            Tensor::parts::<2>(order, interleave, dims, dtype)[0].tensor
        }
        Layout::Padded { permutation, room } => {
            const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
            let mut strides = [1; 4];
            let mut reach = dims[3];
            for (axis, room) in ORDERS[permutation].into_iter().zip(room) {
                strides[axis] = reach + room;
                reach = strides[axis] * dims[axis];
            }
            Tensor { dims, strides, dtype, storage: Storage::Dense }
        }
    }
}

/// A varlen tensor with room for `tokens` rows, with heads inside rows or rows inside heads.
pub(super) fn varlen(layout: Layout, dims: [i64; 4], tokens: i64, dtype: DType) -> Tensor {
    let [b, h, s, d] = dims;
    let plain = Tensor::thd(b, h, s, d, tokens, dtype);
    match layout {
        Layout::Contiguous(Order::Bshd | Order::Sbhd) => plain,
        Layout::Contiguous(Order::Bhsd) => Tensor { strides: [h * tokens * d, tokens * d, d, 1], ..plain },
        Layout::Part { three, order: _, interleave } => {
            let n = if three { 3 } else { 2 };
            let head = match interleave {
                Interleave::Parts => d,
                Interleave::Heads => n * d,
            };
            Tensor { strides: [s * n * h * d, head, n * h * d, 1], ..plain }
        }
        Layout::Padded { permutation: _, room: [head, row, _] } => {
            Tensor { strides: [1, d + head, (d + head) * h + row, 1], ..plain }
        }
    }
}

/// A paged tensor, with heads inside rows or rows inside heads.
pub(super) fn paged(layout: Layout, dims: [i64; 4], pages: i64, page_size: i64, dtype: DType) -> Tensor {
    let [b, h, s, d] = dims;
    match layout {
        Layout::Contiguous(Order::Bhsd) | Layout::Part { three: true, .. } => {
            Tensor::paged_hnd(b, h, s, d, pages, page_size, dtype)
        }
        Layout::Contiguous(_) | Layout::Part { .. } => Tensor::paged_nhd(b, h, s, d, pages, page_size, dtype),
        Layout::Padded { .. } => {
            let inside = dense(layout, [pages, h, page_size, d], dtype);
            Tensor { dims, storage: Storage::Paged { pages, page_size }, ..inside }
        }
    }
}
