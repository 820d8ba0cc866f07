//! Gradients of keys and values: each launch has a part for the keys that its queries see; the rank that has these keys
//! adds the parts up, in the order of the queries.

use std::collections::BTreeSet;
use std::ops::Range;

use qkvault_graph::{Band, Role};

use crate::maker::{Maker, by_tokens};
use crate::step::{BufferBox, RankStep, Stream, Transfer};
use crate::tile::Tile;
use crate::work::ScheduleWork;
use crate::{Counted, Slice};

/// A part that a launch of one rank makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MadeParts {
    /// The chunk of queries: parts are added in this order.
    pub(crate) queries: i64,
    /// The keys.
    pub(crate) keys: (i64, i64),
    /// The lengths of its sequences, and its band.
    slice: Option<Slice>,
    band: Option<Band>,
}

impl MadeParts {
    /// The part of a chunk of queries over the keys of a tile.
    pub(crate) fn for_tile(work: &ScheduleWork<'_>, queries: i64, tile: &Tile) -> MadeParts {
        MadeParts { queries, keys: tile.block.keys, slice: work.slice(tile), band: tile.band }
    }

    /// Which of some keys count, for attentions with lengths.
    fn counted(&self, (first, end): (i64, i64)) -> Option<Counted> {
        let (slice, band) = (self.slice?, self.band);
        Some(Counted { slice, band, keys: true, first: first - self.keys.0, rows: end - first, sequences: None })
    }
}

/// The parts that arrive at one rank.
pub(crate) struct Arriving {
    /// Part, the run of keys that arrives, and its row in the buffers.
    list: Vec<(MadeParts, (i64, i64), i64)>,
    rows: i64,
}

/// The messages from one rank to another, in the order that both use: the part, and the run of its keys.
fn between<'a>(
    work: &'a ScheduleWork<'_>,
    made: &'a [Vec<MadeParts>],
    from: u32,
    to: u32,
) -> impl Iterator<Item = (usize, MadeParts, (i64, i64))> + 'a {
    let size = work.tokens().1 / work.sharding.chunks();
    work.sharding.chunks_of(to).into_iter().flat_map(move |chunk| {
        let held = (chunk * size, (chunk + 1) * size);
        made[from as usize].iter().enumerate().filter_map(move |(number, part)| {
            let run = (part.keys.0.max(held.0), part.keys.1.min(held.1));
            (run.0 < run.1).then_some((number, *part, run))
        })
    })
}

impl Arriving {
    pub(crate) fn at(work: &ScheduleWork<'_>, made: &[Vec<MadeParts>], rank: u32) -> Arriving {
        let mut arriving = Arriving { list: Vec::new(), rows: 0 };
        for from in (0..work.sharding.ranks).filter(|from| *from != rank) {
            for (_, part, run) in between(work, made, from, rank) {
                arriving.list.push((part, run, arriving.rows));
                arriving.rows += run.1 - run.0;
            }
        }
        arriving
    }

    /// A buffer for what arrives of the gradient with this role, for so many heads.
    pub(crate) fn buffer(
        &self,
        work: &ScheduleWork<'_>,
        m: &mut Maker,
        role: Role,
        heads: i64,
        name: &str,
    ) -> Option<BufferBox> {
        let t = work.tensor(role)?;
        let tensor = by_tokens([t.dims[0], heads, self.rows.max(1), t.dims[3]], t.dtype);
        Some(m.scratch(format!("{role} arriving {name}"), tensor))
    }

    /// The messages of one gradient: parts go to the ranks that have their keys. Only those of queries at these places
    /// of the rank that made them.
    pub(crate) fn transfers(
        &self,
        work: &ScheduleWork<'_>,
        made: &[Vec<MadeParts>],
        rank: u32,
        own: &[BufferBox],
        buffer: BufferBox,
        places: &Range<usize>,
    ) -> Vec<Transfer> {
        let mut list = Vec::new();
        let mut arriving = self.list.iter();
        let counts = |part: &MadeParts| places.contains(&(work.sharding.owner(part.queries).1 as usize));
        for peer in (0..work.sharding.ranks).filter(|peer| *peer != rank) {
            for (number, part, run) in between(work, made, rank, peer).filter(|(_, part, _)| counts(part)) {
                let piece = own[number];
                let piece = piece.tokens(piece.start[2] + run.0 - part.keys.0, run.1 - run.0);
                list.push(Transfer { peer, send: true, piece });
            }
            for _ in between(work, made, peer, rank) {
                if let Some((_, run, row)) = arriving.next().filter(|(part, ..)| counts(part)) {
                    list.push(Transfer { peer, send: false, piece: buffer.tokens(*row, run.1 - run.0) });
                }
            }
        }
        list
    }

