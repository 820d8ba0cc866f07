//! How a block divides its work: tiles, warps, stages of copies.

mod others;

use crate::recipe::Limits;

/// Streaming multiprocessors that a grid is made for: an H100 SXM, an H200 and a GH200 have as many. A GPU with fewer
/// runs the rest of the grid after it.
pub const MULTIPROCESSORS: u32 = 132;

/// Shared memory of a block that is not dynamic: barriers, and what aligns the copies to 1024 bytes.
const FIXED_SHARED: u32 = 1024;

/// Tiles of 8 bits that are brought ahead of those of 16.
pub(crate) const RAW_SLOTS: u32 = 2;

/// Columns of a wide row that a warp of the merge puts together.
///
/// So many does a warp load at a time, 16 bytes a lane. One query of 16 heads over one long latent cache is 16 rows of
/// up to 128 pieces of 512 columns, 4 MB: 64 times 128 columns are the work of 64 blocks, whose warps share the pieces.
const MERGE_COLUMNS: u32 = 128;

/// The division of a kernel's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Keys of a tile.
    pub tile: u32,
    /// Warps along rows, 16 rows each.
    pub warps_rows: u32,
    /// Warps along the keys of a tile.
    pub warps_keys: u32,
    /// Groups of warps along the columns of values; two compute the scores of tiles in turn.
    pub warps_columns: u32,
    /// Tiles that are brought ahead, with the one in use.
    pub stages: u32,
    /// Whether four warps multiply together (`wgmma`, compute capability 9.0 alone).
    pub warpgroups: bool,
    /// Blocks that a multiprocessor runs at a time.
    pub blocks_per_sm: u32,
    /// Columns of values that a warp of the merge puts together; all of them, or a multiple of 4.
    pub merge_columns: u32,
    /// Blocks that compute neighbouring tiles of rows over the same keys at a time, so that these come from memory
    /// once: 1, 2 or 4, of which the blocks of a grid are a multiple.
    pub row_blocks: u32,
    /// Tiles of keys that a block's share has at least, where there are any: fewer and longer pieces in short launches.
    pub least_tiles: u32,
}

/// The sizes of an attention that decide its tiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Head dim of queries and keys.
    pub head_dim: u32,
    /// Head dim of values.
    pub value_dim: u32,
    /// Rows of a sequence and a head of keys: queries times the heads that share the keys.
    pub rows: u32,
    /// Whether rows have the same bits whatever their number is.
    pub invariant: bool,
    /// Heads of queries that share a head of keys: so many rows are those of one query.
    pub group: u32,
    /// Whether a band moves what a query sees by a key from one query to the next.
    pub diagonal: bool,
    /// Whether keys and values are in 8 bits.
    pub narrow: bool,
    /// Whether rows of 8 bits have 64 bytes at most, of which a copy brings an even number: boxes of 128 would be half
    /// empty.
    pub short: bool,
}

impl Sizes {
    /// Whether a row is so wide that a tile of it has few keys.
    const fn very_wide(self) -> bool {
        self.head_dim > 256 || self.value_dim > 256
    }

    const fn wide(self) -> bool {
        self.head_dim > 128 || self.value_dim > 128
    }

    /// Keys of a tile.
    pub(crate) const fn tile(self) -> u32 {
        match (self.very_wide(), self.wide()) {
            // Two groups of warps share what is computed of a tile.
            _ if self.value_dim > 256 => 64,
            (true, _) => 32,
            (false, true) => 64,
            (false, false) => 128,
        }
    }
}

impl Tiling {
    /// The tiling that was fastest on an H200 for sizes like these.
    #[must_use]
    pub fn for_sizes(sizes: Sizes) -> Tiling {
        let of = |warps_rows, warps_keys, warpgroups| Tiling {
            tile: sizes.tile(),
            warps_rows,
            warps_keys,
            // Sums of more columns do not fit the registers of a thread.
            warps_columns: sizes.value_dim.div_ceil(256),
            stages: 0,
            warpgroups,
            blocks_per_sm: 1,
            merge_columns: match (sizes.value_dim > 256, sizes.rows) {
                (true, ..=16) => MERGE_COLUMNS,
                (true, _) => 2 * MERGE_COLUMNS,
                (false, _) => sizes.value_dim,
            },
            row_blocks: 1,
            least_tiles: 1,
        };
        let tiling = match sizes.rows {
            _ if sizes.very_wide() => of(4, 1, true),
            // Other instructions add products in another order.
            ..=16 if !(sizes.invariant || sizes.narrow && sizes.wide()) => of(1, 4, false),
            ..=64 => of(4, 1, true),
            _ if sizes.wide() => of(4, 1, true),
            _ => of(8, 1, true),
        };
        Tiling { row_blocks: tiling.row_blocks(sizes), ..tiling }.with_stages(sizes)
    }

