//! The scheme heads (Ulysses): each rank gets all tokens of its share of the heads, computes them in one launch, and
//! sends the results back to the ranks that have the tokens.

use qkvault_graph::{Refusal, Role, Tensor};

use crate::Slice;
use crate::gather::by_peer;
use crate::maker::{Maker, by_tokens, in_order, query_roles};
use crate::part::{self, AttentionPart};
use crate::step::{BufferBox, RankStep, Stream, Transfer};
use crate::tile::{Tile, TileBlock};
use crate::work::{Local, ScheduleWork};

pub(crate) fn ranks(work: &mut ScheduleWork<'_>) -> Result<Vec<crate::RankSchedule>, Refusal> {
    (0..work.sharding.ranks).map(|rank| one(work, rank)).collect()
}

/// The part of a rank: all tokens of its heads.
fn part_of(work: &ScheduleWork<'_>, rank: u32) -> AttentionPart {
    let (t_q, t_k) = work.tokens();
    let heads = work.whole().q.dims[1] / i64::from(work.sharding.ranks);
    let tile = Tile { block: TileBlock { rows: (0, t_q), keys: (0, t_k) }, band: work.whole().mask.band };
    let first = i64::from(rank) * heads;
    let sink = work.whole().sink;
    AttentionPart {
        tile,
        heads: (first, heads),
        sink,
        stats: false,
        slice: Some(Slice::Whole),
        joined: false,
        keys_move: false,
    }
}

/// The heads of an operand that a rank computes.
fn heads_of(work: &ScheduleWork<'_>, role: Role, rank: u32) -> (i64, i64) {
    let part = part_of(work, rank);
    match role {
        Role::K | Role::DK => part::kv_range(work.whole(), &part, work.whole().k.dims[1]),
        Role::V | Role::DV => part::kv_range(work.whole(), &part, work.whole().v.dims[1]),
        _ => part.heads,
    }
}

fn one(work: &mut ScheduleWork<'_>, rank: u32) -> Result<crate::RankSchedule, Refusal> {
    let mut m = Maker::new(rank);
    let whole = work.whole();
    let part = part_of(work, rank);
    let mut roles = query_roles(whole);
    roles.extend([Role::K, Role::V, Role::DK, Role::DV].into_iter().filter(|role| work.tensor(*role).is_some()));
    for &role in &roles {
        work.token_buffer(&mut m, role);
    }
    work.score_buffers(&mut m, &[(0, whole.q.dims[2])], part.heads);
    let inputs: &[Role] = match work.is_backward() {
        false => &[Role::Q, Role::K, Role::V],
        true => &[Role::Q, Role::K, Role::V, Role::O, Role::Stats, Role::DO],
    };
    let outputs: Vec<Role> = roles.iter().copied().filter(|role| !inputs.contains(role)).collect();
    let mut pieces = Vec::new();
    let mut moved = Vec::new();
    for &role in &roles {
        let Some(t) = work.tensor(role) else { continue };
        let (_, count) = heads_of(work, role, rank);
        let all = m.scratch(format!("{role} of heads"), by_tokens([t.dims[0], count, t.dims[2], t.dims[3]], t.dtype));
        pieces.push((role, all));
        if inputs.contains(&role) {
            moved.extend(to_heads(work, &mut m, role, &t, all));
        }
    }
    by_peer(&mut moved);
    m.exchange(moved);
    m.hand_over(Stream::Exchange);
    let sink = work.tensor(Role::DSink).map(|t| {
        let own = m.scratch("d_sink of heads", in_order([1, part.heads.1, 1, 1], t.dtype));
        pieces.push((Role::DSink, own));
        own
    });
    work.launch(&mut m, &part, &pieces, Local::default())?;
    let mut moved = Vec::new();
    let mut arrived: Vec<(Role, Vec<(u32, BufferBox)>)> = Vec::new();
    for &role in &outputs {
        let Some(t) = work.tensor(role) else { continue };
        let Some((_, all)) = pieces.iter().find(|(of, _)| *of == role) else { continue };
        let (from, list) = from_heads(work, &mut m, role, &t, *all);
        moved.extend(list);
        arrived.push((role, from));
    }
    if let (Some(own), Some(d_sink)) = (sink, m.piece(Role::DSink)) {
        m.copy(Stream::Compute, own, d_sink.heads(part.heads.0, part.heads.1));
        for peer in (0..work.sharding.ranks).filter(|peer| *peer != rank) {
            let (first, count) = heads_of(work, Role::Q, peer);
            moved.push(Transfer { peer, send: true, piece: own });
            moved.push(Transfer { peer, send: false, piece: d_sink.heads(first, count) });
        }
    }
    m.hand_over(Stream::Compute);
    by_peer(&mut moved);
    m.exchange(moved);
    m.hand_over(Stream::Exchange);
    for (role, from) in arrived {
        into_tokens(work, &mut m, role, &from);
    }
    Ok(m.made)
}

