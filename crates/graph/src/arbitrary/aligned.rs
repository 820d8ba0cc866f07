//! Random attentions brought near to what kernels of our own take.

use crate::{Attention, Storage, Tensor};

/// The same attention with head dims of whole 16s, as many heads of values as of keys, rows that begin at multiples of
/// 16 bytes, and no varlen keys: what kernels take that copy 16 bytes at a time. It may be invalid.
pub fn aligned(mut a: Attention) -> Attention {
    let sixteens = |d: i64| (d + 15) / 16 * 16;
    let ([b, h, s, d], [_, hk, keys, _]) = (a.q.dims, a.k.dims);
    let (d, dv) = (sixteens(d), sixteens(a.v.dims[3]));
    let like = |of: &Tensor, dims: [i64; 4]| {
        let [b, h, s, d] = dims;
        match of.storage {
            Storage::Dense => Tensor::bshd(b, h, s, d, of.dtype),
            Storage::Varlen { tokens } => Tensor::thd(b, h, s, d, tokens, of.dtype),
            Storage::Paged { pages, page_size } => Tensor::paged_hnd(b, h, s, d, pages, page_size, of.dtype),
        }
    };
    let of_keys = if matches!(a.k.storage, Storage::Varlen { .. }) { Tensor::bshd(1, 1, 1, 1, a.k.dtype) } else { a.k };
    (a.q, a.o) = (like(&a.q, [b, h, s, d]), like(&a.o, [b, h, s, dv]));
    (a.k, a.v) = (like(&of_keys, [b, hk, keys, d]), like(&of_keys, [b, hk, keys, dv]));
    a
}
