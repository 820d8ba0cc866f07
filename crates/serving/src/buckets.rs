//! The set of plans for a policy, and the choice of a plan for a step.

use serde::{Deserialize, Serialize};

use super::policy::{Growth, ServePolicy};
use qkvault_graph::Refusal;

/// The kind of step that a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// One new token in each sequence; queries are dense.
    Decode,
    /// One or more new tokens in each sequence; queries are varlen.
    Mixed,
}

/// The sizes of one plan of the set. Each is the largest that the plan can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// The kind of step.
    pub kind: StepKind,
    /// Maximum number of sequences.
    pub batch: i64,
    /// Maximum number of new tokens of a sequence.
    pub queries: i64,
    /// Maximum number of keys of a sequence.
    pub keys: i64,
    /// Capacity of varlen buffers, in tokens. It is not part of a plan's key.
    pub tokens: i64,
}

/// The sizes of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepSize {
    /// Number of sequences.
    pub sequences: i64,
    /// New tokens of the sequence with the most.
    pub queries: i64,
    /// Keys of the sequence with the most.
    pub keys: i64,
}

/// The plans of a policy: a grid of batch, queries and keys for mixed steps, and a grid of batch and keys for decodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    policy: ServePolicy,
    /// Batch sizes of the decodes, and of the mixed steps.
    batch: [Vec<i64>; 2],
    queries: Vec<i64>,
    keys: Vec<i64>,
}

/// Plans hold a multiple of this many keys, because kernels read page tables in tiles of this size.
const TILE: i64 = 128;

/// The sizes from `most` down to `least`, each the one before divided by the growth; all are rounded up to a multiple
/// of `grain` and sorted upwards. Without a growth, only `most`.
fn line(most: i64, least: i64, growth: Option<u32>, grain: i64) -> Vec<i64> {
    let whole = |size: i64| (size + grain - 1) / grain * grain;
    let (mut size, least) = (whole(most), whole(least));
    let mut sizes = vec![size];
    if let Some(growth) = growth.map(i64::from) {
        while size > least {
            size = whole((size - 1) / growth + 1).max(least);
            sizes.push(size);
        }
    }
    sizes.reverse();
    sizes
}

/// Batch sizes of decodes: up to `few` they grow by `growth.few`, beyond it by `growth.many`.
fn decodes(policy: &ServePolicy) -> Vec<i64> {
    let ServePolicy { batch, least_batch, few, growth, .. } = *policy;
    if batch <= few || growth.few == growth.many {
        return line(batch, least_batch, growth.few, 1);
    }
    let mut sizes = if least_batch < few { line(few, least_batch, growth.few, 1) } else { Vec::new() };
    sizes.extend(line(batch, few.max(least_batch), growth.many, 1));
    sizes.dedup();
    sizes
}

impl Buckets {
    /// Creates the set of plans of a policy.
    ///
    /// # Errors
    ///
    /// Every reason why the policy is invalid.
    pub fn new(policy: &ServePolicy) -> Result<Buckets, Refusal> {
        let policy = policy.checked()?;
        let ServePolicy { batch, queries, keys, tokens: _, least_batch, least_queries, least_keys, few: _, growth } =
            policy;
        Ok(Buckets {
            policy,
            batch: [decodes(&policy), line(batch, least_batch, growth.mixed, 1)],
            queries: line(queries, least_queries, growth.queries, 1),
            keys: line(keys, least_keys, growth.keys, TILE),
        })
    }

    /// The policy of this set.
    #[must_use]
    pub const fn policy(&self) -> &ServePolicy {
        &self.policy
    }

    /// Number of plans.
    #[must_use]
    pub fn len(&self) -> usize {
        self.decodes() + self.batch[1].len() * self.queries.len() * self.keys.len()
    }

