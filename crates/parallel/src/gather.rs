//! The scheme gather: each rank gets the keys and values that its queries see, by groups of heads, and computes its
//! chunks of queries. While one group is computed, the next one moves.

use qkvault_graph::{Band, Corner, Refusal, Role, Tensor};

use crate::limits;
use crate::maker::{Maker, by_tokens, query_roles};
use crate::part::AttentionPart;
use crate::parts::{Arriving, MadeParts, everywhere};
use crate::rows::RowRuns;
use crate::step::{BufferBox, Stream, Transfer};
use crate::tile::{Tile, TileBlock, tile};
use crate::work::{Local, ScheduleWork};

/// What every rank's chunks see.
struct GatherPlan {
    /// By rank, then by place: the chunk, and its tile.
    tiles: Vec<Vec<(i64, Option<Tile>)>>,
    /// The keys that a rank's queries see.
    needs: Vec<RowRuns>,
    keys_move: bool,
    groups: i64,
}

pub(crate) fn ranks(work: &mut ScheduleWork<'_>, groups: u32) -> Result<Vec<crate::RankSchedule>, Refusal> {
    let plan = GatherPlan::new(work, groups);
    (0..work.sharding.ranks)
        .map(|rank| {
            let mut gather = Gather::new(work, &plan, rank);
            if work.is_backward() {
                gather.backward(work)?
            } else {
                gather.forward(work)?
            }
            Ok(gather.m.made)
        })
        .collect()
}

/// The tile of a chunk of queries over all keys.
pub(crate) fn tile_of(work: &ScheduleWork<'_>, chunk: i64) -> Option<Tile> {
    let (t_q, t_k) = work.tokens();
    let size = t_q / work.sharding.chunks();
    let rows = (chunk * size, (chunk + 1) * size);
    if !work.is_packed() {
        return tile(work.whole(), TileBlock { rows, keys: (0, t_k) });
    }
    // The keys of a document end at the last of its queries here; documents are square under a band.
    let band = work.whole().mask.band.map(|band| Band { corner: Corner::BottomRight, ..band });
    let end = if band.is_some() && t_q == t_k { rows.1 } else { t_k };
    Some(Tile { block: TileBlock { rows, keys: (0, end) }, band })
}

impl GatherPlan {
    fn new(work: &ScheduleWork<'_>, groups: u32) -> GatherPlan {
        let tiles: Vec<Vec<_>> = (0..work.sharding.ranks)
            .map(|rank| work.sharding.chunks_of(rank).into_iter().map(|c| (c, tile_of(work, c))).collect())
            .collect();
        let keys = |list: &Vec<(i64, Option<Tile>)>| {
            RowRuns::from_runs(list.iter().filter_map(|(_, t)| Some(t.as_ref()?.block.keys)))
        };
        let keys_move = tiles.iter().flatten().any(|(_, t)| t.is_some_and(|t| t.block.keys.0 != 0));
        GatherPlan { needs: tiles.iter().map(keys).collect(), tiles, keys_move, groups: groups.into() }
    }
}

/// One rank of a gather.
struct Gather<'p> {
    m: Maker,
    plan: &'p GatherPlan,
    /// The keys that this rank has in its buffers: those that it needs, and those of its own that others need.
    kept: RowRuns,
    /// K and V, by slot.
    slots: Vec<[BufferBox; 2]>,
}

