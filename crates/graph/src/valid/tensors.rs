//! Each tensor on its own: positive sizes, unit hidden stride, no overflow, no overlapping rows, room for its rows.

use super::Problems;
use crate::{Attention, Gradients, Pass, Storage, Tensor};

/// Every tensor of the description with its name and whether a launch writes it.
pub(crate) fn named(a: &Attention) -> Vec<(&'static str, &Tensor, bool)> {
    let mut list = vec![("q", &a.q, false), ("k", &a.k, false), ("v", &a.v, false), ("o", &a.o, !a.is_backward())];
    if let Pass::Backward(Gradients { d_o, d_q, d_k, d_v, d_sink: _, deterministic: _ }) = &a.pass {
        list.extend([("d_o", d_o, false), ("d_q", d_q, true), ("d_k", d_k, true), ("d_v", d_v, true)]);
    }
    list
}

pub(super) fn check(a: &Attention, problems: &mut Problems) {
    for (name, tensor, written) in named(a) {
        check_one(name, tensor, written, problems);
    }
}

fn check_one(name: &'static str, t: &Tensor, written: bool, problems: &mut Problems) {
    if t.dims.iter().any(|&n| n < 1) {
        problems.add(
            "tensor.dims",
            format!("{name}.dims"),
            format!("{:?}", t.dims),
            "every dim must be at least 1",
            "give (batch, heads, sequence, hidden)",
        );
        return;
    }
    if t.strides.iter().any(|&n| n < 1) {
        problems.add(
            "tensor.strides",
            format!("{name}.strides"),
            format!("{:?}", t.strides),
            "every stride must be at least 1; cuDNN broadcasts by a dim of 1, not by a stride of 0",
            "give strides in elements, in the order (batch, head, sequence, hidden)",
        );
        return;
    }
    if t.strides[3] != 1 {
        problems.add(
            "tensor.hidden-stride",
            format!("{name}.strides[3]"),
            t.strides[3].to_string(),
            "the hidden dim must be contiguous: stride 1",
            "copy the tensor so that hidden is innermost",
        );
    }
    match t.storage {
        Storage::Dense => {}
        Storage::Packed { tokens } => {
            if tokens < 1 {
                problems.add(
                    "tensor.tokens",
                    format!("{name}.storage.tokens"),
                    tokens.to_string(),
                    "the buffer must have room for at least one token",
                    "give the capacity of the packed buffer in tokens",
                );
                return;
            }
        }
        Storage::Paged { pages, page_size } => {
            if pages < 1 || page_size < 1 {
                problems.add(
                    "tensor.pages",
                    format!("{name}.storage"),
                    format!("{pages} pages of {page_size} rows"),
                    "at least one page of at least one row",
                    "give the pool's page count and the rows of one page",
                );
                return;
            }
        }
    }
    match t.span() {
        None => problems.add(
            "tensor.span",
            format!("{name}.strides"),
            format!("dims {:?} with strides {:?}", t.dims, t.strides),
            "the tensor must span fewer than 2^63 elements",
            "check the strides: they are in elements, not bytes",
        ),
        Some(_) if written && overlaps(t) => problems.add(
            "tensor.overlap",
            format!("{name}.strides"),
            format!("dims {:?} with strides {:?}", t.dims, t.strides),
            "an output's elements must not share memory",
            "give each (batch, head, row) a place of its own",
        ),
        Some(_) => {}
    }
}

/// Whether two elements of the tensor may lie at one address: dims sorted by stride must each reach past the ones inside.
fn overlaps(t: &Tensor) -> bool {
    let extents = match t.storage {
        Storage::Dense => t.dims,
        Storage::Packed { tokens } => [1, t.dims[1], tokens, t.dims[3]],
        Storage::Paged { pages, page_size } => [pages, t.dims[1], page_size, t.dims[3]],
    };
    let mut axes: Vec<(i64, i64)> = extents.into_iter().zip(t.strides).filter(|(n, _)| *n > 1).collect();
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