    /// Always false: a set has at least one plan.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn decodes(&self) -> usize {
        self.batch[0].len() * self.keys.len()
    }

    /// The plan with this number.
    ///
    /// # Panics
    ///
    /// If `at` is not below [`Buckets::len`].
    #[must_use]
    pub fn get(&self, at: usize) -> Bucket {
        assert!(at < self.len(), "plan {at} of {}", self.len());
        let keys = |grid: usize| self.keys[grid % self.keys.len()];
        let (kind, batch, queries, keys) = match at.checked_sub(self.decodes()) {
            None => (StepKind::Decode, self.batch[0][at / self.keys.len()], 1, keys(at)),
            Some(at) => {
                let (batch, rest) = (at / (self.queries.len() * self.keys.len()), at / self.keys.len());
                let queries = self.queries[rest % self.queries.len()].min(keys(at));
                (StepKind::Mixed, self.batch[1][batch], queries, keys(at))
            }
        };
        let tokens = self.policy.tokens.min(batch.saturating_mul(queries)).max(batch);
        Bucket { kind, batch, queries, keys, tokens }
    }

    /// Every plan of the set, decodes first.
    pub fn iter(&self) -> impl Iterator<Item = Bucket> {
        (0..self.len()).map(|at| self.get(at))
    }

    /// The number of the smallest plan that can run a step; `None` for a step outside the ranges. Allocates nothing and
    /// compares only a few numbers.
    #[must_use]
    pub fn pick(&self, step: StepSize) -> Option<usize> {
        let StepSize { sequences, queries, keys } = step;
        let kind = if queries <= 1 { StepKind::Decode } else { StepKind::Mixed };
        self.pick_as(kind, sequences, queries, keys)
    }

    /// The number of the smallest mixed plan that can run a step, for a set whose decodes could not be compiled.
    #[must_use]
    pub fn pick_mixed(&self, step: StepSize) -> Option<usize> {
        let StepSize { sequences, queries, keys } = step;
        self.pick_as(StepKind::Mixed, sequences, queries, keys)
    }

    fn pick_as(&self, kind: StepKind, sequences: i64, queries: i64, keys: i64) -> Option<usize> {
        let at =
            |line: &[i64], size: i64| Some(line.partition_point(|&most| most < size)).filter(|&at| at < line.len());
        // New tokens are keys too, and a plan has no more queries than keys.
        let keys = at(&self.keys, keys.max(queries))?;
        Some(match kind {
            StepKind::Decode => at(&self.batch[0], sequences)? * self.keys.len() + keys,
            StepKind::Mixed => {
                let grid = at(&self.batch[1], sequences)? * self.queries.len() + at(&self.queries, queries)?;
                self.decodes() + grid * self.keys.len() + keys
            }
        })
    }

    /// How many times more scores a plan holds than a step has, if every sequence were as long as the longest: 1 means
    /// no padding. It costs less time than this number suggests, because kernels skip tiles beyond the lengths: see
    /// `docs/results/serving.md`.
    #[must_use]
    pub fn padding(&self, step: StepSize, at: usize) -> f64 {
        let Bucket { kind: _, batch, queries, keys, tokens: _ } = self.get(at);
        let area = |b: i64, q: i64, k: i64| b.max(1) as f64 * q.max(1) as f64 * k.max(1) as f64;
        area(batch, queries, keys) / area(step.sequences, step.queries, step.keys)
    }

    /// The upper bound of [`Buckets::padding`] for a step that is not smaller than the smallest plan; `None` if a size
    /// has one plan for its whole range.
    #[must_use]
    pub fn bound(&self, kind: StepKind) -> Option<f64> {
        let Growth { few, many, mixed, queries, keys } = self.policy.growth;
        let (batch, queries) = match kind {
            StepKind::Decode if self.policy.batch <= self.policy.few => (few, Some(1)),
            StepKind::Decode => (few.zip(many).map(|(few, many)| few.max(many)), Some(1)),
            StepKind::Mixed => (mixed, queries),
        };
        Some(f64::from(batch?) * f64::from(queries?) * f64::from(keys?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codes;

    fn policies() -> impl Strategy<Value = ServePolicy> {
        let growth = || prop::option::weighted(0.8, 2..6_u32);
        let least = (1..9_i64, 1..200_i64, 1..3000_i64, 1..80_i64);
        let growths = (growth(), growth(), growth(), growth(), growth());
        ((1..300_i64, 1..9000_i64, 0..100_000_i64), least, growths).prop_map(
            |((batch, queries, more), (least_batch, least_queries, least_keys, few), growths)| ServePolicy {
                batch,
                queries,
                keys: queries + more,
                tokens: batch + queries,
                least_batch,
                least_queries,
                least_keys,
                few,
                growth: Growth {
                    few: growths.0,
                    many: growths.1,
                    mixed: growths.2,
                    queries: growths.3,
                    keys: growths.4,
                },
            },
        )
    }

    proptest! {
        #[test]
        fn every_step_in_range_has_a_plan_that_holds_it_and_wastes_no_more_than_is_said(
            policy in policies(), sizes in (0.0..1.0_f64, 0.0..1.0_f64, 0.0..1.0_f64), decode in any::<bool>(),
        ) {
            let buckets = Buckets::new(&policy).expect("sound");
            let within = |most: i64, x: f64| 1 + ((most - 1) as f64 * x) as i64;
            let queries = if decode { 1 } else { within(policy.queries, sizes.1) };
            let keys = within(policy.keys, sizes.2).max(queries);
            let step = StepSize { sequences: within(policy.batch, sizes.0), queries, keys };
            let at = buckets.pick(step).expect("within the ranges");
            let bucket = buckets.get(at);
            prop_assert!(bucket.batch >= step.sequences && bucket.queries >= step.queries && bucket.keys >= step.keys);
            prop_assert_eq!(bucket.kind == StepKind::Decode, queries == 1);
            // No other plan of the kind is smaller and holds the step.
            for other in buckets.iter().filter(|other| other.kind == bucket.kind) {
                let holds = other.batch >= step.sequences && other.queries >= step.queries && other.keys >= step.keys;
                prop_assert!(!holds || (other.batch, other.keys) >= (bucket.batch, bucket.keys)
                    || other.batch >= bucket.batch && other.keys >= bucket.keys && other.queries >= bucket.queries);
            }
            let least = |line: &[i64]| line[0];
            let small = step.sequences < least(&buckets.batch[usize::from(queries > 1)])
                || (queries > 1 && queries < least(&buckets.queries))
                || step.keys < least(&buckets.keys);
            if let Some(bound) = buckets.bound(bucket.kind).filter(|_| !small) {
                prop_assert!(buckets.padding(step, at) <= bound, "{} over {bound}", buckets.padding(step, at));
            }
            // A mixed plan can run a decode too.
            let mixed = buckets.get(buckets.pick_mixed(step).expect("within the ranges"));
            prop_assert!(mixed.kind == StepKind::Mixed && mixed.batch >= step.sequences && mixed.keys >= step.keys);
        }

        #[test]
        fn steps_out_of_range_have_none(policy in policies()) {
            let buckets = Buckets::new(&policy).expect("sound");
            let most = StepSize { sequences: policy.batch, queries: policy.queries, keys: policy.keys };
            prop_assert!(buckets.pick(most).is_some());
            prop_assert_eq!(buckets.pick(StepSize { sequences: policy.batch + 1, ..most }), None);
            prop_assert_eq!(buckets.pick(StepSize { keys: policy.keys + TILE, ..most }), None);
            if policy.queries > 1 {
                prop_assert_eq!(buckets.pick(StepSize { queries: policy.queries + 1, ..most }), None);
            }
        }
    }

    /// Found by fuzzing: 136 new tokens and 9 keys got a plan of 128 queries.
    #[test]
    fn a_step_of_more_new_tokens_than_keys_gets_a_plan_that_holds_both() {
        let buckets = Buckets::new(&ServePolicy::default()).expect("sound");
        for (queries, keys) in [(129, 9), (136, 128), (2048, 0), (8192, 1)] {
            let step = StepSize { sequences: 1, queries, keys };
            let bucket = buckets.get(buckets.pick(step).expect("within the ranges"));
            assert!(bucket.queries >= queries && bucket.keys >= keys, "{bucket:?} for {step:?}");
        }
    }

    /// Rounded up, the largest number of keys became a negative one, and the line of sizes never reached it.
    #[test]
    fn audit_5_a_least_size_of_2_to_the_63_is_refused_and_does_not_loop() {
        for huge in [i64::MAX, i64::MAX - TILE, (1 << 30) + 1] {
            let usual = ServePolicy::default();
            for (policy, field) in [
                (ServePolicy { least_batch: huge, ..usual }, "serve.batch"),
                (ServePolicy { least_queries: huge, ..usual }, "serve.queries"),
                (ServePolicy { least_keys: huge, ..usual }, "serve.keys"),
                (ServePolicy { keys: huge, ..usual }, "serve.keys"),
            ] {
                let refusal = Buckets::new(&policy).expect_err("too large");
                let reason = refusal.reasons().iter().find(|reason| reason.field == field).expect("it is named");
                assert!(reason.given.contains(&huge.to_string()) && reason.needed.contains("1073741824"), "{reason}");
            }
        }
        // The largest ranges have a set, and one of few plans.
        let most = 1 << 30;
        let widest = ServePolicy { batch: most, queries: most, keys: most, tokens: i64::MAX, ..ServePolicy::default() };
        let finest = Growth::even(Some(2), Some(2), Some(2));
        let finest =
            ServePolicy { growth: finest, least_batch: 1, least_queries: 1, least_keys: 1, few: i64::MAX, ..widest };
        for policy in [widest, finest, ServePolicy { least_keys: most, ..widest }] {
            let buckets = Buckets::new(&policy).expect("sound");
            assert!(buckets.len() < 40_000, "{}", buckets.len());
            assert!(buckets.iter().all(|bucket| bucket.keys >= 1 && bucket.tokens >= bucket.batch));
        }
    }

    #[test]
    fn the_default_set_is_small() {
        let buckets = Buckets::new(&ServePolicy::default()).expect("sound");
        assert_eq!(buckets.len(), 32, "as the policy's documentation says");
        let sizes = |kind| -> std::collections::BTreeSet<i64> {
            buckets.iter().filter(|bucket| bucket.kind == kind).map(|bucket| bucket.batch).collect()
        };
        assert!(sizes(StepKind::Decode).into_iter().eq([1, 2, 4, 8, 16, 32, 256]));
        assert!(sizes(StepKind::Mixed).into_iter().eq([1, 16, 256]));
        // Without growth there is one plan per kind, whatever `few` is.
        let one = ServePolicy { growth: Growth::even(None, None, None), ..ServePolicy::default() };
        assert_eq!(Buckets::new(&one).expect("sound").len(), 2);
        let lines = |kv_heads| {
            let buckets = Buckets::new(&ServePolicy::default().for_heads(kv_heads)).expect("sound");
            buckets.iter().filter(|b| b.kind == StepKind::Decode && b.keys == 2048).map(|b| b.batch).collect::<Vec<_>>()
        };
        assert_eq!(lines(8), [1, 2, 4, 8, 16, 32, 256]);
        assert_eq!(lines(1), [1, 2, 4, 8, 16, 32, 64, 128, 256]);
        assert_eq!(lines(32), [1, 2, 4, 8, 32, 256]);
        for most in [20, 32, 33, 100, 1000] {
            // A plan for few sequences has less than twice as many as the step, so at least half of the blocks that
            // cuDNN splits the keys among are used.
            let buckets =
                Buckets::new(&ServePolicy { batch: most, tokens: 8192, ..ServePolicy::default() }).expect("sound");
            for sequences in 1..=most {
                let at = buckets.pick(StepSize { sequences, queries: 1, keys: 100 }).expect("within the ranges");
                let least = if sequences <= 32 { 2 } else { 8 };
                assert!(buckets.get(at).batch < least * sequences, "{sequences} of {most}: {:?}", buckets.get(at));
            }
        }
        let wrong = ServePolicy { queries: 9, keys: 8, tokens: 1, ..ServePolicy::default() };
        let refusal = Buckets::new(&wrong).expect_err("contradicts itself");
        assert!(refusal.has(&codes::SERVE_QUERIES) && refusal.has(&codes::SERVE_TOKENS));
    }
}
