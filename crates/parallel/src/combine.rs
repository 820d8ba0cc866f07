//! The merges, sums, copies, fills and dropout masks of a schedule as descriptions, which have keys and plans like
//! attentions.

use qkvault_graph::{Combination, Partial, Refusal, Role, Storage, Tensor, ValidCombination};

use crate::step::{Bind, BufferBox, PerSequence, RankSchedule, RankStep};
use crate::{Counted, Schedule};

/// A combination with what each operand is bound to.
pub type Combined = (ValidCombination, Vec<(Role, Bind)>);

impl RankSchedule {
    /// The combination that a step computes, with what each of its operands is bound to; `None` for a launch of
    /// attention, an exchange or a mark.
    ///
    /// # Errors
    ///
    /// A combination that is not valid, such as one of more than [`MOST_PARTS`](qkvault_graph::MOST_PARTS) parts.
    pub fn combination(&self, step: &RankStep) -> Option<Result<Combined, Refusal>> {
        let of = |piece: &BufferBox| {
            let tensor = self.buffers[piece.buffer as usize].tensor;
            Tensor { dims: piece.dims, storage: Storage::Dense, ..tensor }
        };
        let rows_of = |rows: &[Counted]| -> Vec<(Role, Bind)> {
            let bind =
                |(n, counted): (u16, &Counted)| (Role::PartRows(n), Bind::Sequences(PerSequence::Rows(*counted)));
            (0..).zip(rows).map(bind).collect()
        };
        let (described, pieces, rows) = match step {
            RankStep::Copy { from, to, .. } => {
                let described = Combination::Copy { from: of(from), to: of(to) };
                (described, vec![(Role::Part(0), *from), (Role::Into, *to)], Vec::new())
            }
            RankStep::Fill { piece, hidden, .. } => {
                (Combination::Fill { to: of(piece), hidden: *hidden }, vec![(Role::Into, *piece)], Vec::new())
            }
            RankStep::Merge { parts, rows, sink, o, stats } => {
                let partial = |(o, stats): &(BufferBox, BufferBox)| Partial { o: of(o), stats: of(stats) };
                let described = Combination::Merge {
                    parts: parts.iter().map(partial).collect(),
                    rows: !rows.is_empty(),
                    sink: sink.is_some(),
                    o: of(o),
                    stats: Some(of(stats)),
                };
                let of_parts =
                    (0..).zip(parts).flat_map(|(n, (o, stats))| [(Role::Part(n), *o), (Role::PartStats(n), *stats)]);
                let mut pieces = vec![(Role::O, *o), (Role::Stats, *stats)];
                pieces.extend(of_parts.chain(sink.map(|sink| (Role::Sink, sink))));
                (described, pieces, rows_of(rows))
            }
            RankStep::Sum { parts, rows, into } => {
                let summed = parts.iter().map(of).collect();
                let described = Combination::Sum { parts: summed, rows: !rows.is_empty(), into: of(into) };
                let mut pieces = vec![(Role::Into, *into)];
                pieces.extend((0..).zip(parts).map(|(n, part)| (Role::Part(n), *part)));
                (described, pieces, rows_of(rows))
            }
            RankStep::Keep { into, seed, offset, first, heads, below } => {
                let described = Combination::Keep { to: of(into), heads: *heads, below: *below };
                let pieces = vec![(Role::Into, *into), (Role::DropoutSeed, *seed), (Role::DropoutOffset, *offset)];
                let number = |(n, first): (u16, &i64)| (Role::Scalar(n), Bind::Int(*first as i32));
                (described, pieces, (0..).zip(first).map(number).collect())
            }
            RankStep::Exchange { .. } | RankStep::Launch(_) | RankStep::Record { .. } | RankStep::Wait { .. } => {
                return None;
            }
        };
        let mut binds: Vec<_> = pieces.into_iter().map(|(role, piece)| (role, Bind::Piece(piece))).collect();
        binds.extend(rows);
        Some(described.validate().map(|valid| (valid, binds)))
    }
}

impl Schedule {
    /// The combinations of all ranks, each once: with [`Schedule::plans`] all that a launch needs plans for.
    ///
    /// # Errors
    ///
    /// As [`RankSchedule::combination`].
    pub fn combinations(&self) -> Result<Vec<ValidCombination>, Refusal> {
        let mut seen = std::collections::HashSet::new();
        let mut list = Vec::new();
        for rank in &self.ranks {
            for found in rank.steps.iter().filter_map(|step| rank.combination(step)) {
                let (valid, _) = found?;
                if seen.insert(valid.key()) {
                    list.push(valid);
                }
            }
        }
        Ok(list)
    }
}
