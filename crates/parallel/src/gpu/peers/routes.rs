//! Where in the other ranks' memory the messages of a rank go, from the schedule alone.

use super::super::layout::{RankLayout, Where};
use super::super::prepare::message;
use crate::step::RankStep;
use crate::{Schedule, Transfer};

/// What one exchange of a rank writes and gets.
#[derive(Debug, Default)]
pub(super) struct Route {
    /// Ranks that are written, and where: bytes from the start of their memory, for each message.
    pub(super) sends: Vec<(Meeting, Vec<u64>)>,
    /// Ranks that write this one.
    pub(super) receives: Vec<Meeting>,
}

/// An exchange between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    pub(super) peer: usize,
    /// How many exchanges between both are before it.
    pub(super) number: usize,
}

/// Exchanges of the rank that has most: two ranks have no more between them.
pub(in super::super) fn most_meetings(schedule: &Schedule) -> usize {
    (0..schedule.ranks.len()).map(|rank| exchanges(schedule, rank).count()).max().unwrap_or(0)
}

/// The routes of every exchange of a rank. `None` where a message arrives in an operand, which is memory of the
/// receiver's caller, or both sides do not list the same messages.
pub(super) fn routes(schedule: &Schedule, own: usize) -> Option<Vec<Route>> {
    let size = schedule.ranks.len();
    let places: Vec<Vec<Option<u64>>> = schedule.ranks.iter().map(|rank| RankLayout::new(rank).buffers).collect();
    let bytes = |rank: usize, list: &[&Transfer]| -> Vec<u64> {
        list.iter().map(|t| message(&schedule.ranks[rank], t).2).collect()
    };
    // How many exchanges with each other rank have been met.
    let mut met = vec![0; size];
    let mut all = Vec::new();
    for transfers in exchanges(schedule, own) {
        let mut route = Route::default();
        for peer in (0..size).filter(|peer| *peer != own) {
            let (sent, received) = (with(transfers, peer, true), with(transfers, peer, false));
            if sent.is_empty() && received.is_empty() {
                continue;
            }
            // The same exchange on the other side, as a communicator matches both.
            let mut theirs = exchanges(schedule, peer).filter(|list| list.iter().any(|t| t.peer as usize == own));
            let theirs = theirs.nth(met[peer])?;
            let meeting = Meeting { peer, number: met[peer] };
            met[peer] += 1;
            let (takes, gives) = (with(theirs, own, false), with(theirs, own, true));
            if bytes(own, &sent) != bytes(peer, &takes) || bytes(own, &received) != bytes(peer, &gives) {
                return None;
            }
            let place = |t: &&Transfer| match message(&schedule.ranks[peer], t).1 {
                Where::Buffer { buffer, offset } => Some(places[peer][buffer]? + offset),
                Where::Block { offset } => Some(offset),
            };
            if !sent.is_empty() {
                route.sends.push((meeting, takes.iter().map(place).collect::<Option<_>>()?));
            }
            if !received.is_empty() {
                route.receives.push(meeting);
            }
        }
        all.push(route);
    }
    Some(all)
}

/// The exchanges of a rank, in their order.
fn exchanges(schedule: &Schedule, rank: usize) -> impl Iterator<Item = &Vec<Transfer>> {
    schedule.ranks[rank].steps.iter().filter_map(|step| match step {
        RankStep::Exchange { transfers } => Some(transfers),
        _ => None,
    })
}

/// The messages between a rank and a peer in one direction.
fn with(transfers: &[Transfer], peer: usize, send: bool) -> Vec<&Transfer> {
    transfers.iter().filter(|t| t.peer as usize == peer && t.send == send).collect()
}

#[cfg(test)]
mod tests {
    use qkvault_graph::{Attention, BackwardOptions, DType, Tensor, Valid};

    use super::*;
    use crate::{Scheme, Sharding, schedule};

    /// Sends of a rank, and those of others to it, by exchange.
    fn counted(attention: &Valid, sharding: Sharding) {
        let made = schedule(attention, &sharding).unwrap_or_else(|e| panic!("{sharding}: {e}"));
        let all: Option<Vec<Vec<Route>>> = (0..made.ranks.len()).map(|rank| routes(&made, rank)).collect();
        let all = all.unwrap_or_else(|| panic!("{sharding}, {attention}: a message has no place"));
        for (rank, list) in all.iter().enumerate() {
            let block = RankLayout::new(&made.ranks[rank]).bytes;
            let mut arrive: Vec<u64> = Vec::new();
            for route in all.iter().flatten() {
                let here = route.sends.iter().filter(|(to, _)| to.peer == rank);
                arrive.extend(here.flat_map(|(_, places)| places));
            }
            assert!(arrive.iter().all(|place| *place < block), "{sharding}, {attention}");
            let waits: usize = list.iter().map(|route| route.receives.len()).sum();
            let sends = all.iter().flatten().flat_map(|route| &route.sends).filter(|(to, _)| to.peer == rank).count();
            assert_eq!(waits, sends, "{sharding}, {attention}: flags of rank {rank}");
            // Every flag has one exchange.
            for (other, theirs) in all.iter().enumerate().filter(|(other, _)| *other != rank) {
                let waits = list.iter().flat_map(|route| &route.receives).filter(|of| of.peer == other);
                let sends = theirs.iter().flat_map(|route| &route.sends).filter(|(to, _)| to.peer == rank);
                let (waits, sends): (Vec<usize>, Vec<usize>) =
                    (waits.map(|of| of.number).collect(), sends.map(|(to, _)| to.number).collect());
                assert!(waits.is_sorted_by(|a, b| a < b) && waits.iter().all(|n| *n < most_meetings(&made)));
                assert_eq!(waits, sends, "{sharding}, {attention}: ranks {rank} and {other}");
            }
        }
    }

    /// Every scheme, forward and backward: all messages arrive in memory of the ranks, and every flag that is set is
    /// waited for.
    #[test]
    fn every_message_has_a_place_in_the_receivers_memory() {
        let forward = Attention::bshd(1, (8, 8), (768, 768), 64, DType::BF16).causal().with_stats();
        let backward = forward.clone().backward(BackwardOptions::default()).validate().expect("sound");
        let forward = forward.validate().expect("sound");
        for ranks in [2, 3, 4, 8] {
            for scheme in [Scheme::Gather { groups: 1 }, Scheme::Gather { groups: 4 }, Scheme::Ring, Scheme::Heads] {
                if ranks == 3 && scheme == Scheme::Heads {
                    continue;
                }
                counted(&forward, Sharding::new(ranks, scheme));
                counted(&backward, Sharding::new(ranks, scheme));
            }
            let q = Tensor::bshd(8, 8, 1, 64, DType::BF16);
            let kv = Tensor::bhsd(8, 8, 768, 64, DType::BF16);
            let decode = Attention::forward(q, kv, kv, q).with_stats().validate().expect("sound");
            let sharding = Sharding::new(ranks, Scheme::Decode { run: 64 });
            match ranks {
                2 => counted(&decode, sharding),
                // What is merged by parts arrives in the operands of the others.
                _ => assert!(routes(&schedule(&decode, &sharding).expect("a schedule"), 0).is_none()),
            }
        }
    }
}
