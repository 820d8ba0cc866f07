//! The scheme ring: keys and values go from rank to rank; each rank computes its queries over each shard that comes by,
//! one launch for each block of pairs of chunks (`pairs.rs`), and merges the results.

use qkvault_graph::{Refusal, Role};

use crate::gather::own_buffers;
use crate::maker::{Maker, by_tokens, flat, in_order, like};
use crate::pairs::{RingLaunch, launches, still_needed};
use crate::part::AttentionPart;
use crate::parts::{Arriving, MadeParts, everywhere};
use crate::step::{BufferBox, RankStep, Stream, Transfer};
use crate::tile::Tile;
use crate::work::{Local, ScheduleWork};
use crate::{Counted, limits};

pub(crate) fn ranks(work: &mut ScheduleWork<'_>) -> Result<Vec<crate::RankSchedule>, Refusal> {
    (0..work.sharding.ranks)
        .map(|rank| {
            let mut ring = Ring::new(work, rank);
            if work.is_backward() {
                ring.backward(work)?
            } else {
                ring.forward(work)?
            }
            Ok(ring.m.made)
        })
        .collect()
}

/// One rank of a ring.
struct Ring {
    m: Maker,
    /// K and V, by slot.
    slots: Vec<[BufferBox; 2]>,
}

impl Ring {
    fn new(work: &ScheduleWork<'_>, rank: u32) -> Ring {
        let mut m = own_buffers(work, rank);
        let slots = (0..work.sharding.ranks.min(2))
            .map(|slot| {
                [Role::K, Role::V].map(|role| {
                    let t = work.tensor(role).unwrap_or(work.whole().k);
                    let dims = [t.dims[0], t.dims[1], work.sharding.share(t.dims[2]), t.dims[3]];
                    m.scratch(format!("{role} of the ring {slot}"), by_tokens(dims, t.dtype))
                })
            })
            .collect();
        Ring { m, slots }
    }

