//! What waits for messages that other ranks write into a rank's memory, from the schedule alone. Sends need not wait
//! for what arrives, so another stream waits for arrivals, and the stream of exchanges goes on.

use crate::step::BufferBox;
use crate::{RankStep, Schedule, Stream};

/// The order of a rank's steps and what arrives.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ArrivalOrder {
    /// By exchange: whether its messages may come from the beginning of a run, because no step before it touches their
    /// memory.
    pub(super) early: Vec<bool>,
    /// By step: whether the stream of exchanges waits before it for everything that arrives by then.
    pub(super) joins: Vec<bool>,
    /// By mark: whether it stands for arrivals that the stream of exchanges has not waited for.
    pub(super) marks: Vec<bool>,
}

impl ArrivalOrder {
    pub(super) fn new(schedule: &Schedule, rank: usize) -> ArrivalOrder {
        let mut order = ArrivalOrder::default();
        let mut touched: Vec<BufferBox> = Vec::new();
        let mut arriving: Vec<BufferBox> = Vec::new();
        for step in &schedule.ranks[rank].steps {
            let pieces: Vec<BufferBox> = schedule.pieces(step).into_iter().map(|(piece, _)| piece).collect();
            let meets = |list: &[BufferBox]| pieces.iter().any(|piece| list.iter().any(|other| other.overlaps(piece)));
            let join = step.stream() == Stream::Exchange && meets(&arriving);
            order.joins.push(join);
            if join {
                arriving.clear();
            }
            match step {
                RankStep::Exchange { transfers } => {
                    let received = transfers.iter().filter(|t| !t.send).map(|t| t.piece);
                    let received: Vec<BufferBox> = received.collect();
                    let free = |piece: &BufferBox| !touched.iter().any(|before| before.overlaps(piece));
                    order.early.push(received.iter().all(free));
                    arriving.extend(received);
                }
                RankStep::Record { on, .. } => order.marks.push(*on == Stream::Exchange && !arriving.is_empty()),
                _ => {}
            }
            touched.extend(pieces);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use qkvault_graph::{Attention, BackwardOptions, DType, Valid};

    use super::*;
    use crate::{Scheme, Sharding, schedule};

    fn order(attention: &Valid, scheme: Scheme, rank: usize) -> ArrivalOrder {
        ArrivalOrder::new(&schedule(attention, &Sharding::new(2, scheme)).expect("a schedule"), rank)
    }

    /// Rank 1 waited for rank 0's chunk before it sent its own, and until its own were sent before it computed.
    #[test]
    fn audit_a_gather_sends_before_anything_arrives() {
        let forward = Attention::bshd(1, (8, 8), (768, 768), 64, DType::BF16).causal().with_stats();
        let backward = forward.clone().backward(BackwardOptions::default()).validate().expect("sound");
        let forward = forward.validate().expect("sound");
        for rank in 0..2 {
            let of = order(&forward, Scheme::Gather { groups: 1 }, rank);
            assert_eq!((of.joins.contains(&true), of.early), (false, vec![true; 2]), "rank {rank}");
            let of = order(&backward, Scheme::Gather { groups: 1 }, rank);
            assert_eq!((of.joins.contains(&true), of.early.contains(&false)), (false, false), "rank {rank}");
        }
        // The third group arrives in the memory of the first one, after its launches.
        let of = order(&forward, Scheme::Gather { groups: 4 }, 0);
        assert_eq!(of.early, [true, true, true, false, false]);
    }

    #[test]
    fn a_ring_waits_for_what_it_passes_on() {
        let attention = Attention::bshd(1, (8, 8), (768, 768), 64, DType::BF16).with_stats().validate().expect("sound");
        let made = schedule(&attention, &Sharding::new(3, Scheme::Ring)).expect("a schedule");
        for rank in 0..3 {
            let of = ArrivalOrder::new(&made, rank);
            assert_eq!(of.joins.iter().filter(|join| **join).count(), 1, "rank {rank}: {of:?}");
        }
    }
}
