//! Which sharding to take: every one that is possible, with what it takes, and the reason for the choice.

use std::fmt::Write as _;

use crate::codes;
use qkvault_graph::{Refusal, Storage, Valid};

use crate::{Estimate, GpuCluster, Schedule, Scheme, Sharding, schedule};

/// A sharding among others.
#[derive(Clone, Debug)]
pub struct ShardingChoice {
    /// The schedule of the sharding that is taken.
    pub schedule: Schedule,
    /// What it is expected to take.
    pub estimate: Estimate,
    /// The other shardings: what they would take, or why they are not possible.
    pub others: Vec<(Sharding, Result<Estimate, Refusal>)>,
}

/// What a scheme must be faster by to be taken before one that is listed earlier: estimates are no better than that.
const MARGIN: f64 = 0.03;

/// The shardings that an attention may have, the most precise and simplest first.
fn candidates(attention: &Valid, ranks: u32) -> Vec<Sharding> {
    let a = attention.get();
    let cached = a.q.dims[2] * i64::from(ranks) * 4 <= a.k.dims[2] && !a.is_backward();
    let page = match a.k.storage {
        Storage::Paged { page_size, .. } => page_size as u32,
        Storage::Dense | Storage::Varlen { .. } => 64,
    };
    let decode = Sharding::new(ranks, Scheme::Decode { run: page });
    if cached || matches!(a.k.storage, Storage::Paged { .. }) {
        return vec![decode];
    }
    let (_, h_k, h_v) = a.heads();
    let groups = (1..=8).filter(|groups| h_k % groups == 0 && h_v % groups == 0);
    let gather = groups.map(|groups| Sharding::new(ranks, Scheme::Gather { groups: groups as u32 }));
    gather.chain([Scheme::Heads, Scheme::Ring].map(|scheme| Sharding::new(ranks, scheme))).collect()
}

/// The sharding that is expected to be the fastest on a machine.
///
/// A gather has no merge and rounds each gradient once, so another scheme is taken only if it is clearly faster.
///
/// # Errors
///
/// The reasons of every scheme, if none is possible.
pub fn choose(attention: &Valid, ranks: u32, machine: &GpuCluster) -> Result<ShardingChoice, Refusal> {
    choose_among(attention, &candidates(attention, ranks), machine)
}

/// The sharding of a list that is expected to be the fastest on a machine, as [`choose`] takes it.
///
/// # Errors
///
/// The reasons of every sharding, if none is possible.
pub fn choose_among(
    attention: &Valid,
    shardings: &[Sharding],
    machine: &GpuCluster,
) -> Result<ShardingChoice, Refusal> {
    let mut best: Option<(Schedule, Estimate)> = None;
    let mut others = Vec::new();
    let mut refused: Option<Refusal> = None;
    for &sharding in shardings {
        match schedule(attention, &sharding) {
            Ok(made) => {
                let estimate = made.estimate(machine);
                let before = best.as_ref().map_or(f64::INFINITY, |(_, best)| best.seconds);
                if estimate.seconds < before * (1.0 - MARGIN) {
                    if let Some((made, estimate)) = best.replace((made, estimate)) {
                        others.push((made.sharding, Ok(estimate)));
                    }
                } else {
                    others.push((sharding, Ok(estimate)));
                }
            }
            Err(refusal) => {
                refused = Some(match refused {
                    None => refusal.clone(),
                    Some(before) => before.and(refusal.clone()),
                });
                others.push((sharding, Err(refusal)));
            }
        }
    }
    match (best, refused) {
        (Some((schedule, estimate)), _) => Ok(ShardingChoice { schedule, estimate, others }),
        (None, Some(refusal)) => Err(refusal),
        (None, None) => Err(codes::SHARD_RANKS.reason("no sharding").into()),
    }
}

impl ShardingChoice {
    /// The choice in words: the sharding, and what the others would take or why they are not possible.
    #[must_use]
    pub fn explain(&self) -> String {
        let mut text = format!("{}: {}", self.schedule.sharding, self.estimate);
        for (sharding, estimate) in &self.others {
            let _ = match estimate {
                Ok(estimate) => write!(text, "\n  not {sharding}: {estimate}"),
                Err(refusal) => {
                    let codes: Vec<&str> = refusal.reasons().iter().map(|r| r.code.as_str()).collect();
                    write!(text, "\n  not {sharding}: {}", codes.join(", "))
                }
            };
        }
        text
    }
}
