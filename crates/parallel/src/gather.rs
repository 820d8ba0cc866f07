//! The scheme gather: each rank gets the keys and values that its queries see, by groups of heads, and computes its
//! chunks of queries. While one group is computed, the next one moves. What the first group's first chunk needs moves
//! before the rest, and a chunk that sees no other rank's keys waits for none.

use qkvault_graph::{Band, Corner, Refusal, Role, Tensor};

use crate::limits;
use crate::maker::{Maker, by_tokens, query_roles};
use crate::part::AttentionPart;
use crate::parts::{Arriving, MadeParts, everywhere};
use crate::rows::RowRuns;
use crate::step::{BufferBox, RankBuffer, Stream, Transfer};
use crate::tile::{Tile, TileBlock, tile};
use crate::work::{Local, ScheduleWork};

/// What every rank's chunks see.
pub(crate) struct GatherPlan {
    /// By rank, then by place: the chunk, and its tile.
    pub(crate) tiles: Vec<Vec<(i64, Option<Tile>)>>,
    /// By rank, then by place: the keys that the chunk sees and earlier ones of the rank do not.
    pub(crate) needs: Vec<Vec<RowRuns>>,
    pub(crate) keys_move: bool,
    pub(crate) groups: i64,
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
            let mut seen = RowRuns::default();
            let new = |(_, t): &(i64, Option<Tile>)| {
                let all = RowRuns::from_runs(t.as_ref().map(|t| t.block.keys));
                let new = all.without(&seen);
                seen = seen.with(&all);
                new
            };
            list.iter().map(new).collect()
        };
        let keys_move = tiles.iter().flatten().any(|(_, t)| t.is_some_and(|t| t.block.keys.0 != 0));
        GatherPlan { needs: tiles.iter().map(keys).collect(), tiles, keys_move, groups: groups.into() }
    }
}

/// One rank of a gather.
pub(crate) struct Gather<'p> {
    pub(crate) m: Maker,
    pub(crate) plan: &'p GatherPlan,
    /// The keys that this rank has in its buffers: those of chunks that see other ranks' keys, and what is sent.
    pub(crate) kept: RowRuns,
    /// Whether messages are sent from the operands, whose runs of tokens lie as in the buffers.
    pub(crate) direct: bool,
    /// K and V, by slot.
    pub(crate) slots: Vec<[BufferBox; 2]>,
    /// Whether launches of the first chunk run beside those of later ones.
    pub(crate) beside: bool,
}

/// Most queries of a chunk whose launches run beside others. Longer ones leave nothing idle that would be worth scratch
/// memory of their own.
const BESIDE: i64 = 8192;

