//! Paged keys and values in op graphs: the pool as an operand, and the operation that gathers a sequence's rows from
//! it.
//!
//! The pool is declared as it lies in memory, (pages, heads, rows of a page, head dim), but with room for more pages
//! than it has, because the real number is known only when an engine starts. A kernel reads the pages that tables name;
//! the declared number is only a bound (an extent of the descriptor with which several queries read it, unused for one
//! query), and no stride depends on it. The gathered rows are a contiguous intermediate. For the keys its last two dims
//! are swapped, as the first matrix product reads it. Source: cudnn-frontend 1.23,
//! `node/scaled_dot_product_flash_attention.h`, as facts.

use super::builder::Builder;
use super::variants::Variant;
use crate::op::{Op, TensorId};
use crate::{DType, Order, Role, Storage, Tensor};

/// K as the first matrix product reads it, or the pool that contains it.
pub(super) fn keys(g: &mut Builder, t: &Tensor) -> TensorId {
    match t.storage {
        Storage::Dense | Storage::Varlen { .. } => g.transposed(Role::K, t),
        Storage::Paged { .. } => pool(g, Role::K, t),
    }
}

/// V as the second matrix product reads it, or the pool that contains it.
pub(super) fn values(g: &mut Builder, t: &Tensor) -> TensorId {
    as_it_lies(g, Role::V, t)
}

/// Keys or values in their memory layout: rows of the head dim, or the pool that contains them.
pub(super) fn as_it_lies(g: &mut Builder, role: Role, t: &Tensor) -> TensorId {
    match t.storage {
        Storage::Dense | Storage::Varlen { .. } => g.operand(role, t),
        Storage::Paged { .. } => pool(g, role, t),
    }
}

/// The page table of keys or values, if they are paged.
pub(super) fn table(g: &mut Builder, role: Role, t: &Tensor) -> Option<TensorId> {
    let pages = t.pages_per_sequence()?;
    Some(g.operand(role, &Tensor::dense(Order::Bhsd, [t.dims[0], 1, pages, 1], DType::I32)))
}

fn pool(g: &mut Builder, role: Role, t: &Tensor) -> TensorId {
    let [pages, heads, rows, d] = t.extents();
    // Only if pages lie one after another: then additional pages do not reach into another head.
    let outermost = t.strides[0] >= (heads - 1) * t.strides[1] + (rows - 1) * t.strides[2] + (d - 1) * t.strides[3];
    let pages = if g.follows(Variant::RoundPool) && outermost { rounded(pages) } else { pages };
    g.operand_as(role, [pages, heads, rows, d], t.strides, t.dtype)
}

/// The next power of two, if it is a valid extent.
fn rounded(pages: i64) -> i64 {
    match u64::try_from(pages).ok().and_then(u64::checked_next_power_of_two) {
        Some(more) if more <= 1 << 30 => more.cast_signed().max(pages),
        _ => pages,
    }
}

/// Keys gathered from their pages; other keys unchanged.
pub(super) fn gathered_keys(g: &mut Builder, k: TensorId, t: &Tensor, len_kv: Option<TensorId>) -> TensorId {
    let [b, h, s, d] = t.dims;
    gathered(g, k, Role::PageTableK, t, len_kv, ([b, h, d, s], [h * s * d, s * d, 1, d]))
}

/// Values gathered from their pages; other values unchanged.
pub(super) fn gathered_values(g: &mut Builder, v: TensorId, t: &Tensor, len_kv: Option<TensorId>) -> TensorId {
    gathered(g, v, Role::PageTableV, t, len_kv, (t.dims, Order::Bhsd.strides(t.dims)))
}

fn gathered(
    g: &mut Builder,
    container: TensorId,
    table: Role,
    t: &Tensor,
    len_kv: Option<TensorId>,
    (dims, strides): ([i64; 4], [i64; 4]),
) -> TensorId {
    // Validation refuses a paged attention without lengths.
    let Some(lengths) = len_kv else { return container };
    let Some(table) = self::table(g, table, t) else { return container };
    let y = g.virtual_strided(dims, strides, t.dtype);
    g.push_op(Op::PagedLoad { container, table, lengths, y });
    y
}
