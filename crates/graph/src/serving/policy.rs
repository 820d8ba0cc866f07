//! The bucketing policy as data: ranges of steps, and how far apart the plans for them are.

use serde::{Deserialize, Serialize};

use crate::{Layer, Reason, Refusal};

/// Ranges of the steps of an engine, and how far apart plans for them are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServePolicy {
    /// Most sequences of a step.
    pub batch: i64,
    /// Most new tokens of one sequence in a step.
    pub queries: i64,
    /// Most keys of a sequence.
    pub keys: i64,
    /// Most new tokens of a step, all sequences together: the room of packed buffers.
    pub tokens: i64,
    /// Plans for fewer sequences than this are not made.
    pub least_batch: i64,
    /// Nor for fewer new tokens.
    pub least_queries: i64,
    /// Nor for fewer keys.
    pub least_keys: i64,
    /// How far apart plans are.
    pub growth: Growth,
}

/// How many times larger the next plan is in each size; nothing for one plan over the whole range.
///
/// A step's plan is then less than this many times larger than the step in that size, unless it is the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Growth {
    /// Of the number of sequences.
    pub batch: Option<u32>,
    /// Of the new tokens of a sequence.
    pub queries: Option<u32>,
    /// Of the keys of a sequence.
    pub keys: Option<u32>,
}

impl Default for Growth {
    fn default() -> Growth {
        Growth { batch: Some(4), queries: Some(4), keys: Some(4) }
    }
}

impl Default for ServePolicy {
    /// Up to 256 sequences of up to 32,768 keys, 8,192 new tokens in a step.
    fn default() -> ServePolicy {
        ServePolicy {
            batch: 256,
            queries: 8192,
            keys: 32_768,
            tokens: 8192,
            least_batch: 4,
            least_queries: 128,
            least_keys: 2048,
            growth: Growth::default(),
        }
    }
}

impl ServePolicy {
    /// Every reason why this is no policy.
    pub(super) fn problems(&self) -> Vec<Reason> {
        let ServePolicy { batch, queries, keys, tokens, least_batch, least_queries, least_keys, growth } = *self;
        let mut reasons = Vec::new();
        let mut add = |code: &'static str, field: &'static str, given: String, needed: String| {
            let fix = "sizes are counts of sequences, tokens and keys, and a growth is how many times larger the next plan is";
            reasons.push(Reason::new(Layer::Description, code, field, given, needed, fix));
        };
        for (field, most, least) in [
            ("serve.batch", batch, least_batch),
            ("serve.queries", queries, least_queries),
            ("serve.keys", keys, least_keys),
        ] {
            if !(1..=1 << 30).contains(&most) || least < 1 {
                let needed = "both from 1 to 2^30".to_owned();
                add("serve.range", field, format!("up to {most}, plans from {least} on"), needed);
            }
        }
        if queries > keys {
            add(
                "serve.queries",
                "serve.queries",
                format!("{queries} new tokens"),
                format!("no more than the {keys} keys of a sequence, which count them"),
            );
        }
        if tokens < batch || tokens < queries {
            add(
                "serve.tokens",
                "serve.tokens",
                format!("{tokens} tokens in a step"),
                format!("room for one of each of {batch} sequences, and for {queries} of one"),
            );
        }
        let Growth { batch, queries, keys } = growth;
        for (field, growth) in
            [("serve.growth.batch", batch), ("serve.growth.queries", queries), ("serve.growth.keys", keys)]
        {
            if growth.is_some_and(|g| g < 2) {
                add("serve.growth", field, format!("{growth:?}"), "2 or more, or none for one plan".to_owned());
            }
        }
        reasons
    }

    /// The policy, if it is one.
    ///
    /// # Errors
    ///
    /// Every reason why not.
    pub fn checked(self) -> Result<ServePolicy, Refusal> {
        match Refusal::of(self.problems()) {
            Some(refusal) => Err(refusal),
            None => Ok(self),
        }
    }
}
