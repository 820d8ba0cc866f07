//! Decode over sharded keys: each rank computes all queries over the keys that it has; the outputs of all ranks are
//! merged, and every rank has the whole result. What moves in bytes is told in `merges.rs`.

use qkvault_graph::{Refusal, Role, Storage, Tensor, operands};

use crate::maker::{Maker, in_order, like};
use crate::merges::MergeShares;
use crate::part::AttentionPart;
use crate::step::{BufferBox, RankStep, Stream, Transfer};
use crate::tile::{Tile, TileBlock};
use crate::work::{Local, ScheduleWork};
use crate::{Counted, Slice, dealt};

/// A part of an operand: where it begins there, where in the rank's buffer, and its dims.
type Share = ([i64; 4], [i64; 4], [i64; 4]);

pub(crate) fn ranks(work: &mut ScheduleWork<'_>, run: u32) -> Result<Vec<crate::RankSchedule>, Refusal> {
    (0..work.sharding.ranks).map(|rank| one(work, rank, run)).collect()
}

/// The runs of a list of `length` that are dealt to a rank, along one dim.
fn runs(rank: u32, ranks: u32, run: i64, length: i64, dim: usize, dims: [i64; 4]) -> Vec<Share> {
    let round = i64::from(ranks) * run;
    let starts = (0..).map(|n| n * round + i64::from(rank) * run).take_while(|start| *start < length);
    let share = |(n, start): (i64, i64)| {
        let (mut from, mut at, mut size) = ([0; 4], [0; 4], dims);
        (from[dim], at[dim], size[dim]) = (start, n * run, run.min(length - start));
        (from, at, size)
    };
    (0..).zip(starts).map(share).collect()
}

fn one(work: &mut ScheduleWork<'_>, rank: u32, run: u32) -> Result<crate::RankSchedule, Refusal> {
    let mut m = Maker::new(rank);
    let ranks = work.sharding.ranks;
    let whole = work.whole();
    let (s_q, s_kv) = whole.seq();
    // The first rank has the most keys; all ranks have room for as many, and so one plan.
    let most = dealt(0, ranks, run, s_kv);
    for o in operands(whole) {
        let dims = o.tensor.dims;
        match o.role {
            Role::Q | Role::O | Role::Stats | Role::Sink => {
                m.operand(o.role, o.tensor, &[([0; 4], [0; 4], dims)]);
            }
            Role::K | Role::V => match o.tensor.storage {
                Storage::Paged { .. } => {
                    let pool = crate::maker::flat(&o.tensor);
                    m.operand(o.role, pool, &[([0; 4], [0; 4], pool.dims)]);
                }
                Storage::Dense | Storage::Varlen { .. } => {
                    let shares = runs(rank, ranks, run.into(), s_kv, 2, dims);
                    m.operand(o.role, like(&o.tensor, [dims[0], dims[1], most, dims[3]]), &shares);
                }
            },
            Role::PageTableK | Role::PageTableV => {
                let paged = if o.role == Role::PageTableK { &whole.k } else { &whole.v };
                let Storage::Paged { page_size, .. } = paged.storage else { continue };
                let shares = runs(rank, ranks, i64::from(run) / page_size, dims[2], 2, dims);
                let pages = (most + page_size - 1) / page_size;
                m.operand(o.role, in_order([dims[0], 1, pages, 1], o.tensor.dtype), &shares);
            }
            Role::ScoreTensor(_) if dims[3] == 1 => {
                m.operand(o.role, o.tensor, &[([0; 4], [0; 4], dims)]);
            }
            Role::ScoreTensor(_) => {
                let shares = runs(rank, ranks, run.into(), s_kv, 3, dims);
                m.operand(o.role, in_order([dims[0], dims[1], dims[2], most], o.tensor.dtype), &shares);
            }
            _ => {}
        }
    }
    let tile = Tile { block: TileBlock { rows: (0, s_q), keys: (0, most) }, band: None };
    let slice = Some(Slice::Dealt { rank, ranks, run });
    let part = AttentionPart {
        tile,
        heads: (0, whole.q.dims[1]),
        sink: false,
        stats: true,
        slice,
        joined: true,
        keys_move: false,
    };
    // A rank that has no key of a sequence writes nothing for it.
    let counted =
        |of| AttentionPart { slice: Some(Slice::Dealt { rank: of, ranks, run }), ..part }.counted(false, 0, s_q);
    let counted: Vec<Counted> = (0..ranks).filter_map(counted).collect();
    let shares = MergeShares::for_decode(whole, ranks);
    let layout = |t: Tensor| shares.map_or(like(&t, t.dims), |shares| shares.layout(&t));
    let own = [("o", whole.o), ("stats", whole.row_tensor())]
        .map(|(name, t)| m.scratch(format!("{name} of rank {rank}"), layout(t)));
    let mut pieces = vec![(Role::O, own[0]), (Role::Stats, own[1])];
    pieces.extend([Role::Q, Role::K, Role::V].into_iter().filter_map(|role| Some((role, m.piece(role)?))));
    work.launch(&mut m, &part, &pieces, Local::default())?;
    match shares {
        Some(shares) => shares.steps(&mut m, own, &counted),
        None => everywhere(&mut m, own, ranks, counted),
    }
    Ok(m.made)
}

/// Every rank sends its partial O and Stats to all others, and merges those of all ranks.
fn everywhere(m: &mut Maker, own: [BufferBox; 2], ranks: u32, rows: Vec<Counted>) {
    let rank = m.rank;
    m.hand_over(Stream::Compute);
    let (mut moved, mut parts) = (Vec::new(), Vec::new());
    for peer in 0..ranks {
        let theirs = match peer == rank {
            true => own,
            false => [("o", own[0]), ("stats", own[1])]
                .map(|(name, piece)| m.scratch(format!("{name} of rank {peer}"), m.tensor(piece))),
        };
        parts.push((theirs[0], theirs[1]));
        if peer != rank {
            moved.extend(own.map(|piece| Transfer { peer, send: true, piece }));
            moved.extend(theirs.map(|piece| Transfer { peer, send: false, piece }));
        }
    }
    m.exchange(moved);
    m.hand_over(Stream::Exchange);
    let (sink, given) = (m.piece(Role::Sink), m.piece(Role::Stats));
    let Some(o) = m.piece(Role::O) else { return };
    let stats = given.unwrap_or_else(|| m.scratch("stats of all ranks", m.tensor(own[1])));
    m.push(RankStep::Merge { parts, rows, sink, o, stats });
}
