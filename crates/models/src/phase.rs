//! The parts of inference and training that plans are for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The part of inference or training that a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// A whole prompt at once, with as many queries as keys.
    Prefill,
    /// One new query over a cache of keys and values.
    Decode,
    /// The forward of a training step: whole sequences, with Stats as an output for the backward.
    Train,
    /// Any step of a serving engine over paged keys and values. It needs a set of plans: see `qkvault-serving`.
    Serve,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Phase; 4] = [Phase::Prefill, Phase::Decode, Phase::Train, Phase::Serve];
    /// The phases of inference that need one plan for each size.
    pub const INFERENCE: [Phase; 2] = [Phase::Prefill, Phase::Decode];
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::Train => "train",
            Phase::Serve => "serve",
        })
    }
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(s: &str) -> Result<Phase, String> {
        Phase::ALL
            .into_iter()
            .find(|p| p.to_string() == s)
            .ok_or_else(|| format!("'{s}' is not a phase; use prefill, decode, train or serve"))
    }
}
