//! Sizes of tiles for a head dim on Hopper: those that FlashAttention-4 takes itself, measured by its authors.

use crate::request::BackwardTiling;

/// Warp groups that multiply in the backward kernels; one more brings tiles.
pub(crate) const BACKWARD_GROUPS: i64 = 2;

/// Threads of a warp group.
pub(crate) const GROUP_THREADS: i64 = 128;

/// Rows of queries that tiles of the forward have.
pub(crate) const TILE_ROWS: [i64; 2] = [128, 192];

/// Tiles of the forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForwardTiling {
    pub(crate) tile_m: i64,
    pub(crate) tile_n: i64,
    pub(crate) p_in_registers: bool,
}

impl ForwardTiling {
    /// Threads of a block: a warp group for 64 rows, and one that brings tiles.
    pub(crate) fn threads(self) -> i64 {
        (self.tile_m / 64 + 1) * GROUP_THREADS
    }

    /// The tiles for head dims of queries and values. `lists`: a predicate has lists of tiles.
    pub(crate) fn for_dims(head_dim: i64, head_dim_v: i64, causal: bool, local: bool, lists: bool) -> ForwardTiling {
        let [usual, large] = TILE_ROWS;
        let rows = if head_dim <= 96 && !lists { large } else { usual };
        let (tile_n, p_in_registers) = match head_dim {
            ..=64 => (128, true),
            65..=96 => (if causal || local || lists { 128 } else { 144 }, false),
            97..=128 => (128, true),
            129..=192 if local => (96, true),
            129..=192 => (if head_dim_v <= 128 { 128 } else { 112 }, true),
            _ => (if local { 64 } else { 80 }, true),
        };
        ForwardTiling { tile_m: rows, tile_n, p_in_registers }
    }
}

impl BackwardTiling {
    /// The tiles for head dims of queries and values.
    pub(crate) fn for_dims(head_dim: i64, head_dim_v: i64, causal: bool, local: bool, lists: bool) -> BackwardTiling {
        let base = BackwardTiling {
            tile_m: 64,
            tile_n: 128,
            stages_q: 2,
            stages_do: 2,
            stages_pds: 2,
            swap_sdp: true,
            swap_dkv: false,
            swap_dq: false,
            atoms_sdp: 1,
            atoms_dkv: 2,
            atoms_dq: 1,
            dq_one_group: false,
        };
        let wide = BackwardTiling { swap_sdp: false, stages_pds: 1, ..base };
        match head_dim {
            ..=64 => BackwardTiling { tile_m: 128, atoms_dq: 2, ..base },
            65..=96 => BackwardTiling { dq_one_group: true, ..base },
            97..=128 if causal || local || lists => base,
            97..=128 => BackwardTiling { tile_m: 80, swap_dq: true, ..base },
            129..=192 => {
                let stages_do = if head_dim_v <= 128 { 2 } else { 1 };
                BackwardTiling { tile_n: 96, swap_dkv: true, stages_do, ..wide }
            }
            _ if lists => BackwardTiling { tile_n: 64, stages_q: 1, stages_do: 1, atoms_dkv: 1, ..wide },
            _ => BackwardTiling { tile_n: 48, stages_do: 1, swap_dkv: true, atoms_dkv: 1, ..wide },
        }
    }

    /// Head dims are rounded up to multiples of this where sums in f32 are kept.
    pub(crate) fn round(self) -> i64 {
        if self.swap_dkv { 64 } else { 32 }
    }

    /// Threads of a block of the backward kernel.
    pub(crate) fn threads(self) -> i64 {
        (BACKWARD_GROUPS + 1) * GROUP_THREADS
    }
}
