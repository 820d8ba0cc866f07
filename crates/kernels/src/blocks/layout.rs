//! Where the lists of an attention's mask lie, and how many there are.

use qkvault_graph::expr::{Axis, Node, Program};
use qkvault_graph::{Lengths, SCRATCH_ALIGNMENT, Valid};

/// Tiles of scores: so many queries by so many keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreTiles {
    /// Queries of a tile.
    pub queries: i64,
    /// Keys of a tile.
    pub keys: i64,
    /// Whether there is a list for each tile of keys, of tiles of queries; otherwise the reverse.
    pub by_keys: bool,
}

/// The lists of an attention's mask in some memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListsLayout {
    /// Sequences that have lists of their own: 1 if all have the same.
    pub batch: i64,
    /// Heads that have lists of their own: 1 if all have the same.
    pub heads: i64,
    /// Lists of a head: tiles of rows.
    pub rows: i64,
    /// The most tiles of a list: tiles of columns.
    pub columns: i64,
    /// Offsets: for tiles that the mask cuts, how many each list has (i32 by sequence, head and row) and their numbers
    /// in order (i32 by sequence, head, row and column), then both for tiles that are whole.
    pub at: [u64; 4],
    /// The end of the last of them.
    pub end: u64,
}

impl ListsLayout {
    /// The layout from an offset on. `None` for an attention without a predicate or a block mask, or whose sequences
    /// have lengths or origins of their own.
    pub(crate) fn for_attention(a: &Valid, tiles: ScoreTiles, from: u64) -> Option<ListsLayout> {
        let program = a.mask.mask_mod.as_ref().map(|e| e.program());
        let masked = program.is_some() || a.block_mask;
        if !masked || a.mask.lengths != Lengths::Full || a.origins.is_some() {
            return None;
        }
        let ((s_q, s_kv), [b, h, ..]) = (a.seq(), a.q.dims);
        let differs = |axis| a.block_mask || program.is_some_and(|program| reads(program, axis));
        let of = |axis, all| if differs(axis) { all } else { 1 };
        let (batch, heads) = (of(Axis::Batch, b), of(Axis::Head, h));
        let counts = |rows: i64, tile: i64| (rows - 1) / tile + 1;
        let (queries, keys) = (counts(s_q, tiles.queries), counts(s_kv, tiles.keys));
        let (rows, columns) = if tiles.by_keys { (keys, queries) } else { (queries, keys) };
        let lines = (batch * heads * rows).unsigned_abs() * 4;
        let mut end = from;
        let at = [lines, lines * columns.unsigned_abs(), lines, lines * columns.unsigned_abs()].map(|bytes| {
            let at = end.next_multiple_of(SCRATCH_ALIGNMENT);
            end = at + bytes;
            at
        });
        Some(ListsLayout { batch, heads, rows, columns, at, end })
    }

    /// Lists: one for each sequence, head and row.
    pub(super) fn lines(&self) -> i64 {
        self.batch * self.heads * self.rows
    }
}

/// Whether a predicate differs along an axis.
fn reads(program: &Program, axis: Axis) -> bool {
    program.contains(Node::Index(axis)) || program.tensors().iter().any(|spec| spec.dims[axis.dim()] > 1)
}
