//! Other divisions of the same work, which a measurement compares with the usual one.

use super::{FIXED_SHARED, MERGE_COLUMNS, Sizes, Tiling};
use crate::recipe::Limits;

impl Tiling {
    /// Other tilings for these sizes, each with a name: other tiles, two blocks for a multiprocessor, single warps in
    /// place of groups of four, for wide rows other columns of the merge, for few rows longer shares, and for many rows
    /// other numbers of blocks that share keys. Each is different from [`Tiling::for_sizes`] and from the others.
    #[must_use]
    pub fn others(sizes: Sizes) -> Vec<(String, Tiling)> {
        let usual = Tiling::for_sizes(sizes);
        let mut list: Vec<(String, Tiling)> = Vec::new();
        let mut add = |name: String, tiling: Tiling| {
            let tiling = tiling.with_stages(sizes);
            let known = tiling == usual || list.iter().any(|(_, known)| *known == tiling);
            if !known && tiling.fits(sizes) {
                list.push((name, tiling));
            }
        };
        for tile in [32, 64, 128, 256] {
            add(format!("tile {tile}"), Tiling { tile, ..usual });
            add(format!("tile {tile}, two blocks"), Tiling { tile, blocks_per_sm: 2, ..usual });
        }
        if sizes.rows <= 64 && usual.warps_columns == 1 && !sizes.invariant {
            let warps_rows = sizes.rows.div_ceil(16).next_power_of_two();
            let warps_keys = 4 / warps_rows.min(4);
            for tile in [64, 128] {
                let single = Tiling { tile, warps_rows, warps_keys, warpgroups: false, ..usual };
                add(format!("single warps, tile {tile}"), single);
            }
        }
        if usual.merge_columns != sizes.value_dim {
            for merge_columns in [MERGE_COLUMNS / 2, MERGE_COLUMNS * 2, sizes.value_dim] {
                add(format!("merge {merge_columns} columns"), Tiling { merge_columns, ..usual });
            }
        }
        for least_tiles in [2, 4] {
            if sizes.rows <= usual.rows() {
                add(format!("shares of {least_tiles} tiles"), Tiling { least_tiles, ..usual });
            }
        }
        for row_blocks in [1, 2, 4] {
            if usual.warpgroups && sizes.rows > usual.rows() {
                add(format!("row tiles {row_blocks} at a time"), Tiling { row_blocks, ..usual });
            }
        }
        list
    }

    /// Whether a block has its shared memory, and warps their registers and whole tiles of products.
    fn fits(self, sizes: Sizes) -> bool {
        let shared = (self.shared(sizes) + FIXED_SHARED) * self.blocks_per_sm;
        let most = match (self.warpgroups, self.warps_columns) {
            (false, _) => 64 * self.warps_keys,
            (true, 1) => 128,
            // Two groups give each other weights of 64 keys.
            (true, _) => 64,
        };
        let registers = match (self.moves_registers(), self.blocks_per_sm) {
            (true, 1) => 232,
            (true, _) => return false,
            (false, blocks) => 65_536 / (blocks * self.threads()),
        };
        (2..=4).contains(&self.stages)
            && shared <= Limits::SHARED
            && self.tile.is_multiple_of(16 * self.warps_keys)
            && self.tile <= most
            // Scores, weights and sums of a thread, and what else it needs; groups give registers to each other.
            && self.tile / self.warps_keys * 3 / 4 + self.columns(sizes) / 2 + 40 <= registers.min(255)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_different_and_there_are_some_for_what_serving_launches() {
        for (head_dim, value_dim, rows, least) in
            [(128, 128, 4, 2), (128, 128, 64, 2), (64, 64, 8, 2), (576, 512, 16, 2), (128, 128, 512, 3)]
        {
            let sizes = Sizes {
                head_dim,
                value_dim,
                rows,
                invariant: false,
                group: 4,
                diagonal: true,
                narrow: false,
                short: false,
            };
            let list = Tiling::others(sizes);
            assert!(list.len() >= least, "{sizes:?}: {list:?}");
            assert!(
                list.iter().all(|(_, tiling)| *tiling != Tiling::for_sizes(sizes) && tiling.fits(sizes)),
                "{list:?}"
            );
            let mut names: Vec<&String> = list.iter().map(|(name, _)| name).collect();
            names.dedup();
            assert_eq!(names.len(), list.len());
        }
    }
}
