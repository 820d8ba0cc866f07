//! The numbers by which blocks find their tiles, and the grid: what FlashAttention-4's schedulers compute on the host.

use crate::args::Arg;

/// Bytes of keys and values that blocks which run together should share: a constant of the kernels' authors.
pub(crate) const SHARED_BYTES: i64 = 50 << 20;

/// What a scheduler needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    /// Tiles of a sequence and head.
    pub(crate) blocks: i64,
    /// Heads.
    pub(crate) heads: i64,
    /// Sequences.
    pub(crate) batch: i64,
}

/// The arguments of a scheduler, and the grid of the launch.
pub(crate) struct Scheduled {
    pub(crate) args: Vec<Arg>,
    pub(crate) grid: [i64; 3],
}

impl Tiles {
    fn total(self) -> i64 {
        self.blocks.saturating_mul(self.heads).saturating_mul(self.batch)
    }

    /// A block for a tile, in the order of the grid.
    pub(crate) fn single(self) -> Scheduled {
        let Tiles { blocks, heads, batch } = self;
        let args = vec![Arg::Int(blocks), Arg::Int(heads), Arg::Int(batch), Arg::Divisor(1)];
        Scheduled { args, grid: [blocks, heads, batch] }
    }

    /// A block for a tile, those with the most work first, and heads whose keys and values fit into the cache together.
    /// `head_bytes` are those of one head.
    pub(crate) fn longest_first(self, head_bytes: i64) -> Scheduled {
        let Tiles { blocks, heads, batch } = self;
        let section = section(head_bytes);
        let mut args = vec![Arg::Int(self.total()), Arg::Int(blocks), Arg::Int(heads), Arg::Int(batch)];
        args.extend(self.sections(section));
        args.push(Arg::Divisor(1));
        Scheduled { args, grid: [self.total(), 1, 1] }
    }

    /// The same for a backward whose sums have one order. `head_bytes` are those of a head of queries, dO and dQ.
    pub(crate) fn ordered(self, head_bytes: i64) -> Scheduled {
        let mut args = vec![Arg::Int(self.total()), Arg::Int(self.blocks)];
        args.extend(self.sections(section(head_bytes)));
        Scheduled { args, grid: [self.total(), 1, 1] }
    }

    fn sections(self, section: i64) -> [Arg; 6] {
        let all = self.heads.saturating_mul(self.batch);
        [
            Arg::Int(section),
            Arg::Divisor(self.heads),
            Arg::Divisor(section),
            Arg::Divisor(section.saturating_mul(self.blocks)),
            Arg::Divisor((all % section).max(1)),
            Arg::Int(all / section),
        ]
    }
}

/// How many heads fit into the cache, rounded down to a power of two; at least one.
fn section(head_bytes: i64) -> i64 {
    match SHARED_BYTES / head_bytes.max(1) {
        0 => 1,
        heads => 1 << (63 - heads.leading_zeros()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_hold_a_power_of_two_of_heads() {
        let found = [1, 50 << 20, (50 << 20) + 1, 25 << 20, 17 << 20, 12 << 20].map(section);
        assert_eq!(found, [1 << 25, 1, 1, 2, 2, 4]);
    }
}
