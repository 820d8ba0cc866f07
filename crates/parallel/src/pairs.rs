//! The pairs of chunks that a ring computes: queries of one with keys of another.

use crate::tile::{Tile, TileBlock, packed_tile, tile};
use crate::work::ScheduleWork;

/// The tile of a chunk of queries and a chunk of keys.
pub(crate) fn pair(work: &ScheduleWork<'_>, queries: i64, keys: i64) -> Option<Tile> {
    let (t_q, t_k) = work.tokens();
    let chunks = work.sharding.chunks();
    let (q, k) = (t_q / chunks, t_k / chunks);
    let block = TileBlock { rows: (queries * q, (queries + 1) * q), keys: (keys * k, (keys + 1) * k) };
    if work.is_packed() { packed_tile(work.whole(), block) } else { tile(work.whole(), block) }
}

/// The launches of a rank in the order of the ring: its place of queries, the rank that the keys are of, the place of
/// the keys there, and the tile.
pub(crate) fn launches(work: &ScheduleWork<'_>, rank: u32) -> Vec<(usize, u32, usize, Tile)> {
    let mut list = Vec::new();
    for step in 0..work.sharding.ranks {
        let from = (rank + work.sharding.ranks - step) % work.sharding.ranks;
        for (q_place, queries) in work.sharding.chunks_of(rank).into_iter().enumerate() {
            for (k_place, keys) in work.sharding.chunks_of(from).into_iter().enumerate() {
                list.extend(pair(work, queries, keys).map(|tile| (q_place, from, k_place, tile)));
            }
        }
    }
    list
}

/// The chunks of one rank that this taker, or a rank behind it, needs: their places.
pub(crate) fn still_needed(work: &ScheduleWork<'_>, of: u32, taker: u32) -> Vec<(i64, i64)> {
    let ranks = work.sharding.ranks;
    let behind = std::iter::successors(Some(taker), |at| Some((at + 1) % ranks)).take_while(|at| *at != of);
    let behind: Vec<u32> = behind.take(ranks as usize).collect();
    let needed = |chunk: i64| {
        behind.iter().any(|rank| work.sharding.chunks_of(*rank).into_iter().any(|q| pair(work, q, chunk).is_some()))
    };
    (0..).zip(work.sharding.chunks_of(of)).filter(|(_, chunk)| needed(*chunk)).collect()
}
