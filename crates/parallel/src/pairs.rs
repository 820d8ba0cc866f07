//! The launches of a ring: pairs of chunks, queries of one with keys of another, and blocks of pairs in one.

use std::ops::Range;

use qkvault_graph::expr::{Axis, Place};
use qkvault_graph::{Attention, Lengths};

use crate::tile::{Tile, TileBlock, packed_tile, tile};
use crate::work::ScheduleWork;

/// One launch of a ring: neighbours in the memory of ranks, which need not be neighbours in the sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RingLaunch {
    /// The places of the chunks of queries on the rank that launches.
    pub(crate) queries: Range<usize>,
    /// The rank that the keys are of.
    pub(crate) from: u32,
    /// The places of the chunks of keys there.
    pub(crate) keys: Range<usize>,
    /// The queries and keys. Of several chunks only the first one's place in the sequence is told, and the number of
    /// rows: nothing in such a launch depends on positions, and every query sees every key.
    pub(crate) tile: Tile,
}

impl RingLaunch {
    /// Whether each of its queries has here the keys of the chunk of its own number.
    pub(crate) fn has_own_keys(&self, rank: u32) -> bool {
        self.from == rank && self.keys.start <= self.queries.start && self.queries.end <= self.keys.end
    }
}

/// The block of a chunk of queries and a chunk of keys.
fn block(work: &ScheduleWork<'_>, queries: i64, keys: i64) -> TileBlock {
    let (t_q, t_k) = work.tokens();
    let chunks = work.sharding.chunks();
    let (q, k) = (t_q / chunks, t_k / chunks);
    TileBlock { rows: (queries * q, (queries + 1) * q), keys: (keys * k, (keys + 1) * k) }
}

/// The tile of a chunk of queries and a chunk of keys.
pub(crate) fn pair(work: &ScheduleWork<'_>, queries: i64, keys: i64) -> Option<Tile> {
    let block = block(work, queries, keys);
    if work.is_packed() { packed_tile(work.whole(), block) } else { tile(work.whole(), block) }
}

/// The launches of a rank in the order of the ring.
///
/// Under a causal mask in zig-zag order, all queries of a rank see the first chunk of an earlier rank and nothing of
/// its second one, and the second chunk of queries sees both of a later rank: one launch each instead of two. Without a
/// mask, one launch takes all four pairs.
pub(crate) fn launches(work: &ScheduleWork<'_>, rank: u32) -> Vec<RingLaunch> {
    let moves = reads_positions(work.whole());
    let ranks = work.sharding.ranks;
    (0..ranks).flat_map(|step| of_step(work, rank, (rank + ranks - step) % ranks, !moves)).collect()
}

/// The launches of a rank's queries with the keys of one rank: the largest blocks of pairs first, then those of all
/// queries, those of all keys, and single pairs.
fn of_step(work: &ScheduleWork<'_>, rank: u32, from: u32, join: bool) -> Vec<RingLaunch> {
    let (queries, keys) = (work.sharding.chunks_of(rank), work.sharding.chunks_of(from));
    let (q, k) = (0..queries.len(), 0..keys.len());
    let mut blocks = vec![(q.clone(), k.clone())];
    blocks.extend(k.clone().map(|place| (q.clone(), place..place + 1)));
    blocks.extend(q.clone().map(|place| (place..place + 1, k.clone())));
    blocks.extend(q.flat_map(|of_q| k.clone().map(move |of_k| (of_q..of_q + 1, of_k..of_k + 1))));
    let mut list: Vec<RingLaunch> = Vec::new();
    for (q, k) in blocks {
        let first = (queries[q.start], keys[k.start]);
        let mut pairs = q.clone().flat_map(|of_q| k.clone().map(move |of_k| (of_q, of_k)));
        let taken = |of_q: usize, of_k: usize| list.iter().any(|l| l.queries.contains(&of_q) && l.keys.contains(&of_k));
        if pairs.clone().any(|(of_q, of_k)| taken(of_q, of_k)) {
            continue;
        }
        let tile = if q.len() * k.len() == 1 {
            pair(work, first.0, first.1)
        } else if join && pairs.all(|(of_q, of_k)| is_full(work, queries[of_q], keys[of_k])) {
            let TileBlock { rows, keys } = block(work, first.0, first.1);
            let several = |run: (i64, i64), count: usize| (run.0, run.0 + (run.1 - run.0) * count as i64);
            Some(Tile { block: TileBlock { rows: several(rows, q.len()), keys: several(keys, k.len()) }, band: None })
        } else {
            None
        };
        let Some(tile) = tile else { continue };
        let launch = RingLaunch { queries: q.clone(), from, keys: k, tile };
        // A sink joins in the launch of each query's own keys, so all queries have them there, or none.
        let some_have = launch.from == rank && launch.queries.clone().any(|place| launch.keys.contains(&place));
        if q.len() == 1 || !work.whole().sink || launch.has_own_keys(rank) || !some_have {
            list.push(launch);
        }
    }
    list.sort_by_key(|launch| (launch.queries.start, launch.keys.start));
    list
}

/// Whether every query of a chunk sees every key of another.
fn is_full(work: &ScheduleWork<'_>, queries: i64, keys: i64) -> bool {
    let whole = block(work, queries, keys);
    pair(work, queries, keys).is_some_and(|Tile { block, band }| {
        let (q, k) = (block.rows.1 - block.rows.0, block.keys.1 - block.keys.0);
        // The last query and the first key, and the first query and the last key, are the furthest from a diagonal.
        block == whole && band.is_none_or(|band| band.keeps(q - 1, 0, q, k) && band.keeps(0, k - 1, q, k))
    })
}

/// Whether a launch must know where its queries and keys are in their sequences: for lengths, packed documents, dropout
/// and expressions over positions. Tensors of the scores count as such.
fn reads_positions(a: &Attention) -> bool {
    let packed = a.q.storage != qkvault_graph::Storage::Dense;
    let mut found = packed || a.mask.lengths != Lengths::Full || a.dropout.is_some();
    let derivative = a.score_mod_bprop.as_ref().map(|own| &own.derivative);
    for e in [a.mask.mask_mod.as_ref(), a.score_mod.as_ref(), derivative].into_iter().flatten() {
        let seen = e.with_places(|place| {
            found |= !matches!(place, Place::Index(Axis::Batch | Axis::Head));
            None
        });
        found |= seen.is_err();
    }
    found
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
