//! Who is the cause of a wait: ranks that wait ask the store again and again, so one that hangs is not heard of.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// When a rank was heard of last, and how many exchanges it had begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub(super) at: Instant,
    pub(super) begun: u64,
}

/// The ranks that may be the cause of a wait that rank `by` reports: one, where something sets it apart from the
/// others.
///
/// A rank that waits for its GPU is heard of every 20 ms, so one that was not heard of for half of the wait does
/// something else: it hangs, or it has not come. Of several the one that has begun fewer exchanges than the rank that
/// reports is it, and of these the one that is silent the longest. If all are heard of, one that has begun fewer
/// exchanges than the others is it. Otherwise any of them may be: a GPU hangs and its host does not.
pub(super) fn guilty(by: u32, waited: Duration, now: Instant, heard: &HashMap<u32, Heard>) -> Vec<u32> {
    let own = heard.get(&by).map_or(0, |own| own.begun);
    let mut others: Vec<(u32, Heard)> = heard.iter().map(|(n, h)| (*n, *h)).filter(|(n, _)| *n != by).collect();
    others.sort_by_key(|(rank, _)| *rank);
    let silent = |h: &Heard| now.saturating_duration_since(h.at) >= waited / 2;
    let longest = others.iter().filter(|(_, h)| silent(h)).min_by_key(|(_, h)| (h.begun >= own, h.at));
    if let Some((rank, _)) = longest {
        return vec![*rank];
    }
    let least = others.iter().map(|(_, h)| h.begun).min().unwrap_or(own);
    let behind = others.iter().filter(|(_, h)| h.begun == least && least < own);
    let behind: Vec<u32> = behind.map(|(rank, _)| *rank).collect();
    if behind.is_empty() { others.into_iter().map(|(rank, _)| rank).collect() } else { behind }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks by what was heard of each: milliseconds ago, and exchanges.
    fn guilty_of(by: u32, waited: u64, ranks: &[(u64, u64)]) -> Vec<u32> {
        let now = Instant::now() + Duration::from_secs(60);
        let heard = |&(ago, begun): &(u64, u64)| Heard { at: now - Duration::from_millis(ago), begun };
        guilty(by, Duration::from_millis(waited), now, &(0..).zip(ranks.iter().map(heard)).collect())
    }

    #[test]
    fn a_rank_that_is_not_heard_of_is_the_cause_and_not_one_that_waits_too() {
        for hung in 0..4 {
            for by in (0..4).filter(|by| *by != hung) {
                let mut ranks = [(15, 9), (3, 9), (20, 9), (0, 9)];
                ranks[hung as usize] = (2_100, 9);
                assert_eq!(guilty_of(by, 2_000, &ranks), [hung]);
            }
        }
    }

    #[test]
    fn a_rank_behind_is_the_cause_before_one_that_does_something_else() {
        // Rank 3 has begun all exchanges and is busy elsewhere; rank 1 has not begun the last one.
        assert_eq!(guilty_of(0, 1_000, &[(5, 9), (1_500, 8), (10, 9), (4_000, 9)]), [1]);
        assert_eq!(guilty_of(0, 1_000, &[(5, 9), (10, 8), (10, 9)]), [1], "it waits for something else");
    }

    #[test]
    fn where_all_hosts_live_any_gpu_may_hang() {
        assert_eq!(guilty_of(1, 1_000, &[(5, 9), (0, 9), (10, 9)]), [0, 2]);
    }
}