impl<'p> Gather<'p> {
    fn new(work: &ScheduleWork<'_>, plan: &'p GatherPlan, rank: u32) -> Gather<'p> {
        let mut m = own_buffers(work, rank);
        let own = work.runs(rank, work.tokens().1);
        let others = (0..work.sharding.ranks).filter(|other| *other != rank);
        let for_others = others.flat_map(|other| {
            own.iter().flat_map(move |&run| plan.needs[other as usize].within(run).collect::<Vec<_>>())
        });
        let kept = RowRuns::from_runs(plan.needs[rank as usize].iter().chain(for_others));
        let slots = (0..plan.groups.min(2))
            .map(|slot| {
                [Role::K, Role::V].map(|role| {
                    let tensor = group_tensor(work, role, plan.groups, kept.len());
                    m.scratch(format!("{role} gathered {slot}"), tensor)
                })
            })
            .collect();
        Gather { m, plan, kept, slots }
    }

    fn forward(&mut self, work: &mut ScheduleWork<'_>) -> Result<(), Refusal> {
        let groups = self.plan.groups;
        let mut arrived = vec![self.fetch(work, 0)];
        let mut free = Vec::new();
        for group in 0..groups {
            if group + 1 < groups {
                if group >= 1 {
                    self.m.wait(Stream::Exchange, free[(group - 1) as usize]);
                }
                let mark = self.fetch(work, group + 1);
                arrived.push(mark);
            }
            self.m.wait(Stream::Compute, arrived[group as usize]);
            for place in 0..self.chunks().len() {
                self.launch(work, group, place, &[])?;
            }
            free.push(self.m.record(Stream::Compute));
        }
        Ok(())
    }

    fn backward(&mut self, work: &mut ScheduleWork<'_>) -> Result<(), Refusal> {
        let (groups, plan) = (self.plan.groups, self.plan);
        let made: Vec<Vec<MadeParts>> = plan.tiles.iter().map(|list| made(work, list)).collect();
        let rank = self.m.rank;
        let arriving = Arriving::at(work, &made, rank);
        let roles = [Role::DK, Role::DV];
        let own: Vec<[Vec<BufferBox>; 2]> = (0..groups.min(2))
            .map(|slot| {
                roles.map(|role| {
                    let part = |(at, part): (usize, &MadeParts)| {
                        let tensor = group_tensor(work, role, groups, part.keys.1 - part.keys.0);
                        self.m.scratch(format!("{role} part {at} {slot}"), tensor)
                    };
                    made[rank as usize].iter().enumerate().map(part).collect()
                })
            })
            .collect();
        let counts = roles.map(|role| work.tensor(role).map_or(0, |t| t.dims[1] / groups));
        let heads = |role: Role| if role == Role::DK { counts[0] } else { counts[1] };
        let back: Vec<[Option<BufferBox>; 2]> = (0..groups.min(2))
            .map(|slot| roles.map(|role| arriving.buffer(work, &mut self.m, role, heads(role), &slot.to_string())))
            .collect();
        let sinks = self.sink_parts(work);
        self.m.clear_gradients_of_tensors();
        let mut arrived = vec![self.fetch(work, 0)];
        let mut returned: Vec<u32> = Vec::new();
        for group in 0..=groups {
            if group + 1 < groups {
                let mark = self.fetch(work, group + 1);
                arrived.push(mark);
            }
            if group < groups {
                let slot = (group % 2) as usize;
                self.m.wait(Stream::Compute, arrived[group as usize]);
                let mut next = 0;
                for place in 0..self.chunks().len() {
                    let mut gradients = Vec::new();
                    if self.chunks()[place].1.is_some() {
                        gradients = vec![(Role::DK, own[slot][0][next]), (Role::DV, own[slot][1][next])];
                        next += 1;
                    }
                    gradients.extend(sinks.map(|parts| (Role::DSink, at_batch(parts, place as i64))));
                    self.launch(work, group, place, &gradients)?;
                }
                self.m.hand_over(Stream::Compute);
                let mut list = Vec::new();
                for side in 0..2 {
                    if let Some(buffer) = back[slot][side] {
                        list.extend(arriving.transfers(work, &made, rank, &own[slot][side], buffer));
                    }
                }
                by_peer(&mut list);
                self.m.exchange(list);
                returned.push(self.m.record(Stream::Exchange));
            }
            // The sums of a group come after the launches of the next one, while which its parts move.
            if group >= 1 {
                let (before, slot) = (group - 1, ((group - 1) % 2) as usize);
                self.m.wait(Stream::Compute, returned[before as usize]);
                for (side, role) in roles.into_iter().enumerate() {
                    if let (Some(into), Some(buffer)) = (self.m.piece(role), back[slot][side]) {
                        let into = into.heads(before * heads(role), heads(role));
                        arriving.sums(work, &mut self.m, &made[rank as usize], &own[slot][side], buffer, into);
                    }
                }
            }
        }
        if let (Some(parts), Some(into)) = (sinks, self.m.piece(Role::DSink)) {
            let order: Vec<_> = (0..work.sharding.chunks()).map(|chunk| work.sharding.owner(chunk)).collect();
            let each = self.chunks().len() as i64;
            everywhere(work, &mut self.m, parts, each, &order, into);
        }
        Ok(())
    }

    fn chunks(&self) -> &'p [(i64, Option<Tile>)] {
        &self.plan.tiles[self.m.rank as usize]
    }

    /// A buffer for the gradient of the sinks from each chunk.
    fn sink_parts(&mut self, work: &ScheduleWork<'_>) -> Option<BufferBox> {
        let t = work.tensor(Role::DSink)?;
        let mut dims = t.dims;
        dims[0] = self.chunks().len() as i64;
        let parts = self.m.scratch("d_sink of chunks", crate::maker::in_order(dims, t.dtype));
        self.m.fill(Stream::Compute, parts, false);
        Some(parts)
    }

    /// Moves the keys and values of a group of heads into a slot; the mark tells when they are there.
    fn fetch(&mut self, work: &ScheduleWork<'_>, group: i64) -> u32 {
        let slot = self.slots[(group % 2) as usize];
        let (rank, size) = (self.m.rank, work.tokens().1 / work.sharding.chunks());
        let run = |chunk: i64| (chunk * size, (chunk + 1) * size);
        let mut list = Vec::new();
        for (role, gathered) in [Role::K, Role::V].into_iter().zip(slot) {
            let Some(mine) = self.m.piece(role) else { continue };
            let heads = gathered.dims[1];
            let mine = mine.heads(group * heads, heads);
            for (place, chunk) in (0..).zip(work.sharding.chunks_of(rank)) {
                for (first, end) in self.kept.within(run(chunk)) {
                    let from = mine.tokens(place * size + first - run(chunk).0, end - first);
                    self.m.copy(Stream::Exchange, from, gathered.tokens(self.kept.at(first), end - first));
                }
            }
            for peer in (0..work.sharding.ranks).filter(|peer| *peer != rank) {
                for (from, to, send) in [(rank, peer, true), (peer, rank, false)] {
                    for chunk in work.sharding.chunks_of(from) {
                        for (first, end) in self.plan.needs[to as usize].within(run(chunk)) {
                            let piece = gathered.tokens(self.kept.at(first), end - first);
                            list.push(Transfer { peer, send, piece });
                        }
                    }
                }
            }
        }
        by_peer(&mut list);
        self.m.exchange(list);
        self.m.record(Stream::Exchange)
    }

    /// Launches one chunk of queries over a group of heads.
    fn launch(
        &mut self,
        work: &mut ScheduleWork<'_>,
        group: i64,
        place: usize,
        gradients: &[(Role, BufferBox)],
    ) -> Result<(), Refusal> {
        let (chunk, tile) = self.chunks()[place];
        let whole = work.whole();
        let size = work.tokens().0 / work.sharding.chunks();
        let heads = whole.q.dims[1] / self.plan.groups;
        let heads = (group * heads, heads);
        let local = |row: i64| place as i64 * size + row - chunk * size;
        let empty = tile.map_or(vec![(0, size)], |t| {
            vec![(0, t.block.rows.0 - chunk * size), (t.block.rows.1 - chunk * size, size)]
        });
        for (first, end) in empty.into_iter().filter(|(first, end)| first < end) {
            let rows =
                |piece: BufferBox| piece.heads(heads.0, heads.1).tokens(place as i64 * size + first, end - first);
            limits::no_empty_rows_with_sink(whole)?;
            let outputs: &[Role] =
                if work.is_backward() { &[Role::DQ] } else { &[Role::O, Role::Stats, Role::Max, Role::SumExp] };
            for &role in outputs {
                if let Some(piece) = self.m.piece(role) {
                    self.m.fill(Stream::Compute, rows(piece), matches!(role, Role::Stats | Role::Max));
                }
            }
        }
        let Some(tile) = tile else { return Ok(()) };
        let (sink, keys_move) = (work.whole().sink, self.plan.keys_move);
        let slice = work.slice(&tile);
        let part = AttentionPart { tile, heads, sink, stats: false, slice, joined: false, keys_move };
        let block = tile.block;
        let mut pieces: Vec<(Role, BufferBox)> = Vec::new();
        for role in query_roles(work.whole()) {
            if let Some(piece) = self.m.piece(role) {
                let rows = piece.heads(heads.0, heads.1).tokens(local(block.rows.0), block.rows.1 - block.rows.0);
                pieces.push((role, rows));
            }
        }
        for (role, gathered) in [Role::K, Role::V].into_iter().zip(self.slots[(group % 2) as usize]) {
            pieces.push((role, gathered.tokens(self.kept.at(block.keys.0), block.keys.1 - block.keys.0)));
        }
        for &(role, piece) in gradients {
            pieces.push((role, if role == Role::DSink { piece.heads(heads.0, heads.1) } else { piece }));
        }
        let at = Local { head: heads.0, row: local(block.rows.0), key: block.keys.0 };
        work.launch(&mut self.m, &part, &pieces, at)
    }
}

