//! The merges, sums, copies and fills of a schedule as descriptions, which have keys and plans like attentions.

use qkvault_graph::{Combination, Partial, Refusal, Role, Storage, Tensor, ValidCombination};

use crate::Schedule;
use crate::step::{Piece, Rank, Step};

/// A combination with the piece of each operand.
pub type Combined = (ValidCombination, Vec<(Role, Piece)>);

impl Rank {
    /// The combination that a step computes, with the piece of each of its operands; `None` for a launch of attention,
    /// an exchange or a mark.
    ///
    /// # Errors
    ///
    /// A combination that is not valid, such as one of more than [`MOST_PARTS`](qkvault_graph::MOST_PARTS) parts.
    pub fn combination(&self, step: &Step) -> Option<Result<Combined, Refusal>> {
        let of = |piece: &Piece| {
            let tensor = self.buffers[piece.buffer as usize].tensor;
            Tensor { dims: piece.dims, storage: Storage::Dense, ..tensor }
        };
        let (described, pieces) = match step {
            Step::Copy { from, to, .. } => {
                let described = Combination::Copy { from: of(from), to: of(to) };
                (described, vec![(Role::Part(0), *from), (Role::Into, *to)])
            }
            Step::Fill { piece, hidden, .. } => {
                (Combination::Fill { to: of(piece), hidden: *hidden }, vec![(Role::Into, *piece)])
            }
            Step::Merge { parts, sink, o, stats } => {
                let partial = |(o, stats): &(Piece, Piece)| Partial { o: of(o), stats: of(stats) };
                let described = Combination::Merge {
                    parts: parts.iter().map(partial).collect(),
                    sink: sink.is_some(),
                    o: of(o),
                    stats: Some(of(stats)),
                };
                let of_parts =
                    (0..).zip(parts).flat_map(|(n, (o, stats))| [(Role::Part(n), *o), (Role::PartStats(n), *stats)]);
                let mut pieces = vec![(Role::O, *o), (Role::Stats, *stats)];
                pieces.extend(of_parts.chain(sink.map(|sink| (Role::Sink, sink))));
                (described, pieces)
            }
            Step::Sum { parts, into } => {
                let described = Combination::Sum { parts: parts.iter().map(of).collect(), into: of(into) };
                let mut pieces = vec![(Role::Into, *into)];
                pieces.extend((0..).zip(parts).map(|(n, part)| (Role::Part(n), *part)));
                (described, pieces)
            }
            Step::Exchange { .. } | Step::Launch(_) | Step::Record { .. } | Step::Wait { .. } => return None,
        };
        Some(described.validate().map(|valid| (valid, pieces)))
    }
}

impl Schedule {
    /// The combinations of all ranks, each once: with [`Schedule::plans`] all that a launch needs plans for.
    ///
    /// # Errors
    ///
    /// As [`Rank::combination`].
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