impl<'p> Gather<'p> {
    fn new(work: &ScheduleWork<'_>, plan: &'p GatherPlan, rank: u32) -> Gather<'p> {
        let m = own_buffers(work, rank);
        let own = work.runs(rank, work.tokens().1);
        let others = (0..work.sharding.ranks).filter(|other| *other != rank);
        let of_others = others.flat_map(|other| plan.needs[other as usize].iter());
        let sent: Vec<_> = of_others.flat_map(|needs| own.iter().flat_map(|&run| needs.within(run))).collect();
        let mut gather = Gather { m, plan, kept: RowRuns::default(), direct: false, slots: Vec::new(), beside: false };
        // A message is received in the order of a buffer by tokens.
        let in_order = |role: Role| {
            let Some(piece) = gather.m.piece(role) else { return true };
            let (has, wanted) = (gather.m.tensor(piece), group_tensor(work, role, plan.groups, 1));
            let runs = sent.iter().map(|(first, end)| [wanted.dims[0], wanted.dims[1], end - first, wanted.dims[3]]);
            runs.into_iter().all(|dims| (0..4).all(|d| dims[d] <= 1 || has.strides[d] == wanted.strides[d]))
        };
        // Launches add to the gradients of sinks and score tensors, and share the memory of a dropout mask.
        let shared = |b: &RankBuffer| matches!(b.operand, Some(Role::DSink | Role::DScoreTensor(_)));
        let shares = work.whole().dropout.is_some() || gather.m.made.buffers.iter().any(shared);
        let short = work.tokens().0 / work.sharding.chunks() <= BESIDE;
        gather.beside = plan.groups == 1 && gather.chunks().len() > 1 && short && !shares;
        gather.direct = [Role::K, Role::V].into_iter().all(in_order);
        let sent = if gather.direct { Vec::new() } else { sent };
        gather.kept = gather.seen(work, &(0..gather.chunks().len())).with(&RowRuns::from_runs(sent));
        for slot in 0..plan.groups.min(2) {
            let slot = [Role::K, Role::V].map(|role| {
                let tensor = group_tensor(work, role, plan.groups, gather.kept.len());
                gather.m.scratch(format!("{role} gathered {slot}"), tensor)
            });
            gather.slots.push(slot);
        }
        gather
    }

    fn forward(&mut self, work: &mut ScheduleWork<'_>) -> Result<(), Refusal> {
        let groups = self.plan.groups;
        let mut arrived = vec![self.fetch(work, 0)];
        self.fork();
        let mut free = Vec::new();
        for group in 0..groups {
            if group + 1 < groups {
                if group >= 1 {
                    self.m.wait(Stream::Exchange, free[(group - 1) as usize]);
                }
                let mark = self.fetch(work, group + 1);
                arrived.push(mark);
            }
            for place in 0..self.chunks().len() {
                self.go_on(work, &arrived[group as usize], place);
                self.launch(work, group, place, &[])?;
            }
            self.join();
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
        self.fork();
        let mut returned: Vec<u32> = Vec::new();
        for group in 0..=groups {
            if group + 1 < groups {
                let mark = self.fetch(work, group + 1);
                arrived.push(mark);
            }
            if group < groups {
                let slot = (group % 2) as usize;
                let mut next = 0;
                for place in 0..self.chunks().len() {
                    self.go_on(work, &arrived[group as usize], place);
                    let mut gradients = Vec::new();
                    if self.chunks()[place].1.is_some() {
                        gradients = vec![(Role::DK, own[slot][0][next]), (Role::DV, own[slot][1][next])];
                        next += 1;
                    }
                    gradients.extend(sinks.map(|parts| (Role::DSink, at_batch(parts, place as i64))));
                    self.launch(work, group, place, &gradients)?;
                    // Nothing hides what the last group returns but the launches of its later chunks.
                    let last = place + 1 == self.chunks().len();
                    if group + 1 < groups && !last {
                        continue;
                    }
                    let places = if group + 1 < groups { 0..place + 1 } else { place..place + 1 };
                    let mut list = Vec::new();
                    for side in 0..2 {
                        if let Some(buffer) = back[slot][side] {
                            list.extend(arriving.transfers(work, &made, rank, &own[slot][side], buffer, &places));
                        }
                    }
                    by_peer(&mut list);
                    // A later group moves into this one's memory; its parts arrive in an earlier one's, after the sums.
                    if group + 1 < groups || list.iter().any(|message| message.send || group > 1) {
                        self.m.hand_over(self.m.launches);
                    }
                    self.m.exchange(list);
                }
                self.join();
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

    pub(crate) fn chunks(&self) -> &'p [(i64, Option<Tile>)] {
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
                    self.m.fill(self.m.launches, rows(piece), matches!(role, Role::Stats | Role::Max));
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
        let own = self.own_tokens(work, block.keys);
        for (role, gathered) in [Role::K, Role::V].into_iter().zip(self.slots[(group % 2) as usize]) {
            let (from, first) = match (own, self.mine(role, group, gathered)) {
                (Some(first), Some(mine)) => (mine, first),
                _ => (gathered, self.kept.at(block.keys.0)),
            };
            pieces.push((role, from.tokens(first, block.keys.1 - block.keys.0)));
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
