//! The merge of a decode over three ranks and more: each rank merges a share of the rows, and all of them then exchange
//! what they have merged.
//!
//! With a partial result of P bytes (O and Stats) on each of N ranks, a rank sends (N - 1) / N of P to the ranks that
//! merge, and its merged share to N - 1 ranks: 2 P (N - 1) / N in two exchanges, where all partial results sent to all
//! ranks are P (N - 1) in one. A rank merges P bytes instead of N times as many. With two ranks both move P bytes, and
//! one exchange is faster.

use qkvault_graph::{Attention, Role, Tensor};

use crate::Counted;
use crate::maker::{Maker, like};
use crate::step::{BufferBox, RankStep, Stream, Transfer};

/// Which rows each rank merges: those of some sequences, or of some heads of queries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergeShares {
    /// The dim that is shared: 0 for sequences, 1 for heads.
    dim: usize,
    count: i64,
    ranks: u32,
}

/// A tensor of rows on one rank: its partial result, and where the merged one belongs.
#[derive(Clone, Copy, Debug)]
struct MergedTensor {
    own: BufferBox,
    /// All rows, each share contiguous; `None` if only this rank's share is wanted.
    whole: Option<BufferBox>,
    /// The caller's buffer, where a share is not contiguous there.
    copied: Option<BufferBox>,
}

impl MergeShares {
    /// The shares of a decode; `None` if every rank merges everything: for two ranks, or if one rank would have it all.
    ///
    /// Sequences are outermost in most layouts, so that shares of them are messages as they lie; heads are so only for
    /// one sequence. Sequences are taken unless shares of heads are smaller.
    pub(crate) fn for_decode(whole: &Attention, ranks: u32) -> Option<MergeShares> {
        let [sequences, heads, ..] = whole.q.dims;
        let n = i64::from(ranks);
        let largest = |count: i64| (count + n - 1) / n;
        let by_sequence = largest(sequences) * heads <= largest(heads) * sequences;
        let (dim, count) = if by_sequence { (0, sequences) } else { (1, heads) };
        (ranks > 2 && largest(count) < count).then_some(MergeShares { dim, count, ranks })
    }

    /// The first and the number of those that a rank merges. It may be none.
    fn share(&self, rank: u32) -> (i64, i64) {
        let first = |rank: u32| i64::from(rank) * self.count / i64::from(self.ranks);
        (first(rank), first(rank + 1) - first(rank))
    }

    /// The share of a rank in a piece of all rows.
    fn cut(&self, mut piece: BufferBox, rank: u32) -> BufferBox {
        (piece.start[self.dim], piece.dims[self.dim]) = self.share(rank);
        piece
    }

    /// Whether the share of each rank is contiguous in a buffer.
    fn are_contiguous(&self, tensor: &Tensor) -> bool {
        let all = BufferBox { buffer: 0, start: [0; 4], dims: tensor.dims };
        (0..self.ranks).map(|rank| self.cut(all, rank)).all(|cut| cut.is_empty() || cut.is_contiguous(tensor))
    }

    /// A layout in which shares are contiguous: that of the caller, else the shared dim outermost.
    pub(crate) fn layout(&self, t: &Tensor) -> Tensor {
        let same = like(t, t.dims);
        if self.are_contiguous(&same) {
            return same;
        }
        let [b, h, s, d] = t.dims;
        let strides = if self.dim == 0 { [h * s * d, s * d, d, 1] } else { [s * d, b * s * d, d, 1] };
        Tensor { strides, ..same }
    }

    /// Which rows of a merge over this rank's share count.
    fn counted(&self, rows: Counted, rank: u32) -> Counted {
        let (first, count) = self.share(rank);
        Counted { sequences: (self.dim == 0).then_some((first, first + count)), ..rows }
    }

    /// Where all rows of an output are put together: in the caller's buffer if shares are contiguous there, which needs
    /// no copy.
    fn merged(&self, m: &mut Maker, role: Role, own: BufferBox) -> MergedTensor {
        match m.piece(role) {
            Some(piece) if self.are_contiguous(&m.tensor(piece)) => {
                MergedTensor { own, whole: Some(piece), copied: None }
            }
            Some(piece) => {
                let tensor = m.tensor(own);
                let whole = m.scratch(format!("{role} merged"), tensor);
                MergedTensor { own, whole: Some(whole), copied: Some(piece) }
            }
            None => MergedTensor { own, whole: None, copied: None },
        }
    }

    /// The steps after the launch that made `own`, the partial O and Stats of this rank, in the [layout](Self::layout)
    /// of shares. `rows` tells by rank which rows of its partial result count.
    pub(crate) fn steps(&self, m: &mut Maker, own: [BufferBox; 2], rows: &[Counted]) {
        let rank = m.rank;
        let others = (0..self.ranks).filter(|peer| *peer != rank);
        let [o, stats] = [(Role::O, own[0]), (Role::Stats, own[1])].map(|(role, own)| self.merged(m, role, own));
        m.hand_over(Stream::Compute);
        let (mut moved, mut parts) = (Vec::new(), Vec::new());
        for peer in 0..self.ranks {
            let mine = own.map(|piece| self.cut(piece, rank));
            if peer == rank {
                parts.push((mine[0], mine[1]));
                continue;
            }
            let arriving = ["o", "stats"].map(|name| format!("{name} from rank {peer}"));
            let theirs = [0, 1].map(|at| {
                // The shared dim is outermost, so strides do not depend on its extent.
                let tensor = Tensor { dims: mine[at].dims, ..m.tensor(mine[at]) };
                (!mine[at].is_empty()).then(|| m.scratch(arriving[at].clone(), tensor))
            });
            let sent = own.map(|piece| self.cut(piece, peer));
            moved.extend(sent.into_iter().filter(|p| !p.is_empty()).map(|piece| Transfer { peer, send: true, piece }));
            moved.extend(theirs.into_iter().flatten().map(|piece| Transfer { peer, send: false, piece }));
            parts.extend(theirs[0].zip(theirs[1]));
        }
        m.exchange(moved);
        m.hand_over(Stream::Exchange);
        if self.share(rank).1 > 0 {
            let share = |m: &mut Maker, of: MergedTensor| match of.whole {
                Some(whole) => self.cut(whole, rank),
                None => {
                    let mine = self.cut(of.own, rank);
                    let tensor = Tensor { dims: mine.dims, ..m.tensor(mine) };
                    m.scratch("stats of a share", tensor)
                }
            };
            let (o, stats) = (share(m, o), share(m, stats));
            let sink = m.piece(Role::Sink).map(|sink| if self.dim == 1 { self.cut(sink, rank) } else { sink });
            let rows = rows.iter().map(|rows| self.counted(*rows, rank)).collect();
            m.push(RankStep::Merge { parts, rows, sink, o, stats });
        }
        m.hand_over(Stream::Compute);
        let mut moved = Vec::new();
        for peer in others {
            for whole in [o, stats].into_iter().filter_map(|of| of.whole) {
                let shares = [(true, self.cut(whole, rank)), (false, self.cut(whole, peer))];
                let full = shares.into_iter().filter(|(_, piece)| !piece.is_empty());
                moved.extend(full.map(|(send, piece)| Transfer { peer, send, piece }));
            }
        }
        m.exchange(moved);
        for MergedTensor { own: _, whole, copied } in [o, stats] {
            if let (Some(from), Some(to)) = (whole, copied) {
                m.copy(Stream::Exchange, from, to);
            }
        }
    }
}
