//! The bucketing policy: the ranges of steps, and the spacing of the plans.

use serde::{Deserialize, Serialize};

use crate::codes;
use qkvault_graph::registry::Code;
use qkvault_graph::{Reason, Refusal};

/// Most sequences of a step, and most new tokens and keys of a sequence: more than any plan runs, and few enough that
/// no size of a plan overflows.
pub const MOST: i64 = 1 << 30;

/// The ranges of an engine's steps, and the spacing of the plans for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServePolicy {
    /// Maximum number of sequences of a step. It, the two below it and the least ones are from 1 to 2^30.
    pub batch: i64,
    /// Maximum number of new tokens of one sequence in a step.
    pub queries: i64,
    /// Maximum number of keys of a sequence.
    pub keys: i64,
    /// Maximum number of new tokens of a step over all sequences: the capacity of varlen buffers.
    pub tokens: i64,
    /// Number of sequences of the smallest plans.
    pub least_batch: i64,
    /// Number of new tokens of the smallest mixed plans.
    pub least_queries: i64,
    /// Number of keys of the smallest plans.
    pub least_keys: i64,
    /// Batch sizes of decodes are spaced by [`Growth::few`] up to this many sequences, and by [`Growth::many`] beyond.
    pub few: i64,
    /// Spacing of the plans.
    pub growth: Growth,
}

/// How many times larger the next plan is in each size; `None` makes one plan for the whole range.
///
/// In each size, a step's plan is less than this many times larger than the step, unless it is the smallest plan.
///
/// # The default
///
/// The sequences of a decode grow by 2 while they are few and by 8 when they are many, the sequences of a mixed step by
/// 16, new tokens by 8, and keys by 16. That makes 32 plans for the default ranges. The values follow from measurements
/// on an H200 with cuDNN 9.19 (`docs/results/serving.md`):
///
/// * Keys and new tokens cost almost nothing, because kernels stop at the lengths: at most 1.02 times the tightest plan
///   with 4 to 32 times as many keys.
/// * Sequences of a mixed step cost up to 1.12 times the tightest plan, with 16 times as many; so do those of a decode
///   of more than 32.
/// * Sequences of a small decode are expensive: cuDNN splits the keys of a decode only in plans for few sequences. A
///   step of 8 sequences over 8k keys took 1.7 times as long in a plan for 16 times as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Growth {
    /// Growth of the sequences of a decode, up to [`ServePolicy::few`].
    pub few: Option<u32>,
    /// Growth of the sequences of a decode, beyond [`ServePolicy::few`].
    pub many: Option<u32>,
    /// Growth of the sequences of a mixed step.
    pub mixed: Option<u32>,
    /// Growth of the new tokens of a sequence.
    pub queries: Option<u32>,
    /// Growth of the keys of a sequence.
    pub keys: Option<u32>,
}

impl Growth {
    /// One growth for all batch sizes, whatever the kind of step.
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
    /// Up to 256 sequences of up to 32,768 keys each, and 8,192 new tokens in a step.
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
    /// Every reason why the policy is invalid.
    pub(super) fn problems(&self) -> Vec<Reason> {
        let ServePolicy { batch, queries, keys, tokens, least_batch, least_queries, least_keys, few, growth } = *self;
        let mut reasons = Vec::new();
        let mut add = |code: &Code, field: &'static str, given: String, needed: String| {
            reasons.push(code.reason(given).at(field).with_needed(needed));
        };
        for (field, most, least) in [
            ("serve.batch", batch, least_batch),
            ("serve.queries", queries, least_queries),
            ("serve.keys", keys, least_keys),
        ] {
            if ![most, least].iter().all(|size| (1..=MOST).contains(size)) {
                let needed = format!("both from 1 to {MOST}");
                add(&codes::SERVE_RANGE, field, format!("up to {most}, plans from {least} on"), needed);
            }
        }
        if queries > keys {
            add(
                &codes::SERVE_QUERIES,
                "serve.queries",
                format!("{queries} new tokens"),
                format!("no more than the {keys} keys of a sequence, which count them"),
            );
        }
        if tokens < batch || tokens < queries {
            add(
                &codes::SERVE_TOKENS,
                "serve.tokens",
                format!("{tokens} tokens in a step"),
                format!("room for one of each of {batch} sequences, and for {queries} of one"),
            );
        }
        if few < 1 {
            add(&codes::SERVE_RANGE, "serve.few", format!("{few} sequences"), "1 or more".to_owned());
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
                add(&codes::SERVE_GROWTH, field, format!("{growth:?}"), "2 or more, or none for one plan".to_owned());
            }
        }
        reasons
    }

    /// Adapts the policy to a layer with this many key heads on one GPU: `few` becomes the number of sequences that
    /// together have 256 key heads. With that many, cuDNN 9.19 filled the 132 multiprocessors of an H200 without
    /// splitting keys.
    #[must_use]
    pub fn for_heads(self, kv_heads: i64) -> ServePolicy {
        ServePolicy { few: (256 / kv_heads.max(1)).max(1), ..self }
    }

    /// Returns the policy if it is valid.
    ///
    /// # Errors
    ///
    /// Every reason why it is not.
    pub fn checked(self) -> Result<ServePolicy, Refusal> {
        match Refusal::from_reasons(self.problems()) {
            Some(refusal) => Err(refusal),
            None => Ok(self),
        }
    }
}