    /// The sums of one gradient over the keys of the rank. `into` is the caller's buffer, for the heads of the parts.
    pub(crate) fn sums(
        &self,
        work: &ScheduleWork<'_>,
        m: &mut Maker,
        made: &[MadeParts],
        own: &[BufferBox],
        buffer: BufferBox,
        into: BufferBox,
    ) {
        let size = work.tokens().1 / work.sharding.chunks();
        for (place, chunk) in (0..).zip(work.sharding.chunks_of(m.rank)) {
            let held = (chunk * size, (chunk + 1) * size);
            let mine = made.iter().zip(own).map(|(part, piece)| {
                let run = (part.keys.0.max(held.0), part.keys.1.min(held.1));
                (*part, run, piece.tokens(piece.start[2] + run.0 - part.keys.0, run.1 - run.0))
            });
            let others = self.list.iter().filter(|(_, run, _)| run.0 >= held.0 && run.1 <= held.1);
            let others = others.map(|(part, run, row)| (*part, *run, buffer.tokens(*row, run.1 - run.0)));
            let mut list: Vec<_> = mine.filter(|(_, run, _)| run.0 < run.1).chain(others).collect();
            list.sort_by_key(|(part, run, _)| (part.queries, run.0));
            let cuts: BTreeSet<i64> =
                list.iter().flat_map(|(_, run, _)| [run.0, run.1]).chain([held.0, held.1]).collect();
            let cuts: Vec<i64> = cuts.into_iter().collect();
            for cut in cuts.windows(2) {
                let (first, end) = (cut[0], cut[1]);
                let into = into.tokens(place * size + first - held.0, end - first);
                let covering: Vec<_> = list.iter().filter(|(_, run, _)| run.0 <= first && end <= run.1).collect();
                let rows = covering.iter().filter_map(|(part, ..)| part.counted((first, end))).collect();
                let parts: Vec<BufferBox> = covering
                    .iter()
                    .map(|(_, run, piece)| piece.tokens(piece.start[2] + first - run.0, end - first))
                    .collect();
                if parts.is_empty() {
                    m.fill(Stream::Compute, into, false);
                } else {
                    m.push(RankStep::Sum { parts, rows, into });
                }
            }
        }
    }
}

/// Sends the parts of a small gradient that every rank needs, and adds up those of all ranks: that of the sinks. The
/// parts of a rank lie one after another in `own`, `each` of them on every rank.
pub(crate) fn everywhere(
    work: &ScheduleWork<'_>,
    m: &mut Maker,
    own: BufferBox,
    each: i64,
    order: &[(u32, i64)],
    into: BufferBox,
) {
    let tensor = m.tensor(own);
    let mut dims = tensor.dims;
    let ranks = i64::from(work.sharding.ranks);
    dims[0] = ranks * each;
    let every = m.scratch(
        format!("{} of all ranks", m.made.buffers[own.buffer as usize].name),
        qkvault_graph::Tensor { dims, ..tensor },
    );
    let of = |rank: u32| {
        let mut piece = every;
        piece.start[0] = i64::from(rank) * each;
        piece.dims[0] = each;
        piece
    };
    m.copy(Stream::Compute, own, of(m.rank));
    m.hand_over(Stream::Compute);
    let mut list = Vec::new();
    for peer in (0..work.sharding.ranks).filter(|peer| *peer != m.rank) {
        list.push(Transfer { peer, send: true, piece: of(m.rank) });
        list.push(Transfer { peer, send: false, piece: of(peer) });
    }
    m.exchange(list);
    m.hand_over(Stream::Exchange);
    let parts = order.iter().map(|&(rank, place)| {
        let mut piece = of(rank);
        piece.start[0] += place;
        piece.dims[0] = 1;
        piece
    });
    m.push(RankStep::Sum { parts: parts.collect(), rows: Vec::new(), into });
}
