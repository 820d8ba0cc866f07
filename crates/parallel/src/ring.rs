//! The scheme ring: keys and values go from rank to rank; each rank computes its queries over each shard that comes by,
//! one launch for each pair of chunks, and merges the results.

use qkvault_graph::{Refusal, Role};

use crate::gather::own_buffers;
use crate::maker::{Maker, by_tokens, flat, in_order, like};
use crate::pairs::{launches, still_needed};
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

    /// Goes around; `each` launches one pair, with the pieces of its keys and values.
    fn around(
        &mut self,
        work: &mut ScheduleWork<'_>,
        mut each: impl FnMut(
            &mut Maker,
            &mut ScheduleWork<'_>,
            usize,
            (usize, u32, usize, Tile),
            [BufferBox; 2],
        ) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
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
            for (number, &launch) in list.iter().enumerate().filter(|(_, launch)| launch.1 == from) {
                let (.., place, tile) = launch;
                let keys = tile.block.keys;
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
        let parts: Vec<(BufferBox, BufferBox)> = (0..list.len())
            .map(|number| {
                let dims = [o.dims[0], o.dims[1], size, o.dims[3]];
                let piece = self.m.scratch(format!("o of pair {number}"), by_tokens(dims, o.dtype));
                let rows = like(&stats, [o.dims[0], o.dims[1], size, 1]);
                (piece, self.m.scratch(format!("stats of pair {number}"), rows))
            })
            .collect();
        let chunks = work.sharding.chunks_of(rank);
        // The sink joins in the launch of each query's own keys; where not every query sees some of them, it is merged.
        let with_own_keys = limits::own_keys_are_seen(work.whole(), &work.sharding);
        self.around(work, |m, work, number, (q_place, from, k_place, tile), [k, v]| {
            let sink = work.whole().sink && with_own_keys && from == m.rank && k_place == q_place;
            let (part_o, part_stats) = parts[number];
            let rows = tile.block.rows;
            let first = rows.0 - chunks[q_place] * size;
            let count = rows.1 - rows.0;
            for (from, count) in rows_around(work, &tile, first, count, size) {
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
            let merged: Vec<_> = list.iter().zip(&parts).filter(|(l, _)| l.0 == place).map(|(_, p)| *p).collect();
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
                let of_place = list.iter().filter(|l| l.0 == place);
                let rows = of_place.filter_map(|l| rows_of(work, chunks[place] * size, size, l.3)).collect();
                self.m.push(RankStep::Merge { parts: merged, rows, sink, o, stats });
            }
        }
        Ok(())
    }

    fn backward(&mut self, work: &mut ScheduleWork<'_>) -> Result<(), Refusal> {
        let rank = self.m.rank;
        let size = work.tokens().0 / work.sharding.chunks();
        let all: Vec<_> = (0..work.sharding.ranks).map(|rank| launches(work, rank)).collect();
        let made: Vec<Vec<MadeParts>> = (0..work.sharding.ranks)
            .zip(&all)
            .map(|(rank, list)| {
                let chunks = work.sharding.chunks_of(rank);
                list.iter().map(|(place, .., tile)| MadeParts::for_tile(work, chunks[*place], tile)).collect()
            })
            .collect();
        let list = &all[rank as usize];
        let arriving = Arriving::at(work, &made, rank);
        let scratch = |m: &mut Maker, role: Role, rows: i64, number: usize| {
            let t = work.tensor(role).unwrap_or(work.whole().q);
            m.scratch(format!("{role} of pair {number}"), by_tokens([t.dims[0], t.dims[1], rows, t.dims[3]], t.dtype))
        };
        let mut own: [Vec<BufferBox>; 3] = Default::default();
        for (number, (.., tile)) in list.iter().enumerate() {
            let keys = tile.block.keys.1 - tile.block.keys.0;
            own[0].push(scratch(&mut self.m, Role::DK, keys, number));
            own[1].push(scratch(&mut self.m, Role::DV, keys, number));
            own[2].push(scratch(&mut self.m, Role::DQ, size, number));
        }
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
        self.around(work, |m, work, number, (q_place, from, k_place, tile), [k, v]| {
            let rows = tile.block.rows;
            let (first, count) = (rows.0 - chunks[q_place] * size, rows.1 - rows.0);
            let d_q = pieces_of[2][number];
            for (from, count) in rows_around(work, &tile, first, count, size) {
                m.fill(Stream::Compute, d_q.tokens(from, count), false);
            }
            let row = q_place as i64 * size + first;
            let mut pieces = vec![(Role::K, k), (Role::V, v), (Role::DQ, d_q.tokens(first, count))];
            pieces.extend([(Role::DK, pieces_of[0][number]), (Role::DV, pieces_of[1][number])]);
            for role in [Role::Q, Role::O, Role::Stats, Role::DO] {
                pieces.extend(m.piece(role).map(|piece| (role, piece.tokens(row, count))));
            }
            // The gradient of a sink is complete in one launch of each row: that with the row's own keys.
            let own_keys = from == m.rank && k_place == q_place;
            let sink = work.whole().sink && own_keys && sinks.is_some();
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
                moved.extend(arriving.transfers(work, &made, rank, &own[side], *buffer));
            }
        }
        crate::gather::by_peer(&mut moved);
        self.m.exchange(moved);
        for (place, _) in chunks.iter().enumerate() {
            let Some(into) = self.m.piece(Role::DQ).map(|d_q| d_q.tokens(place as i64 * size, size)) else { continue };
            let mut order: Vec<(Tile, BufferBox)> =
                list.iter().zip(&own[2]).filter(|(l, _)| l.0 == place).map(|(l, piece)| (l.3, *piece)).collect();
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
                arriving.sums(work, &mut self.m, &made[rank as usize], &own[side], buffer, into);
            }
        }
        if let (Some(parts), Some(into)) = (sinks, self.m.piece(Role::DSink)) {
            let order: Vec<_> = (0..work.sharding.chunks()).map(|chunk| work.sharding.owner(chunk)).collect();
            everywhere(work, &mut self.m, parts, chunks.len() as i64, &order, into);
        }
        Ok(())
    }
}

/// The rows of a chunk of `size` around the `count` from `first` on that a part computes, as first rows and numbers of
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
