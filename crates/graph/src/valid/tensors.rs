//! Each tensor on its own: sizes that can be counted, unit head dim stride, no overflow, no overlapping rows, room for its rows.

use super::Problems;
use crate::{Attention, Gradients, Pass, Storage, Tensor};

/// Largest extent of a dim, a pool or a page: lengths, page tables and the indices of scores are 32-bit integers.
pub(crate) const MAX_EXTENT: i64 = i32::MAX as i64;

/// Every tensor of the description with its name and whether a launch writes it.
pub(crate) fn named(a: &Attention) -> Vec<(&'static str, &Tensor, bool)> {
    let mut list = vec![("q", &a.q, false), ("k", &a.k, false), ("v", &a.v, false), ("o", &a.o, !a.is_backward())];
    if let Pass::Backward(Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink: _, deterministic: _ }) = &a.pass {
        list.extend([("d_o", d_o, false), ("d_q", d_q, true), ("d_k", d_k, true), ("d_v", d_v, true)]);
        list.extend(d_o_half.iter().map(|t| ("d_o_half", t, false)));
    }
    list
}

/// Whether the tensor's dims are extents at all; what is not is reported once, here, and compared with nothing.
pub(super) fn countable(t: &Tensor) -> bool {
    t.dims.iter().all(|n| (1..=MAX_EXTENT).contains(n))
}

pub(super) fn check(a: &Attention, problems: &mut Problems) {
    for (name, tensor, written) in named(a) {
        let dims = dims(name, tensor, problems);
        let strides = strides(name, tensor, problems);
        let storage = storage(name, tensor, problems);
        if dims && strides && storage {
            places(name, tensor, written, problems);
        }
    }
}

fn dims(name: &'static str, t: &Tensor, problems: &mut Problems) -> bool {
    if t.dims.iter().any(|&n| n < 1) {
        problems.add(
            "tensor.dims",
            format!("{name}.dims"),
            format!("{:?}", t.dims),
            "every dim must be at least 1",
            "give (batch, heads, sequence, head dim)",
        );
        return false;
    }
    if !countable(t) {
        problems.add(
            "tensor.dims-limit",
            format!("{name}.dims"),
            format!("{:?}", t.dims),
            format!("no dim may exceed {MAX_EXTENT}: indices and lengths are 32-bit integers"),
            "split the batch or the sequence",
        );
        return false;
    }
    true
}

fn strides(name: &'static str, t: &Tensor, problems: &mut Problems) -> bool {
    if t.strides.iter().any(|&n| n < 1) {
        problems.add(
            "tensor.strides",
            format!("{name}.strides"),
            format!("{:?}", t.strides),
            "every stride must be at least 1; cuDNN broadcasts by a dim of 1, not by a stride of 0",
            "give strides in elements, in the order (batch, head, sequence, head dim)",
        );
        return false;
    }
    if t.strides[3] != 1 {
        problems.add(
            "tensor.head-dim-stride",
            format!("{name}.strides[3]"),
            t.strides[3].to_string(),
            "the head dim must be contiguous: stride 1",
            "copy the tensor so that the head dim is innermost",
        );
        return false;
    }
    true
}

fn storage(name: &'static str, t: &Tensor, problems: &mut Problems) -> bool {
    match t.storage {
        Storage::Dense => {}
        Storage::Varlen { tokens } => {
            if tokens < 1 {
                problems.add(
                    "tensor.tokens",
                    format!("{name}.storage.tokens"),
                    tokens.to_string(),
                    "the buffer must have room for at least one token",
                    "give the capacity of the varlen buffer in tokens",
                );
                return false;
            }
            if tokens < t.dims[0] {
                problems.add(
                    "tensor.tokens-batch",
                    format!("{name}.storage.tokens"),
                    format!("{tokens} tokens for {} sequences", t.dims[0]),
                    "room for at least one token per sequence, on average",
                    "dims[0] is the number of sequences and tokens the room of the varlen buffer: were they swapped?",
                );
                return false;
            }
        }
        Storage::Paged { pages, page_size } => {
            let given = || format!("{pages} pages of {page_size} rows");
            if pages < 1 || page_size < 1 {
                problems.add(
                    "tensor.pages",
                    format!("{name}.storage"),
                    given(),
                    "at least one page of at least one row",
                    "give the pool's page count and the rows of one page",
                );
                return false;
            }
            if pages > MAX_EXTENT || page_size > MAX_EXTENT {
                problems.add(
                    "tensor.pages-limit",
                    format!("{name}.storage"),
                    given(),
                    format!("at most {MAX_EXTENT} of each: page tables hold 32-bit integers"),
                    "use larger pages, or split the pool",
                );
                return false;
            }
        }
    }
    true
}

/// Where the elements lie, once dims, strides and storage are sound.
fn places(name: &'static str, t: &Tensor, written: bool, problems: &mut Problems) {
    if !addressable(t) {
        problems.add(
            "tensor.span",
            format!("{name}.strides"),
            format!("{:?}, dims {:?} with strides {:?}", t.storage, t.dims, t.strides),
            "the tensor must span fewer than 2^63 bytes",
            "check the strides: they are in elements, not bytes",
        );
    } else if written && overlaps(t) {
        problems.add(
            "tensor.overlap",
            format!("{name}.strides"),
            format!("dims {:?} with strides {:?}", t.dims, t.strides),
            "an output's elements must not share memory",
            "give each (batch, head, row) a place of its own",
        );
    }
}

/// Whether the bytes that the tensor spans can be counted, and those of the dense view that a varlen tensor is declared by.
fn addressable(t: &Tensor) -> bool {
    let view = match t.storage {
        Storage::Dense | Storage::Paged { .. } => Some(*t),
        Storage::Varlen { .. } => t.dims[2].checked_mul(t.strides[2]).map(|batch| Tensor {
            strides: [batch, t.strides[1], t.strides[2], t.strides[3]],
            storage: Storage::Dense,
            ..*t
        }),
    };
    t.bytes().is_some() && view.and_then(|view| view.bytes()).is_some()
}

/// Whether two elements of the tensor may lie at one address: dims sorted by stride must each reach past the ones inside.
fn overlaps(t: &Tensor) -> bool {
    let mut axes: Vec<(i64, i64)> = t.extents().into_iter().zip(t.strides).filter(|(n, _)| *n > 1).collect();
    axes.sort_by_key(|&(_, stride)| stride);
    let mut reach = 1_i64;
    for (n, stride) in axes {
        if stride < reach {
            return true;
        }
        reach = reach.saturating_add(stride.saturating_mul(n - 1));
    }
    false
}