    /// The blocks that compute tiles of rows over the same keys at a time.
    ///
    /// 128 queries of 32 heads over 8 heads of keys are 4 tiles of 128 rows. One after the other they read the keys of
    /// 64 sequences of 8192 four times from memory, at 73 % of the bandwidth of an H200; side by side three of four
    /// reads find them in the L2 cache. Each computes all keys that one of them sees, so a band must not move by more
    /// than a tile of keys from the first row to the last.
    const fn row_blocks(self, sizes: Sizes) -> u32 {
        let tiles = sizes.rows.div_ceil(self.rows());
        let mut blocks = match tiles {
            _ if !self.warpgroups => 1,
            0..=1 => 1,
            2..=3 => 2,
            _ => 4,
        };
        while blocks > 1 && sizes.diagonal && blocks * self.rows() > self.tile.saturating_mul(sizes.group) {
            blocks /= 2;
        }
        blocks
    }

    /// The same tiling with as many stages as shared memory holds: four at most, of short rows six, so that as much of
    /// memory is on its way.
    #[must_use]
    pub fn with_stages(self, sizes: Sizes) -> Tiling {
        let room = (Limits::SHARED / self.blocks_per_sm).saturating_sub(FIXED_SHARED);
        let stages = room.saturating_sub(self.shared_beside(sizes)) / self.stage_bytes(sizes);
        Tiling { stages: stages.min(if self.has_short_rows(sizes) { 6 } else { 4 }), ..self }
    }

    /// Rows of a tile of rows.
    #[must_use]
    pub const fn rows(self) -> u32 {
        self.warps_rows * 16
    }

    /// Rows of a piece that an item's merge reads.
    #[must_use]
    pub fn piece_rows(self, sizes: Sizes) -> u32 {
        self.rows().min(sizes.rows)
    }

    /// Whether warps keep their queries in registers, and not in shared memory.
    #[must_use]
    pub const fn queries_in_registers(self, sizes: Sizes) -> bool {
        !self.warpgroups && sizes.head_dim <= 128
    }

    /// Bytes of shared memory for queries.
    #[must_use]
    pub const fn query_bytes(self, sizes: Sizes) -> u32 {
        if self.queries_in_registers(sizes) { 0 } else { sizes.head_dim.div_ceil(64) * self.rows() * 128 }
    }

    /// Bytes of dynamic shared memory of a block.
    #[must_use]
    pub fn shared(self, sizes: Sizes) -> u32 {
        self.stages * self.stage_bytes(sizes) + self.shared_beside(sizes)
    }

    /// Whether the warps that bring tiles give registers to those that compute: with eight of these, the compiler has
    /// 168 registers a thread, and the sums of 128 columns need more.
    #[must_use]
    pub const fn moves_registers(self) -> bool {
        self.warpgroups && self.warps() == 8
    }

    /// Warps of a block that compute.
    pub(crate) const fn warps(self) -> u32 {
        self.warps_rows * self.warps_keys * self.warps_columns
    }

    /// Columns of values that a warp sums.
    #[must_use]
    pub const fn columns(self, sizes: Sizes) -> u32 {
        if self.warps_columns == 1 {
            sizes.value_dim
        } else {
            (sizes.value_dim / self.warps_columns).next_multiple_of(64)
        }
    }

    /// Threads of a block whose tiles come in boxes.
    #[must_use]
    pub const fn threads(self) -> u32 {
        32 * self.warps() + if self.moves_registers() { 128 } else { 32 }
    }

    /// Blocks of the grid.
    #[must_use]
    pub const fn blocks(self) -> u32 {
        MULTIPROCESSORS * self.blocks_per_sm
    }

    /// Whether warps read tiles of 8 bits as they are; for groups of warps they are brought in 16.
    pub(crate) const fn reads_narrow(self, sizes: Sizes) -> bool {
        sizes.narrow && !self.warpgroups
    }

    /// Whether boxes have rows of 64 bytes.
    pub(crate) const fn has_short_rows(self, sizes: Sizes) -> bool {
        sizes.short && self.reads_narrow(sizes)
    }

    /// Bytes of a row of a box, and its columns.
    pub(crate) const fn box_row(self, sizes: Sizes) -> (u32, u32) {
        match (self.has_short_rows(sizes), self.reads_narrow(sizes)) {
            (true, _) => (64, 64),
            (false, true) => (128, 128),
            (false, false) => (128, 64),
        }
    }

