//! Faults of a schedule that a run on one machine may not show: a step that does not wait for what it reads, exchanges
//! that would wait for each other, messages of different sizes or orders.

use std::collections::VecDeque;

use qkvault_graph::operand;

use crate::{Bind, BufferBox, RankStep, Schedule, Stream, Transfer};

/// What a step reads and writes.
struct Access {
    step: usize,
    stream: Stream,
    piece: BufferBox,
    writes: bool,
    /// The steps of each stream that have happened before, as the number of the last one.
    after: [usize; 3],
    /// The number of the step on its stream.
    number: usize,
}

impl Schedule {
    /// Every fault; none in a schedule that [`crate::schedule`] made. For schedules that are read or written by hand.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for rank in 0..self.ranks.len() {
            self.places(rank, &mut faults);
            if faults.is_empty() {
                self.races(rank, &mut faults);
            }
        }
        self.meetings(&mut faults);
        faults
    }

    /// The pieces of a step, and whether it writes each.
    pub(crate) fn pieces(&self, step: &RankStep) -> Vec<(BufferBox, bool)> {
        match step {
            RankStep::Copy { from, to, .. } => vec![(*from, false), (*to, true)],
            RankStep::Fill { piece, .. } => vec![(*piece, true)],
            RankStep::Exchange { transfers } => transfers.iter().map(|t| (t.piece, !t.send)).collect(),
            RankStep::Launch(launch) => {
                let plan = self.plans.get(launch.plan as usize);
                let output = |role| plan.and_then(|p| operand(p.get(), role)).is_some_and(|o| o.output);
                let piece = |(role, bind): &(_, Bind)| match bind {
                    Bind::Piece(piece) => Some((*piece, output(*role))),
                    Bind::Given(_) | Bind::Int(_) | Bind::Sequences(_) => None,
                };
                launch.binds.iter().filter_map(piece).collect()
            }
            RankStep::Merge { parts, rows: _, sink, o, stats } => {
                let read = parts.iter().flat_map(|(o, stats)| [*o, *stats]).chain(*sink);
                read.map(|piece| (piece, false)).chain([(*o, true), (*stats, true)]).collect()
            }
            RankStep::Sum { parts, rows: _, into } => {
                parts.iter().map(|p| (*p, false)).chain([(*into, true)]).collect()
            }
            RankStep::Keep { into, seed, offset, .. } => vec![(*seed, false), (*offset, false), (*into, true)],
            RankStep::Record { .. } | RankStep::Wait { .. } => Vec::new(),
        }
    }

    /// Pieces outside their buffers, messages that are not contiguous, plans that do not exist.
    fn places(&self, rank: usize, faults: &mut Vec<String>) {
        let buffers = &self.ranks[rank].buffers;
        for (number, step) in self.ranks[rank].steps.iter().enumerate() {
            if let RankStep::Launch(launch) = step
                && launch.plan as usize >= self.plans.len()
            {
                faults.push(format!("rank {rank}, step {number}: there is no plan {}", launch.plan));
            }
            for (piece, _) in self.pieces(step) {
                let buffer = buffers.get(piece.buffer as usize);
                if !buffer.is_some_and(|b| piece.fits(&b.tensor)) {
                    faults.push(format!("rank {rank}, step {number}: {piece:?} is outside its buffer"));
                } else if matches!(step, RankStep::Exchange { .. })
                    && !buffer.is_some_and(|b| piece.is_contiguous(&b.tensor))
                {
                    faults.push(format!("rank {rank}, step {number}: the message {piece:?} is not contiguous"));
                }
            }
        }
    }

    /// Steps of different streams that touch the same memory in no order.
    fn races(&self, rank: usize, faults: &mut Vec<String>) {
        let mut accesses: Vec<Access> = Vec::new();
        let (mut clocks, mut marks) = ([[0; 3]; 3], Vec::new());
        for (step, what) in self.ranks[rank].steps.iter().enumerate() {
            let stream = what.stream();
            let own = stream as usize;
            clocks[own][own] += 1;
            match what {
                RankStep::Record { mark, .. } => {
                    if *mark as usize != marks.len() {
                        faults.push(format!("rank {rank}, step {step}: mark {mark} is recorded out of order"));
                    }
                    marks.push(clocks[own]);
                }
                RankStep::Wait { mark, .. } => match marks.get(*mark as usize) {
                    Some(at) => (0..3).for_each(|s| clocks[own][s] = clocks[own][s].max(at[s])),
                    None => faults.push(format!("rank {rank}, step {step}: mark {mark} is not recorded yet")),
                },
                _ => {}
            }
            for (piece, writes) in self.pieces(what) {
                let now = Access { step, stream, piece, writes, after: clocks[own], number: clocks[own][own] };
                let race = accesses.iter().find(|before| {
                    before.stream != stream
                        && (before.writes || writes)
                        && before.piece.overlaps(&piece)
                        && now.after[before.stream as usize] < before.number
                });
                if let Some(before) = race {
                    let name = &self.ranks[rank].buffers[piece.buffer as usize].name;
                    faults.push(format!("rank {rank}: steps {} and {step} touch {name} in no order", before.step));
                }
                accesses.push(now);
            }
        }
    }

    /// Exchanges that never end: each rank is in one exchange until all its messages have met those of the other side.
    fn meetings(&self, faults: &mut Vec<String>) {
        let exchanges = |rank: &crate::RankSchedule| -> VecDeque<Vec<Transfer>> {
            let of = |step: &RankStep| match step {
                RankStep::Exchange { transfers } => Some(transfers.clone()),
                _ => None,
            };
            rank.steps.iter().filter_map(of).collect()
        };
        let mut waiting: Vec<VecDeque<Vec<Transfer>>> = self.ranks.iter().map(exchanges).collect();
        loop {
            let mut moved = false;
            for rank in 0..waiting.len() {
                if waiting[rank].front().is_some_and(Vec::is_empty) {
                    waiting[rank].pop_front();
                    moved = true;
                }
                // The first message to a peer that is there for it.
                let list = waiting[rank].front().map_or(&[][..], Vec::as_slice);
                let met = list
                    .iter()
                    .enumerate()
                    .filter(|(_, t)| t.send)
                    .find_map(|(at, t)| Some((at, *t, takes(&waiting, rank, t.peer as usize)?)));
                let Some((at, sent, to)) = met else { continue };
                let received = waiting[sent.peer as usize].front_mut().map(|list| list.remove(to));
                waiting[rank].front_mut().map(|list| list.remove(at));
                moved = true;
                let order = |rank: usize, piece: &BufferBox| {
                    let buffer = self.ranks[rank].buffers.get(piece.buffer as usize);
                    let strides = buffer.map_or([0; 4], |b| b.tensor.strides);
                    (0..4).filter(|d| piece.dims[*d] > 1).map(|d| strides[d]).collect::<Vec<_>>()
                };
                let turned = |r: &Transfer| {
                    let same = r.piece.dims == sent.piece.dims;
                    same && order(sent.peer as usize, &r.piece) != order(rank, &sent.piece)
                };
                if received.as_ref().is_some_and(turned) {
                    faults.push(format!("rank {rank} sends rank {} a message in another order of dims", sent.peer));
                }
                if received.is_some_and(|r| r.piece.len() != sent.piece.len()) {
                    faults.push(format!(
                        "rank {rank} sends rank {} a message of another size than it expects",
                        sent.peer
                    ));
                }
            }
            if !moved {
                break;
            }
        }
        for (rank, left) in waiting.iter().enumerate().filter(|(_, left)| !left.is_empty()) {
            faults.push(format!("rank {rank}: {} exchanges never end", left.len()));
        }
    }
}

/// The place of the first message that a rank takes from another one in its present exchange.
fn takes(waiting: &[VecDeque<Vec<Transfer>>], from: usize, by: usize) -> Option<usize> {
    waiting.get(by)?.front()?.iter().position(|t| !t.send && t.peer as usize == from)
}
