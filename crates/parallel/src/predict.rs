//! How long a schedule takes, from the rates of a machine: both streams of each rank with their marks.

use std::fmt;

use qkvault_graph::{Attention, Storage};
use serde::Serialize;

use crate::{GpuCluster, PlanLaunch, RankStep, Schedule, Slice, Stream};

/// What bounds the speed of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    /// Attention itself.
    Compute,
    /// Messages that no launch hides.
    Links,
    /// Copies, sums and merges.
    Memory,
}

/// What a schedule is expected to take. It is arithmetic with sustained rates, not a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Seconds until the slowest rank is done.
    pub seconds: f64,
    /// Seconds of launches on that rank.
    pub compute: f64,
    /// Seconds of exchanges on that rank, hidden or not.
    pub exchange: f64,
    /// Seconds of its copies, sums and merges.
    pub copies: f64,
    /// The ideal: the whole work at the machine's rate, divided by the ranks; as a part of `seconds`.
    pub efficiency: f64,
    /// What costs most besides the ideal.
    pub bound: Bottleneck,
}

impl Schedule {
    /// What the schedule takes on a machine. Ranks are taken to begin together and to meet without waiting.
    #[must_use]
    pub fn estimate(&self, machine: &GpuCluster) -> Estimate {
        let rate = if self.attention.get().is_backward() { machine.backward } else { machine.forward };
        let ranks = (0..self.ranks.len()).map(|rank| self.rank_seconds(rank, machine, rate));
        let slowest = ranks.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
        let (seconds, compute, exchange, copies) = slowest;
        let ideal = within_room(self.attention.get()) / rate / self.ranks.len().max(1) as f64;
        let exposed = (seconds - compute - copies).max(0.0);
        let bound = if exposed > copies && exposed > 0.1 * ideal {
            Bottleneck::Links
        } else if copies > 0.1 * ideal {
            Bottleneck::Memory
        } else {
            Bottleneck::Compute
        };
        Estimate { seconds, compute, exchange, copies, efficiency: (ideal / seconds).min(1.0), bound }
    }

    /// Floating-point operations of a launch, at most. Of two runs of tokens that share none, a single packed document
    /// has parts in both.
    pub(crate) fn flops_of(&self, launch: &PlanLaunch) -> f64 {
        let a = self.plans[launch.plan as usize].get();
        let apart = |one: (i64, i64), other: (i64, i64)| one.1 <= other.0 || other.1 <= one.0;
        match launch.slice {
            Some(Slice::Pair { queries, keys, square: true }) if apart(queries, keys) => a.flops() / a.batch() as f64,
            _ => within_room(a),
        }
    }

    /// Seconds of a rank: in all, of launches, of exchanges, of copies.
    fn rank_seconds(&self, rank: usize, machine: &GpuCluster, rate: f64) -> (f64, f64, f64, f64) {
        let of = &self.ranks[rank];
        let bytes = |p: &crate::BufferBox| (p.len() * of.buffers[p.buffer as usize].tensor.dtype.size() as i64) as f64;
        let (mut clocks, mut marks) = ([0.0_f64; 2], Vec::new());
        let (mut compute, mut exchange, mut copies) = (0.0, 0.0, 0.0);
        for step in &of.steps {
            // Launches beside each other share the GPU.
            let on = step.stream();
            let clock = usize::from(on == Stream::Exchange);
            let touched = match step {
                RankStep::Copy { from, to, .. } => bytes(from) + bytes(to),
                RankStep::Fill { piece, .. } | RankStep::Keep { into: piece, .. } => bytes(piece),
                RankStep::Sum { parts, rows: _, into } => parts.iter().map(bytes).sum::<f64>() + bytes(into),
                RankStep::Merge { parts, rows: _, sink: _, o, stats: _ } => {
                    parts.iter().map(|(o, stats)| bytes(o) + bytes(stats)).sum::<f64>() + bytes(o)
                }
                _ => 0.0,
            };
            let seconds = match step {
                RankStep::Exchange { transfers } => {
                    let side =
                        |send: bool| transfers.iter().filter(|t| t.send == send).map(|t| bytes(&t.piece)).sum::<f64>();
                    let seconds = machine.exchange + side(true).max(side(false)) / machine.link;
                    exchange += seconds;
                    seconds
                }
                RankStep::Launch(launch) => {
                    let seconds = machine.launch + self.flops_of(launch) / rate;
                    compute += seconds;
                    seconds
                }
                RankStep::Record { .. } => {
                    marks.push(clocks[clock]);
                    0.0
                }
                RankStep::Wait { mark, .. } => {
                    let at = marks.get(*mark as usize).copied().unwrap_or(0.0);
                    clocks[clock] = clocks[clock].max(at);
                    0.0
                }
                _ => {
                    let seconds = machine.copy + touched / machine.memory;
                    if on != Stream::Exchange {
                        copies += seconds;
                    }
                    seconds
                }
            };
            clocks[clock] += seconds;
        }
        (clocks[0].max(clocks[1]), compute, exchange, copies)
    }
}

/// Floating-point operations of an attention: of packed documents as many as have room.
fn within_room(a: &Attention) -> f64 {
    let (documents, (s_q, s_kv)) = (a.batch() as f64, a.seq());
    let filled = |storage: Storage, longest: i64| match storage {
        Storage::Varlen { tokens } => (tokens as f64 / (longest as f64 * documents)).min(1.0),
        Storage::Dense | Storage::Paged { .. } => 1.0,
    };
    a.flops() * filled(a.q.storage, s_q).min(filled(a.k.storage, s_kv))
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Bottleneck::Compute => "attention itself",
            Bottleneck::Links => "messages between GPUs",
            Bottleneck::Memory => "copies, sums and merges",
        })
    }
}

impl fmt::Display for Estimate {
    /// `1.82 ms, 0.95 of the ideal, bound by attention itself`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Estimate { seconds, compute: _, exchange: _, copies: _, efficiency, bound } = self;
        write!(f, "{:.3} ms, {efficiency:.2} of the ideal, bound by {bound}", seconds * 1e3)
    }
}
