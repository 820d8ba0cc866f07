//! Paged keys and values in op graphs: the pool as an operand, and the operation that gathers a sequence's rows from it.
//!
//! The pool is declared as it lies, (pages, heads, rows of a page, head dim), with room for more pages than it has, as how many
//! there are is known only when an engine starts: a kernel reads the pages that tables name, and their number is but a bound
//! (an extent of the descriptor by which several queries read it, an unused extent for one). Its strides do not depend on it; what is gathered is a contiguous intermediate, of
//! which that of the keys is declared with its last two dims swapped, as the first matrix product reads it. Source:
//! cudnn-frontend 1.23, `node/scaled_dot_product_flash_attention.h`, as facts.

use super::builder::Builder;
use super::variants::Variant;
use crate::op::{Op, TensorId};
use crate::{DType, Order, Role, Storage, Tensor};

/// K as the first matrix product reads it, or the pool that it is gathered from.
pub(super) fn keys(g: &mut Builder, t: &Tensor) -> TensorId {
    match t.storage {
        Storage::Dense | Storage::Varlen { .. } => g.transposed(Role::K, t),
        Storage::Paged { .. } => pool(g, Role::K, t),
    }
}

/// V as the second matrix product reads it, or the pool that it is gathered from.
pub(super) fn values(g: &mut Builder, t: &Tensor) -> TensorId {
    as_it_lies(g, Role::V, t)
}

/// Keys or values as they lie: rows of the head dim, or the pool that has them.
pub(super) fn as_it_lies(g: &mut Builder, role: Role, t: &Tensor) -> TensorId {
    match t.storage {
        Storage::Dense | Storage::Varlen { .. } => g.operand(role, t),
        Storage::Paged { .. } => pool(g, role, t),
    }
}

/// The pages of each sequence, of keys or values that are paged.
pub(super) fn table(g: &mut Builder, role: Role, t: &Tensor) -> Option<TensorId> {
    let pages = t.pages_per_sequence()?;
    Some(g.operand(role, &Tensor::dense(Order::Bhsd, [t.dims[0], 1, pages, 1], DType::I32)))
}

fn pool(g: &mut Builder, role: Role, t: &Tensor) -> TensorId {
    let [pages, heads, rows, d] = t.extents();
    // Only where pages lie one after the other: more of them reach into no other head.
    let outermost = t.strides[0] >= (heads - 1) * t.strides[1] + (rows - 1) * t.strides[2] + (d - 1) * t.strides[3];
    let pages = if g.follows(Variant::RoundPool) && outermost { rounded(pages) } else { pages };
    g.operand_as(role, [pages, heads, rows, d], t.strides, t.dtype)
}

/// The next power of two, where there is one that an extent may be.
fn rounded(pages: i64) -> i64 {
    match u64::try_from(pages).ok().and_then(u64::checked_next_power_of_two) {
        Some(more) if more <= 1 << 30 => more.cast_signed().max(pages),
        _ => pages,
    }
}

/// Keys out of their pages; those that are not paged are there already.
pub(super) fn gathered_keys(g: &mut Builder, k: TensorId, t: &Tensor, len_kv: Option<TensorId>) -> TensorId {
    let [b, h, s, d] = t.dims;
    gathered(g, k, Role::PageTableK, t, len_kv, ([b, h, d, s], [h * s * d, s * d, 1, d]))
}

/// Values out of their pages; those that are not paged are there already.
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
    // A valid paged attention has lengths: validation refuses one without.
    let Some(lengths) = len_kv else { return container };
    let Some(table) = self::table(g, table, t) else { return container };
    let y = g.virtual_strided(dims, strides, t.dtype);
    g.push_op(Op::PagedLoad { container, table, lengths, y });
    y
}
