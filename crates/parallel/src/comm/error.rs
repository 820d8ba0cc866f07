//! What is known when ranks do not come together.

use std::time::Duration;

use crate::codes;
use qkvault_graph::Reason;

/// Why an exchange cannot happen. Each kind names the rank that is the cause, if one is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// A rank has ended, or has ended its communicator.
    #[error("rank {rank} is gone: {how}; {}", codes::RANKS_GONE.fix())]
    Gone {
        /// The rank.
        rank: u32,
        /// How that is known.
        how: String,
    },
    /// Ranks have not come within the deadline.
    #[error("{} has not come within {waited:?} to {what}; {}", listed(ranks), codes::RANKS_LATE.fix())]
    Late {
        /// The ranks that are waited for.
        ranks: Vec<u32>,
        /// What they have not come to.
        what: String,
        /// How long this rank has waited.
        waited: Duration,
    },
    /// A rank has something else than the others.
    #[error("rank {rank} has {what} {theirs}, the others have {ours}; {}", codes::RANKS_DIFFER.fix())]
    Differs {
        /// The rank.
        rank: u32,
        /// What differs.
        what: String,
        /// What that rank has.
        theirs: String,
        /// What most ranks have.
        ours: String,
    },
    /// A number of ranks, or a message, has another size.
    #[error("{what}: {given}, but {expected} is expected{}; {}", of_rank(*rank), codes::RANKS_SIZE.fix())]
    Size {
        /// The rank that it came from, if it came from one.
        rank: Option<u32>,
        /// What it is.
        what: String,
        /// The size that came.
        given: u64,
        /// The size that this rank expects.
        expected: u64,
    },
    /// A message is longer than its communicator carries.
    #[error("{what} has {bytes} bytes, and the store carries {most} at most; {}", codes::RANKS_LONG.fix())]
    Long {
        /// The message.
        what: String,
        /// Its bytes.
        bytes: u64,
        /// The most that are carried.
        most: u64,
    },
    /// Ranks that meet have no secret, a bad one, or different ones.
    #[error("{what}; {}", codes::RANKS_SECRET.fix())]
    Secret {
        /// What is missing or wrong; never the secret.
        what: String,
    },
    /// The environment does not say where the ranks meet.
    #[error("{what}; {}", codes::RANKS_ADDRESS.fix())]
    Address {
        /// What is missing or wrong.
        what: String,
    },
    /// NCCL is missing or too old.
    #[error("{what}; {}", codes::NCCL_LIBRARY.fix())]
    Library {
        /// What was tried.
        what: String,
    },
    /// A call of NCCL has failed.
    #[error("{call} has failed: {what}; {}", codes::NCCL_CALL.fix())]
    Call {
        /// The function.
        call: &'static str,
        /// NCCL's own words.
        what: String,
    },
}

impl CommError {
    /// What rank `own` of `size` says when it knows of no rank that is set apart from the others.
    pub(crate) fn late_others(size: u32, own: u32, what: &str, waited: Duration) -> CommError {
        let ranks = (0..size).filter(|rank| *rank != own).collect();
        CommError::Late { ranks, what: what.to_owned(), waited }
    }

    /// The rank that is the cause, if one is.
    #[must_use]
    pub fn rank(&self) -> Option<u32> {
        match self {
            CommError::Gone { rank, .. } | CommError::Differs { rank, .. } => Some(*rank),
            CommError::Late { ranks, .. } => ranks.first().copied(),
            CommError::Size { rank, .. } => *rank,
            CommError::Long { .. }
            | CommError::Secret { .. }
            | CommError::Address { .. }
            | CommError::Library { .. }
            | CommError::Call { .. } => None,
        }
    }

    /// The reason, as the registry has it.
    #[must_use]
    pub fn reason(&self) -> Reason {
        let code = match self {
            CommError::Gone { .. } => &codes::RANKS_GONE,
            CommError::Late { .. } => &codes::RANKS_LATE,
            CommError::Differs { .. } => &codes::RANKS_DIFFER,
            CommError::Size { .. } => &codes::RANKS_SIZE,
            CommError::Long { .. } => &codes::RANKS_LONG,
            CommError::Secret { .. } => &codes::RANKS_SECRET,
            CommError::Address { .. } => &codes::RANKS_ADDRESS,
            CommError::Library { .. } => &codes::NCCL_LIBRARY,
            CommError::Call { .. } => &codes::NCCL_CALL,
        };
        let field = self.rank().map_or_else(|| "ranks".to_owned(), |rank| format!("rank {rank}"));
        code.reason(self.to_string()).at(field).with_fix("")
    }
}

fn listed(ranks: &[u32]) -> String {
    let list: Vec<String> = ranks.iter().map(u32::to_string).collect();
    match list.len() {
        1 => format!("rank {}", list[0]),
        _ => format!("one of ranks {}", list.join(", ")),
    }
}

fn of_rank(rank: Option<u32>) -> String {
    rank.map_or_else(String::new, |rank| format!(" (from rank {rank})"))
}

/// The fix of a code of the registry.
trait Fix {
    fn fix(&self) -> &'static str;
}

impl Fix for qkvault_graph::Code {
    fn fix(&self) -> &'static str {
        self.entry().map_or("", |entry| entry.fix)
    }
}
