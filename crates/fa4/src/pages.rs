//! Keys and values in pages. FlashAttention-4's forward for Hopper brings pages in one of two ways: by a tensor map,
//! if a page is as large as a tile, and row by row otherwise. Only the second is used: it reads pages of any size, and
//! brings zeros from the end of a sequence on, where the first brings the rest of the page and multiplies it by 0,
//! which leaves what is no number.
//!
//! The kernel reads one table. A kernel of our own ([`qkvault_kernels::Sequences`]) makes it of the two tables of the
//! description at each launch: the page of keys and the page of values beside each other, which `packed.py` tells
//! apart.

use crate::codes;
use qkvault_graph::{Reason, Role, Storage, Tensor, Valid};
use qkvault_kernels::recipe::LaunchValue;

use crate::args::Arg;
use crate::packed::{Lists, is_packed};
use crate::takes::ROWS;
use crate::tiles::{ForwardTiling, GROUP_THREADS};

/// What the compiler is told instead of the rows of a page: a number that no tile has.
pub(crate) const ANY: i64 = 1;

/// Elements of 16 bits that a thread copies at a time.
const COPY: i64 = 8;

/// Elements of a row that threads copy beside each other, at most.
const TOGETHER: i64 = 64;

/// Why keys and values in pages are not taken.
pub(crate) fn reasons(a: &Valid) -> Vec<Reason> {
    let (Storage::Paged { pages, page_size }, Storage::Paged { pages: of_values, page_size: rows_of_values }) =
        (a.k.storage, a.v.storage)
    else {
        return Vec::new();
    };
    let mut list = Vec::new();
    let mut when = |is: bool, reason: Reason| {
        if is {
            list.push(reason);
        }
    };
    when(!is_packed(a), codes::FA4_STORAGE.reason("pages without lengths").at("k"));
    let (head_dim, head_dim_v) = a.head_dims();
    for (field, dim) in [("q", head_dim), ("v", head_dim_v)] {
        let reason = codes::FA4_HEAD_DIM.reason(format!("{dim} in pages")).with_needed("a multiple of 16").at(field);
        when(dim % 16 != 0, reason);
    }
    let sizes = format!("pages of {page_size} and {rows_of_values} rows");
    when(page_size != rows_of_values, codes::FA4_STORAGE.reason(sizes).at("v"));
    let most = pages.max(of_values);
    when(most > ROWS || page_size > ROWS, codes::FA4_SEQUENCE.reason(format!("{most} pages of {page_size} rows")));
    list
}

/// Tiles that copies fill to the end: threads beside each other copy a part of a row, and all of them some rows.
pub(crate) fn whole_copies(tiling: ForwardTiling, (head_dim, head_dim_v): (i64, i64)) -> ForwardTiling {
    let rows = GROUP_THREADS / (common_divisor(common_divisor(head_dim, head_dim_v), TOGETHER) / COPY).max(1);
    ForwardTiling { tile_n: tiling.tile_n / rows * rows, ..tiling }
}

fn common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// A pool as the kernel sees it: rows of a page, head dim, heads, pages.
pub(crate) fn pool(role: Role, tensor: &Tensor) -> Arg {
    let ([pages, heads, rows, columns], [page, head, row, _]) = (tensor.extents(), tensor.strides);
    Arg::Tensor {
        at: LaunchValue::Address(role),
        extents: vec![rows, columns, heads, pages],
        strides: vec![row, head, page],
    }
}

/// The lists of sequences of a kernel that reads pages, and the table.
pub(crate) fn lists(a: &Valid, of: &Lists) -> Vec<Arg> {
    let width = a.k.pages_per_sequence().unwrap_or(0);
    let at = LaunchValue::Scratch(of.tables.unwrap_or(0));
    let table = Arg::Tensor { at, extents: vec![a.batch(), 2 * width], strides: vec![2 * width] };
    vec![of.rows_q.clone(), of.used_q.clone(), of.used_k.clone(), table]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_whole_numbers_of_copies() {
        for (head_dim, head_dim_v) in (1..=16).map(|n| (16 * n, 16 * n)).chain([(192, 128)]) {
            for (causal, local) in [(false, false), (true, false), (false, true)] {
                let usual = ForwardTiling::for_dims(head_dim, head_dim_v, causal, local, true);
                let tiling = whole_copies(usual, (head_dim, head_dim_v));
                let threads = common_divisor(common_divisor(head_dim, head_dim_v), 64) / 8;
                let what = format!("{head_dim}, {head_dim_v}: {tiling:?}");
                assert!(tiling.tile_n > 0 && tiling.tile_n % (128 / threads) == 0, "{what}");
                // Half of the usual rows at least, and all where threads copy 128 bytes together.
                assert!(tiling.tile_n * 2 > usual.tile_n, "{what}");
                assert!(threads < 8 || tiling == usual, "{what}");
            }
        }
    }
}
