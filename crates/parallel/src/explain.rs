//! A schedule in words, and what it costs: bytes, memory and work of each rank.

use std::fmt::Write as _;

use crate::{Bind, BufferBox, RankStep, Schedule, Slice, Stream};

/// What a rank moves, keeps and computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Bytes that it sends.
    pub sent: i64,
    /// Bytes that it receives.
    pub received: i64,
    /// Messages that it sends and receives.
    pub messages: i64,
    /// Bytes of memory besides the caller's operands and the workspaces of plans.
    pub scratch: i64,
    /// Bytes that copies, sums, merges and dropout masks read and write.
    pub touched: i64,
    /// Launches of attention.
    pub launches: i64,
    /// Floating-point operations of these launches; of packed documents as many as have room.
    pub flops: f64,
}

impl Schedule {
    /// What one rank moves, keeps and computes.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    #[must_use]
    pub fn costs(&self, rank: u32) -> Costs {
        let rank = &self.ranks[rank as usize];
        let bytes = |piece: &BufferBox| piece.len() * rank.buffers[piece.buffer as usize].tensor.dtype.size() as i64;
        let scratch = rank.buffers.iter().filter(|b| b.operand.is_none());
        let mut costs = Costs { scratch: scratch.filter_map(|b| b.tensor.bytes()).sum(), ..Costs::default() };
        for step in &rank.steps {
            match step {
                RankStep::Exchange { transfers } => {
                    for t in transfers {
                        costs.messages += 1;
                        *(if t.send { &mut costs.sent } else { &mut costs.received }) += bytes(&t.piece);
                    }
                }
                RankStep::Launch(launch) => {
                    costs.launches += 1;
                    costs.flops += self.flops_of(launch);
                }
                RankStep::Copy { from, to, .. } => costs.touched += bytes(from) + bytes(to),
                RankStep::Fill { piece, .. } | RankStep::Keep { into: piece, .. } => costs.touched += bytes(piece),
                RankStep::Sum { parts, rows: _, into } => {
                    costs.touched += parts.iter().map(bytes).sum::<i64>() + bytes(into)
                }
                RankStep::Merge { parts, rows: _, sink: _, o, stats } => {
                    let read: i64 = parts.iter().map(|(o, stats)| bytes(o) + bytes(stats)).sum();
                    costs.touched += read + bytes(o) + bytes(stats);
                }
                RankStep::Record { .. } | RankStep::Wait { .. } => {}
            }
        }
        costs
    }

    /// The schedule in words: plans, buffers and steps of each rank.
    #[must_use]
    pub fn explain(&self) -> String {
        let mut text = format!("{}\n{}\ndigest {}\n", self.attention.get(), self.sharding, self.digest());
        for (number, plan) in self.plans.iter().enumerate() {
            let _ = writeln!(text, "plan {number}: {}", plan.get());
        }
        for (number, rank) in (0..).zip(&self.ranks) {
            let Costs { sent, received, messages, scratch, touched: _, launches, flops } = self.costs(number);
            let _ = writeln!(
                text,
                "rank {number}: sends {sent} and receives {received} bytes in {messages} messages, keeps {scratch} bytes, \
                 computes {flops:.3e} operations in {launches} launches"
            );
            for step in &rank.steps {
                let on = match step.stream() {
                    Stream::Compute => "compute ",
                    Stream::Exchange => "exchange",
                    Stream::Beside => "beside  ",
                };
                let _ = writeln!(text, "  {on}  {}", self.words(number, step));
            }
        }
        text
    }

    fn words(&self, rank: u32, step: &RankStep) -> String {
        let piece = |p: &BufferBox| self.piece(rank, p);
        let list = |pieces: Vec<String>| pieces.join(" + ");
        match step {
            RankStep::Copy { from, to, .. } => format!("copy {} to {}", piece(from), piece(to)),
            RankStep::Fill { piece: p, hidden, .. } => {
                format!("fill {} with {}", piece(p), if *hidden { "minus infinity" } else { "zeros" })
            }
            RankStep::Exchange { transfers } => {
                let one = |t: &crate::Transfer| {
                    format!("{} {} {}", if t.send { "send" } else { "receive" }, piece(&t.piece), peer(t))
                };
                format!("exchange: {}", transfers.iter().map(one).collect::<Vec<_>>().join(", "))
            }
            RankStep::Launch(launch) => {
                let bound = |(role, bind): &(_, Bind)| match bind {
                    Bind::Piece(p) => Some(format!("{role} = {}", piece(p))),
                    Bind::Int(n) => Some(format!("{role} = {n}")),
                    Bind::Sequences(which) => Some(format!("{role} = {which:?}")),
                    Bind::Given(_) => None,
                };
                let binds: Vec<String> = launch.binds.iter().filter_map(bound).collect();
                let slice = launch.slice.filter(|s| *s != Slice::Whole).map_or(String::new(), |s| format!(" of {s:?}"));
                format!("launch plan {}{slice}: {}", launch.plan, binds.join(", "))
            }
            RankStep::Merge { parts, rows, sink, o, stats: _ } => {
                let parts = list(parts.iter().map(|(o, _)| piece(o)).collect());
                format!("merge {}{parts}{} into {}", counted(rows), sink.map_or("", |_| " and the sink"), piece(o))
            }
            RankStep::Sum { parts, rows, into } => {
                format!("sum {}{} into {}", counted(rows), list(parts.iter().map(piece).collect()), piece(into))
            }
            RankStep::Keep { into, first: [head, query, key], .. } => {
                format!("draw {} from head {head}, query {query} and key {key} on", piece(into))
            }
            RankStep::Record { mark, .. } => format!("mark {mark}"),
            RankStep::Wait { mark, .. } => format!("wait for {mark}"),
        }
    }

    /// `k gathered 0[tokens 16..32]`: the dims that are not whole.
    fn piece(&self, rank: u32, piece: &BufferBox) -> String {
        let buffer = &self.ranks[rank as usize].buffers[piece.buffer as usize];
        let cut = |dim: usize| {
            let (start, end) = (piece.start[dim], piece.start[dim] + piece.dims[dim]);
            let name = ["batch", "heads", "tokens", "elements"][dim];
            ((start, end) != (0, buffer.tensor.dims[dim])).then(|| format!("{name} {start}..{end}"))
        };
        let cuts: Vec<String> = (0..4).filter_map(cut).collect();
        if cuts.is_empty() { buffer.name.clone() } else { format!("{}[{}]", buffer.name, cuts.join(", ")) }
    }
}

fn counted(rows: &[crate::Counted]) -> &'static str {
    if rows.is_empty() { "" } else { "the rows that count of " }
}

fn peer(t: &crate::Transfer) -> String {
    format!("{} rank {}", if t.send { "to" } else { "from" }, t.peer)
}