/// The parts that a rank's chunks make.
fn made(work: &ScheduleWork<'_>, list: &[(i64, Option<Tile>)]) -> Vec<MadeParts> {
    let part = |(chunk, tile): &(i64, Option<Tile>)| Some(MadeParts::for_tile(work, *chunk, tile.as_ref()?));
    list.iter().filter_map(part).collect()
}

/// A buffer by tokens for a group of the heads of an operand.
fn group_tensor(work: &ScheduleWork<'_>, role: Role, groups: i64, rows: i64) -> Tensor {
    let t = work.tensor(role).unwrap_or(work.whole().k);
    by_tokens([t.dims[0], t.dims[1] / groups, rows.max(1), t.dims[3]], t.dtype)
}

fn at_batch(mut piece: BufferBox, at: i64) -> BufferBox {
    piece.start[0] = at;
    piece.dims[0] = 1;
    piece
}

/// A rank's beginning: the caller's buffers with all heads of its tokens.
pub(crate) fn own_buffers(work: &ScheduleWork<'_>, rank: u32) -> Maker {
    let mut m = Maker::new(rank);
    for role in query_roles(work.whole()).into_iter().chain([Role::K, Role::V, Role::DK, Role::DV]) {
        work.token_buffer(&mut m, role);
    }
    work.score_buffers(&mut m, &work.runs(rank, work.tokens().0), (0, work.whole().q.dims[1]));
    m
}

/// Orders messages by peer; those with one peer keep their order.
pub(crate) fn by_peer(list: &mut [Transfer]) {
    list.sort_by_key(|t| t.peer);
}
