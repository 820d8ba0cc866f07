//! The bucketing policy as data: ranges of steps, and how far apart the plans for them are.

use serde::{Deserialize, Serialize};

use qkvault_graph::{Origin, Reason, Refusal};

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
    /// Most new tokens of a step, all sequences together: the room of varlen buffers.
    pub tokens: i64,
    /// Plans for fewer sequences than this are not made.
    pub least_batch: i64,
    /// Nor for fewer new tokens.
    pub least_queries: i64,
    /// Nor for fewer keys.
    pub least_keys: i64,
    /// Decodes of up to this many sequences are few: their plans are as far apart as [`Growth::few`] says, those of more
    /// as [`Growth::many`].
    pub few: i64,
    /// How far apart plans are.
    pub growth: Growth,
}

/// How many times larger the next plan is in each size; nothing for one plan over the whole range.
///
/// A step's plan is then less than this many times larger than the step in that size, unless it is the smallest.
///
/// # The default
///
/// 2 for few sequences of a decode and 8 for many, 16 for the sequences of a mixed step, 8 for new tokens, 16 for keys: 32 plans for
/// the default ranges. From what padding cost on an H200 with cuDNN 9.19 (`docs/results/serving.md`): keys and new tokens next to
/// nothing (at most 1.03 times the tightest plan, for up to a thousand times as many), since kernels stop at the lengths; the
/// sequences of a mixed step 1.11 for 64 times as many; those of a decode 1.05 where there are many. But for few sequences cuDNN
/// splits the keys among as many blocks as a plan's sequences leave room for, and a step of 8 took 1.6 times as long in a plan
/// of 16, which splits nothing, and 1.7 in one of 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Growth {
    /// Of the sequences of a decode, up to [`ServePolicy::few`].
    pub few: Option<u32>,
    /// Of the sequences of a decode beyond that.
    pub many: Option<u32>,
    /// Of the sequences of a mixed step.
    pub mixed: Option<u32>,
    /// Of the new tokens of a sequence.
    pub queries: Option<u32>,
    /// Of the keys of a sequence.
    pub keys: Option<u32>,
}

impl Growth {
    /// The same for sequences whatever the step and however many.
    #[must_use]
    pub const fn even(batch: Option<u32>, queries: Option<u32>, keys: Option<u32>) -> Growth {
        Growth { few: batch, many: batch, mixed: batch, queries, keys }
    }
}

impl Default for Growth {
    fn default() -> Growth {
        Growth { few: Some(2), many: Some(8), mixed: Some(16), queries: Some(8), keys: Some(16) }
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
            least_batch: 1,
            least_queries: 128,
            least_keys: 2048,
            few: 32,
            growth: Growth::default(),
        }
    }
}

impl ServePolicy {
    /// Every reason why this is no policy.
    pub(super) fn problems(&self) -> Vec<Reason> {
        let ServePolicy { batch, queries, keys, tokens, least_batch, least_queries, least_keys, few, growth } = *self;
        let mut reasons = Vec::new();
        let mut add = |code: &'static str, field: &'static str, given: String, needed: String| {
            let fix = "sizes are counts of sequences, tokens and keys, and a growth is how many times larger the next plan is";
            reasons.push(Reason::new(Origin::Description, code, field, given, needed, fix));
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
        if few < 1 {
            add("serve.range", "serve.few", format!("{few} sequences"), "1 or more".to_owned());
        }
        let Growth { few, many, mixed, queries, keys } = growth;
        for (field, growth) in [
            ("serve.growth.few", few),
            ("serve.growth.many", many),
            ("serve.growth.mixed", mixed),
            ("serve.growth.queries", queries),
            ("serve.growth.keys", keys),
        ] {
            if growth.is_some_and(|g| g < 2) {
                add("serve.growth", field, format!("{growth:?}"), "2 or more, or none for one plan".to_owned());
            }
        }
        reasons
    }

    /// The policy for a layer of this many key heads (those on one card): few are as many sequences as have 256 of them, since that
    /// is where cuDNN 9.19 was seen to have enough to do on 132 multiprocessors without splitting a sequence's keys.
    #[must_use]
    pub fn for_heads(self, kv_heads: i64) -> ServePolicy {
        ServePolicy { few: (256 / kv_heads.max(1)).max(1), ..self }
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
