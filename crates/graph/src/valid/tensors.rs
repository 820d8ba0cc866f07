//! Checks each tensor: sizes that can be counted, head dim stride 1, no overflow, no overlapping rows, room for its
//! rows.

use super::Problems;
use crate::registry::codes;
use crate::{Attention, Gradients, Pass, Storage, Tensor};

/// Largest extent of a dim, a pool or a page, because lengths, page tables and indices of scores are 32-bit integers.
pub(crate) const MAX_EXTENT: i64 = i32::MAX as i64;

/// Every tensor of the description, with its name and whether a launch writes it.
pub(crate) fn named(a: &Attention) -> Vec<(&'static str, &Tensor, bool)> {
    let mut list = vec![("q", &a.q, false), ("k", &a.k, false), ("v", &a.v, false), ("o", &a.o, !a.is_backward())];
    if let Pass::Backward(Gradients { d_o, d_o_half, d_q, d_k, d_v, d_sink: _, deterministic: _ }) = &a.pass {
        list.extend([("d_o", d_o, false), ("d_q", d_q, true), ("d_k", d_k, true), ("d_v", d_v, true)]);
        list.extend(d_o_half.iter().map(|t| ("d_o_half", t, false)));
    }
    list
}

/// Whether the tensor's dims are valid extents. Invalid dims are reported once, here, and compared with nothing.
pub(super) fn countable(t: &Tensor) -> bool {
    t.dims.iter().all(|n| (1..=MAX_EXTENT).contains(n))
}

pub(super) fn check(a: &Attention, problems: &mut Problems) {
    for (name, tensor, written) in named(a) {
        one(name, tensor, written, problems);
    }
}

/// Checks one tensor.
pub(crate) fn one(name: &'static str, tensor: &Tensor, written: bool, problems: &mut Problems) {
    let dims = dims(name, tensor, problems);
    let strides = strides(name, tensor, problems);
    let storage = storage(name, tensor, problems);
    if dims && strides && storage {
        places(name, tensor, written, problems);
    }
}

fn dims(name: &'static str, t: &Tensor, problems: &mut Problems) -> bool {
    if t.dims.iter().any(|&n| n < 1) {
        problems.add(codes::TENSOR_DIMS.reason(format!("{:?}", t.dims)).at(format!("{name}.dims")));
        return false;
    }
    if !countable(t) {
        problems.add(codes::TENSOR_DIMS_LIMIT.reason(format!("{:?}", t.dims)).at(format!("{name}.dims")));
        return false;
    }
    true
}

fn strides(name: &'static str, t: &Tensor, problems: &mut Problems) -> bool {
    if t.strides.iter().any(|&n| n < 1) {
        problems.add(codes::TENSOR_STRIDES.reason(format!("{:?}", t.strides)).at(format!("{name}.strides")));
        return false;
    }
    if t.strides[3] != 1 {
        problems.add(codes::TENSOR_HEAD_DIM_STRIDE.reason(t.strides[3].to_string()).at(format!("{name}.strides[3]")));
        return false;
    }
    true
}

fn storage(name: &'static str, t: &Tensor, problems: &mut Problems) -> bool {
    match t.storage {
        Storage::Dense => {}
        Storage::Varlen { tokens } => {
            if tokens < 1 {
                problems.add(codes::TENSOR_TOKENS.reason(tokens.to_string()).at(format!("{name}.storage.tokens")));
                return false;
            }
        }
        Storage::Paged { pages, page_size } => {
            let given = || format!("{pages} pages of {page_size} rows");
            if pages < 1 || page_size < 1 {
                problems.add(codes::TENSOR_PAGES.reason(given()).at(format!("{name}.storage")));
                return false;
            }
            if pages > MAX_EXTENT || page_size > MAX_EXTENT {
                problems.add(codes::TENSOR_PAGES_LIMIT.reason(given()).at(format!("{name}.storage")));
                return false;
            }
        }
    }
    true
}

/// Checks where the elements lie, after dims, strides and storage were checked.
fn places(name: &'static str, t: &Tensor, written: bool, problems: &mut Problems) {
    if !addressable(t) {
        problems.add(
            codes::TENSOR_SPAN
                .reason(format!("{:?}, dims {:?} with strides {:?}", t.storage, t.dims, t.strides))
                .at(format!("{name}.strides")),
        );
    } else if written && overlaps(t) {
        problems.add(
            codes::TENSOR_OVERLAP
                .reason(format!("dims {:?} with strides {:?}", t.dims, t.strides))
                .at(format!("{name}.strides")),
        );
    }
}

/// Whether 63 bits can count the bytes that the tensor spans, and those of the dense view that declares a varlen
/// tensor.
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

/// Whether two elements of the tensor may share an address: sorted by stride, each dim must reach past those inside it.
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