/// Sends each rank its heads of this rank's tokens; receives this rank's heads of all tokens.
fn to_heads(work: &ScheduleWork<'_>, m: &mut Maker, role: Role, t: &Tensor, all: BufferBox) -> Vec<Transfer> {
    let Some(mine) = m.piece(role) else { return Vec::new() };
    let size = t.dims[2] / work.sharding.chunks();
    let mut list = Vec::new();
    for peer in 0..work.sharding.ranks {
        let (first, count) = heads_of(work, role, peer);
        let chunks = work.sharding.chunks_of(peer).into_iter();
        if peer == m.rank {
            for (place, chunk) in (0..).zip(chunks) {
                let from = mine.heads(first, count).tokens(place * size, size);
                m.copy(Stream::Exchange, from, all.tokens(chunk * size, size));
            }
            continue;
        }
        let dims = [t.dims[0], count, mine.dims[2], t.dims[3]];
        let packed = m.scratch(format!("{role} for rank {peer}"), by_tokens(dims, t.dtype));
        m.copy(Stream::Exchange, mine.heads(first, count), packed);
        list.push(Transfer { peer, send: true, piece: packed });
        list.extend(chunks.map(|chunk| Transfer { peer, send: false, piece: all.tokens(chunk * size, size) }));
    }
    // What a peer sends at once arrives in the places of its chunks, so both sides name them one by one.
    list.into_iter()
        .flat_map(|t| {
            let pieces = if t.send { t.piece.dims[2] / size } else { 1 };
            (0..pieces)
                .map(move |n| Transfer { piece: if t.send { t.piece.tokens(n * size, size) } else { t.piece }, ..t })
        })
        .collect()
}

/// Sends each rank its tokens of this rank's heads; receives this rank's tokens of the heads of each rank.
fn from_heads(
    work: &ScheduleWork<'_>,
    m: &mut Maker,
    role: Role,
    t: &Tensor,
    all: BufferBox,
) -> (Vec<(u32, BufferBox)>, Vec<Transfer>) {
    let size = t.dims[2] / work.sharding.chunks();
    let share = work.sharding.share(t.dims[2]);
    let (mut list, mut arrived) = (Vec::new(), Vec::new());
    for peer in 0..work.sharding.ranks {
        let (_, count) = heads_of(work, role, peer);
        let dims = [t.dims[0], count, share, t.dims[3]];
        let from = m.scratch(format!("{role} from rank {peer}"), by_tokens(dims, t.dtype));
        arrived.push((peer, from));
        for (place, chunk) in (0..).zip(work.sharding.chunks_of(peer)) {
            let sent = all.tokens(chunk * size, size);
            if peer == m.rank {
                m.copy(Stream::Compute, sent, from.tokens(place * size, size));
            } else {
                list.push(Transfer { peer, send: true, piece: sent });
            }
        }
        if peer != m.rank {
            for place in 0..share / size {
                list.push(Transfer { peer, send: false, piece: from.tokens(place * size, size) });
            }
        }
    }
    (arrived, list)
}

/// Puts the heads of all ranks together. Ranks that share a key or value head have each a part of its gradient.
fn into_tokens(work: &ScheduleWork<'_>, m: &mut Maker, role: Role, from: &[(u32, BufferBox)]) {
    let Some(into) = m.piece(role) else { return };
    let mut done: Vec<(i64, i64)> = Vec::new();
    for &(rank, _) in from {
        let heads = heads_of(work, role, rank);
        if done.contains(&heads) {
            continue;
        }
        done.push(heads);
        let parts: Vec<BufferBox> =
            from.iter().filter(|(other, _)| heads_of(work, role, *other) == heads).map(|(_, piece)| *piece).collect();
        let into = into.heads(heads.0, heads.1);
        match parts.as_slice() {
            [one] => m.copy(Stream::Compute, *one, into),
            _ => m.push(RankStep::Sum { parts, rows: Vec::new(), into }),
        }
    }
}