    /// Goes around; `each` queues one launch, with the pieces of its keys and values.
    fn around<F>(&mut self, work: &mut ScheduleWork<'_>, mut each: F) -> Result<(), Refusal>
    where
        F: FnMut(&mut Maker, &mut ScheduleWork<'_>, usize, &RingLaunch, [BufferBox; 2]) -> Result<(), Refusal>,
    {
        let (ranks, rank) = (work.sharding.ranks, self.m.rank);
        for (role, to) in [Role::K, Role::V].into_iter().zip(self.slots[0]) {
            if let Some(from) = self.m.piece(role) {
                self.m.copy(Stream::Exchange, from, to);
            }
        }
        let mut arrived = self.m.record(Stream::Exchange);
        let list = launches(work, rank);
        let size = work.tokens().1 / work.sharding.chunks();
        let mut free: Option<u32> = None;
        for step in 0..ranks {
            let (slot, next) =
                (self.slots[step as usize % self.slots.len()], self.slots[(step + 1) as usize % self.slots.len()]);
            let from = (rank + ranks - step) % ranks;
            let mut coming = None;
            if step + 1 < ranks {
                if let Some(free) = free {
                    self.m.wait(Stream::Exchange, free);
                }
                // A chunk goes on as long as a rank behind needs it.
                let mut moved = Vec::new();
                let (to, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                for side in 0..2 {
                    for (peer, send, of, buffer) in
                        [(to, true, from, slot[side]), (before, false, (from + ranks - 1) % ranks, next[side])]
                    {
                        let taker = if send { to } else { rank };
                        for (place, _) in still_needed(work, of, taker) {
                            moved.push(Transfer { peer, send, piece: buffer.tokens(place * size, size) });
                        }
                    }
                }
                self.m.exchange(moved);
                coming = Some(self.m.record(Stream::Exchange));
            }
            self.m.wait(Stream::Compute, arrived);
            for (number, launch) in list.iter().enumerate().filter(|(_, launch)| launch.from == from) {
                let (place, keys) = (launch.keys.start, launch.tile.block.keys);
                let chunk = work.sharding.chunks_of(from)[place];
                let at = place as i64 * size + keys.0 - chunk * size;
                each(&mut self.m, work, number, launch, slot.map(|piece| piece.tokens(at, keys.1 - keys.0)))?;
            }
            free = Some(self.m.record(Stream::Compute));
            arrived = coming.unwrap_or(arrived);
        }
        Ok(())
    }

    fn part(work: &ScheduleWork<'_>, tile: Tile, sink: bool) -> AttentionPart {
        let whole = work.whole();
        // A band may hide the first keys also of a single chunk.
        let keys_move = work.sharding.chunks() > 1 || tile.block.keys.0 != 0;
        let stats = !whole.is_backward();
        let slice = work.slice(&tile);
        AttentionPart { tile, heads: (0, whole.q.dims[1]), sink, stats, slice, joined: true, keys_move }
    }

    fn forward(&mut self, work: &mut ScheduleWork<'_>) -> Result<(), Refusal> {
        let rank = self.m.rank;
        let list = launches(work, rank);
        let size = work.tokens().0 / work.sharding.chunks();
        // Dense Stats are those of a launch in the order of their dims; packed ones as the whole's lie.
        let (o, stats) = (work.tensor(Role::O), flat(&work.whole().row_tensor()));
        let Some(o) = o else { return Ok(()) };
        let parts: Vec<(BufferBox, BufferBox)> = list
            .iter()
            .enumerate()
            .map(|(number, launch)| {
                let rows = launch.queries.len() as i64 * size;
                let dims = [o.dims[0], o.dims[1], rows, o.dims[3]];
                let piece = self.m.scratch(format!("o of launch {number}"), by_tokens(dims, o.dtype));
                let rows = like(&stats, [o.dims[0], o.dims[1], rows, 1]);
                (piece, self.m.scratch(format!("stats of launch {number}"), rows))
            })
            .collect();
        let chunks = work.sharding.chunks_of(rank);
        // The sink joins in the launch of each query's own keys; where not every query sees some of them, it is merged.
        let with_own_keys = limits::own_keys_are_seen(work.whole(), &work.sharding);
        self.around(work, |m, work, number, launch, [k, v]| {
            let (q_place, tile) = (launch.queries.start, launch.tile);
            let sink = work.whole().sink && with_own_keys && launch.has_own_keys(m.rank);
            let (part_o, part_stats) = parts[number];
            let rows = tile.block.rows;
            let first = rows.0 - chunks[q_place] * size;
            let count = rows.1 - rows.0;
            for (from, count) in rows_around(work, &tile, first, count, part_o.dims[2]) {
                m.fill(Stream::Compute, part_o.tokens(from, count), false);
                m.fill(Stream::Compute, part_stats.tokens(from, count), true);
            }
            let row = q_place as i64 * size + first;
            let mut pieces = vec![(Role::K, k), (Role::V, v)];
            pieces.extend(m.piece(Role::Q).map(|q| (Role::Q, q.tokens(row, count))));
            pieces.push((Role::O, part_o.tokens(first, count)));
            pieces.push((Role::Stats, part_stats.tokens(first, count)));
            let part = Ring::part(work, tile, sink);
            work.launch(m, &part, &pieces, Local { head: 0, row, key: tile.block.keys.0 })
        })?;
        for (place, _) in chunks.iter().enumerate() {
            let of_place = |(launch, &(o, stats)): (&RingLaunch, &(BufferBox, BufferBox))| {
                Some((rows_at(launch, place, size, o)?, rows_at(launch, place, size, stats)?))
            };
            let merged: Vec<_> = list.iter().zip(&parts).filter_map(of_place).collect();
            let rows = |piece: BufferBox| piece.tokens(place as i64 * size, size);
            let Some(o) = self.m.piece(Role::O).map(rows) else { continue };
            let stats = self.m.piece(Role::Stats).map(rows).unwrap_or_else(|| {
                self.m.scratch(format!("stats of chunk {place}"), like(&stats, [o.dims[0], o.dims[1], size, 1]))
            });
            if merged.is_empty() {
                limits::no_empty_rows_with_sink(work.whole())?;
                self.m.fill(Stream::Compute, o, false);
                self.m.fill(Stream::Compute, stats, true);
            } else {
                let sink = self.m.piece(Role::Sink).filter(|_| !with_own_keys);
                let of_place = list.iter().filter(|launch| launch.queries.contains(&place));
                let rows = of_place.filter_map(|l| rows_of(work, chunks[place] * size, size, l.tile)).collect();
                self.m.push(RankStep::Merge { parts: merged, rows, sink, o, stats });
            }
        }
        Ok(())
    }

    fn backward(&mut self, work: &mut ScheduleWork<'_>) -> Result<(), Refusal> {
        let rank = self.m.rank;
        let (t_q, t_k) = work.tokens();
        let (size, k_size) = (t_q / work.sharding.chunks(), t_k / work.sharding.chunks());
        let all: Vec<_> = (0..work.sharding.ranks).map(|rank| launches(work, rank)).collect();
        // Gradients of keys are told by chunk of keys: those of one launch may go to several places.
        let made: Vec<Vec<MadeParts>> = (0..work.sharding.ranks)
            .zip(&all)
            .map(|(rank, list)| list.iter().flat_map(|launch| made_by(work, rank, launch)).collect())
            .collect();
        let list = &all[rank as usize];
        let arriving = Arriving::at(work, &made, rank);
        let scratch = |m: &mut Maker, role: Role, rows: i64, number: usize| {
            let t = work.tensor(role).unwrap_or(work.whole().q);
            m.scratch(format!("{role} of launch {number}"), by_tokens([t.dims[0], t.dims[1], rows, t.dims[3]], t.dtype))
        };
        let mut own: [Vec<BufferBox>; 3] = Default::default();
        for (number, launch) in list.iter().enumerate() {
            let keys = launch.tile.block.keys.1 - launch.tile.block.keys.0;
            own[0].push(scratch(&mut self.m, Role::DK, keys, number));
            own[1].push(scratch(&mut self.m, Role::DV, keys, number));
            own[2].push(scratch(&mut self.m, Role::DQ, launch.queries.len() as i64 * size, number));
        }
        let by_chunk = |side: usize| -> Vec<BufferBox> {
            let cut = |(launch, piece): (&RingLaunch, &BufferBox)| match launch.keys.len() {
                1 => vec![*piece],
                several => (0..several as i64).map(|at| piece.tokens(at * k_size, k_size)).collect(),
            };
            list.iter().zip(&own[side]).flat_map(cut).collect()
        };
        let of_keys = [by_chunk(0), by_chunk(1)];
        let chunks = work.sharding.chunks_of(rank);
        let sinks = work.tensor(Role::DSink).map(|t| {
            let mut dims = t.dims;
            dims[0] = chunks.len() as i64;
            let parts = self.m.scratch("d_sink of chunks", in_order(dims, t.dtype));
            self.m.fill(Stream::Compute, parts, false);
            parts
        });
        self.m.clear_gradients_of_tensors();
        let pieces_of = own.clone();
        self.around(work, |m, work, number, launch, [k, v]| {
            let (q_place, tile) = (launch.queries.start, launch.tile);
            let rows = tile.block.rows;
            let (first, count) = (rows.0 - chunks[q_place] * size, rows.1 - rows.0);
            let d_q = pieces_of[2][number];
            for (from, count) in rows_around(work, &tile, first, count, d_q.dims[2]) {
                m.fill(Stream::Compute, d_q.tokens(from, count), false);
            }
            let row = q_place as i64 * size + first;
            let mut pieces = vec![(Role::K, k), (Role::V, v), (Role::DQ, d_q.tokens(first, count))];
            pieces.extend([(Role::DK, pieces_of[0][number]), (Role::DV, pieces_of[1][number])]);
            for role in [Role::Q, Role::O, Role::Stats, Role::DO] {
                pieces.extend(m.piece(role).map(|piece| (role, piece.tokens(row, count))));
            }
            // The gradient of a sink is complete in one launch of each row: that with the row's own keys.
            let sink = work.whole().sink && launch.has_own_keys(m.rank) && sinks.is_some();
            if let (true, Some(mut parts)) = (sink, sinks) {
                parts.start[0] = q_place as i64;
                parts.dims[0] = 1;
                pieces.push((Role::DSink, parts));
            }
            let part = Ring::part(work, tile, sink);
            work.launch(m, &part, &pieces, Local { head: 0, row, key: tile.block.keys.0 })
        })?;
        self.m.hand_over(Stream::Compute);
        let back: Vec<Option<BufferBox>> = [Role::DK, Role::DV]
            .into_iter()
            .map(|role| {
                let heads = work.tensor(role).map_or(0, |t| t.dims[1]);
                arriving.buffer(work, &mut self.m, role, heads, "")
            })
            .collect();
        let mut moved = Vec::new();
        for (side, buffer) in back.iter().enumerate() {
            if let Some(buffer) = buffer {
                moved.extend(arriving.transfers(work, &made, rank, &of_keys[side], *buffer, &(0..chunks.len())));
            }
        }
        crate::gather::by_peer(&mut moved);
        self.m.exchange(moved);
        for (place, _) in chunks.iter().enumerate() {
            let Some(into) = self.m.piece(Role::DQ).map(|d_q| d_q.tokens(place as i64 * size, size)) else { continue };
            let of_place =
                |(launch, piece): (&RingLaunch, &BufferBox)| Some((launch.tile, rows_at(launch, place, size, *piece)?));
            let mut order: Vec<(Tile, BufferBox)> = list.iter().zip(&own[2]).filter_map(of_place).collect();
            order.sort_by_key(|(tile, _)| tile.block.keys.0);
            let rows = order.iter().filter_map(|(tile, _)| rows_of(work, chunks[place] * size, size, *tile)).collect();
            let parts: Vec<BufferBox> = order.into_iter().map(|(_, piece)| piece).collect();
            if parts.is_empty() {
                limits::no_empty_rows_with_sink(work.whole())?;
                self.m.fill(Stream::Compute, into, false);
            } else {
                self.m.push(RankStep::Sum { parts, rows, into });
            }
        }
        self.m.hand_over(Stream::Exchange);
        for (side, role) in [Role::DK, Role::DV].into_iter().enumerate() {
            if let (Some(into), Some(buffer)) = (self.m.piece(role), back[side]) {
                arriving.sums(work, &mut self.m, &made[rank as usize], &of_keys[side], buffer, into);
            }
        }
        if let (Some(parts), Some(into)) = (sinks, self.m.piece(Role::DSink)) {
            let order: Vec<_> = (0..work.sharding.chunks()).map(|chunk| work.sharding.owner(chunk)).collect();
            everywhere(work, &mut self.m, parts, chunks.len() as i64, &order, into);
        }
        Ok(())
    }
}

/// The rows of the chunk at a place in a buffer with the rows of a launch, if it computes them.
fn rows_at(launch: &RingLaunch, place: usize, size: i64, piece: BufferBox) -> Option<BufferBox> {
    let at = (place as i64 - launch.queries.start as i64) * size;
    launch.queries.contains(&place).then(|| piece.tokens(at, size))
}

/// The parts of the gradients of keys that a launch makes: one for each chunk of keys.
fn made_by(work: &ScheduleWork<'_>, rank: u32, launch: &RingLaunch) -> Vec<MadeParts> {
    let queries = work.sharding.chunks_of(rank)[launch.queries.start];
    if launch.keys.len() == 1 {
        return vec![MadeParts::for_tile(work, queries, &launch.tile)];
    }
    let size = work.tokens().1 / work.sharding.chunks();
    let chunks = work.sharding.chunks_of(launch.from);
    let part = |place: usize| {
        let mut tile = launch.tile;
        tile.block.keys = (chunks[place] * size, (chunks[place] + 1) * size);
        MadeParts::for_tile(work, queries, &tile)
    };
    launch.keys.clone().map(part).collect()
}

/// The rows of a launch's `size` around the `count` from `first` on that a part computes, as first rows and numbers of
/// rows. They must be filled. With lengths there are none: merges and sums are told which rows count.
fn rows_around(
    work: &ScheduleWork<'_>,
    tile: &Tile,
    first: i64,
    count: i64,
    size: i64,
) -> impl Iterator<Item = (i64, i64)> {
    let told = work.slice(tile).is_some();
    let runs = [(0, first), (first + count, size)].into_iter();
    runs.filter(move |(from, end)| !told && from < end).map(|(from, end)| (from, end - from))
}

/// Which queries of a chunk count in a part of it, for attentions with lengths.
fn rows_of(work: &ScheduleWork<'_>, first: i64, rows: i64, tile: Tile) -> Option<Counted> {
    Ring::part(work, tile, false).counted(false, first - tile.block.rows.0, rows)
}