    /// Bytes of keys and values of a tile, which two groups bring to places of the same size.
    fn stage_bytes(self, sizes: Sizes) -> u32 {
        let (bytes, columns) = self.box_row(sizes);
        let of_keys = sizes.head_dim.div_ceil(columns);
        let of_values = self.columns(sizes).div_ceil(columns) * self.warps_columns;
        let boxes = if self.warps_columns > 1 { of_keys.max(of_values) } else { of_keys + of_values };
        boxes * self.tile * bytes
    }

    fn shared_beside(self, sizes: Sizes) -> u32 {
        let sums = (self.warps_keys - 1) * self.piece_rows(sizes) * (sizes.value_dim + 2) * 4;
        // Weights of a tile, and four numbers of each row.
        let between = if self.warps_columns > 1 { self.rows() * (128 + 16) } else { 0 };
        self.query_bytes(sizes) + sums + between + self.span_bytes(sizes) + self.raw_bytes(sizes)
    }

    /// Bytes of shared memory for tiles of 8 bits that are turned into 16.
    fn raw_bytes(self, sizes: Sizes) -> u32 {
        let boxes = sizes.head_dim.div_ceil(128) + sizes.value_dim.div_ceil(128);
        if sizes.narrow && self.warpgroups { RAW_SLOTS * boxes * self.tile * 128 } else { 0 }
    }

    /// Where they begin.
    #[must_use]
    pub fn raw_at(self, sizes: Sizes) -> u32 {
        // Other kernels have none, and their code is that of any number of keys.
        match self.raw_bytes(sizes) {
            0 => 0,
            bytes => self.shared(sizes) - bytes,
        }
    }

    /// Bytes of shared memory for the sums of the spans before, where registers have no room for them.
    #[must_use]
    pub const fn span_bytes(self, sizes: Sizes) -> u32 {
        if sizes.invariant && sizes.value_dim > 128 { self.rows() * self.columns(sizes) * 4 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::takes::{HEAD_DIM, INVARIANT_DIM, VALUE_DIM};

    #[test]
    fn every_size_fits_a_multiprocessor_with_two_stages_at_least() {
        for head_dim in (16..=HEAD_DIM as u32).step_by(16) {
            for value_dim in (16..=VALUE_DIM as u32).step_by(16) {
                for (rows, invariant) in
                    [1, 4, 16, 17, 64, 65, 512, 4096].into_iter().flat_map(|n| [(n, false), (n, true)])
                {
                    if invariant && head_dim.max(value_dim) > INVARIANT_DIM as u32 {
                        continue;
                    }
                    let sizes = Sizes {
                        head_dim,
                        value_dim,
                        rows,
                        invariant,
                        group: 4,
                        diagonal: true,
                        narrow: false,
                        short: false,
                    };
                    let tiling = Tiling::for_sizes(sizes);
                    assert!(tiling.blocks().is_multiple_of(tiling.row_blocks), "{sizes:?} {tiling:?}");
                    assert!((2..=4).contains(&tiling.stages), "{sizes:?} {tiling:?}");
                    let shared = (tiling.shared(sizes) + FIXED_SHARED) * tiling.blocks_per_sm;
                    assert!(shared <= Limits::SHARED, "{sizes:?} {tiling:?} {shared}");
                }
            }
        }
    }

    #[test]
    fn blocks_share_keys_where_several_tiles_of_rows_see_about_the_same() {
        // Head dim, queries, heads that share keys, a band, and the blocks side by side.
        for (head_dim, queries, group, diagonal, blocks) in [
            (128, 1, 4, true, 1),
            (128, 32, 4, true, 1),
            (128, 33, 4, true, 2),
            (128, 96, 4, true, 2),
            (128, 97, 4, true, 4),
            (128, 8192, 4, true, 4),
            // 512 rows are the queries of 4, 2 and 1 tiles of keys.
            (128, 8192, 1, true, 1),
            (128, 8192, 2, true, 2),
            (128, 8192, 1, false, 4),
            (64, 8192, 3, true, 2),
            // Tiles of 64 rows and 64 keys.
            (256, 16, 4, true, 1),
            (256, 17, 4, true, 2),
            (256, 64, 4, true, 4),
            // A latent cache.
            (512, 1, 16, true, 1),
            (512, 1, 128, true, 2),
            (512, 8192, 16, true, 4),
            (512, 8192, 2, true, 2),
        ] {
            for invariant in [false, true] {
                let rows = queries * group;
                let sizes = Sizes {
                    head_dim,
                    value_dim: head_dim,
                    rows,
                    invariant,
                    group,
                    diagonal,
                    narrow: false,
                    short: false,
                };
                assert_eq!(Tiling::for_sizes(sizes).row_blocks, blocks, "{sizes:?}");
            }
        }
    }
}
