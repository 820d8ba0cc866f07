//! What of an attention decides which engine is faster, and how near two of them are.

use qkvault_graph::{Gradients, Lengths, Pass, Storage, Tensor, Valid};
use serde::{Deserialize, Serialize};

const fn is_varlen(tensor: &Tensor) -> bool {
    matches!(tensor.storage, Storage::Varlen { .. })
}

/// What of an attention decides which engine is faster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Forward or backward.
    pub direction: Direction,
    /// Sequences.
    pub batch: u32,
    /// Query heads.
    pub heads: u32,
    /// Heads of keys.
    pub kv_heads: u32,
    /// Queries of a sequence.
    pub queries: u32,
    /// Keys of a sequence, the most of them.
    pub keys: u32,
    /// Head dim of queries and keys, or of values if that is more.
    pub head_dim: u32,
    /// What else decides, in order.
    pub features: Vec<Feature>,
}

/// The direction of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Outputs from inputs.
    Forward,
    /// Gradients.
    Backward,
}

impl Direction {
    /// Its name, as in records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        }
    }
}

/// A feature that decides which engine is faster. Where memory is the limit ([`Case::is_dense`] is false), score
/// modifications, masks and lengths are none: engines take the same time with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// Keys and values in pages.
    Paged,
    /// A band with a left end.
    Window,
    /// A sink.
    Sink,
    /// Varlen queries.
    Varlen,
    /// A band that ends on the right: half of the scores, if it has no left end.
    Causal,
    /// A score modification.
    ScoreMod,
    /// A predicate of positions.
    MaskMod,
    /// A length for each sequence.
    Lengths,
    /// Sums of a backward in one order.
    Deterministic,
}

impl Feature {
    /// How far apart two cases are of which only one has it; `None` if nothing follows from one for the other.
    const fn distance(self) -> Option<f64> {
        match self {
            Feature::Paged => Some(1.0),
            Feature::Causal => Some(0.5),
            Feature::Window
            | Feature::Sink
            | Feature::Varlen
            | Feature::ScoreMod
            | Feature::MaskMod
            | Feature::Lengths
            | Feature::Deterministic => None,
        }
    }
}

/// The most queries of a sequence that memory limits.
const FEW: u32 = 128;

impl Case {
    /// The case of an attention.
    #[must_use]
    pub fn for_attention(a: &Valid) -> Case {
        let count = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        let [batch, heads, queries, head_dim] = a.q.dims.map(count);
        let (direction, deterministic) = match &a.pass {
            Pass::Forward => (Direction::Forward, false),
            Pass::Backward(Gradients { deterministic, .. }) => (Direction::Backward, *deterministic),
        };
        let mut case = Case {
            direction,
            batch,
            heads,
            kv_heads: count(a.k.heads()),
            queries,
            keys: count(a.k.seq()),
            head_dim: head_dim.max(count(a.v.head_dim())),
            features: Vec::new(),
        };
        let dense = case.is_dense();
        let features = [
            (matches!(a.k.storage, Storage::Paged { .. }), Feature::Paged),
            (a.mask.band.is_some_and(|band| band.left.is_some()), Feature::Window),
            (a.sink, Feature::Sink),
            (is_varlen(&a.q), Feature::Varlen),
            (dense && a.mask.band.is_some_and(|band| band.right.is_some()), Feature::Causal),
            (dense && a.score_mod.is_some(), Feature::ScoreMod),
            (dense && a.mask.mask_mod.is_some(), Feature::MaskMod),
            (dense && !is_varlen(&a.q) && a.mask.lengths == Lengths::PerSequence, Feature::Lengths),
            (deterministic, Feature::Deterministic),
        ];
        case.features.extend(features.into_iter().filter(|(there, _)| *there).map(|(_, feature)| feature));
        case
    }

    /// Whether arithmetic is the limit and not memory: a prompt, or a backward.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.queries > FEW || self.direction == Direction::Backward
    }

    /// Queries that are split over the GPU in one way: one, some drafts, a short chunk, a prompt or a backward.
    fn family(&self) -> u8 {
        match self.queries {
            _ if self.is_dense() => 3,
            ..=1 => 0,
            2..=16 => 1,
            _ => 2,
        }
    }

    /// Doublings between two cases; `None` if nothing follows from one for the other.
    pub(super) fn distance(&self, other: &Case) -> Option<f64> {
        if self.direction != other.direction || self.family() != other.family() {
            return None;
        }
        let one_has = |(a, b): (&Case, &Case)| {
            let alone = a.features.iter().filter(|feature| !b.features.contains(feature));
            alone.map(|feature| feature.distance()).sum::<Option<f64>>()
        };
        let features = one_has((self, other))? + one_has((other, self))?;
        let doublings = |of: &dyn Fn(&Case) -> f64| (of(self).max(1.0) / of(other).max(1.0)).log2().abs();
        let number = |n: u32| f64::from(n);
        let group = |case: &Case| number(case.heads) / number(case.kv_heads).max(1.0);
        let keys = doublings(&|case| number(case.keys));
        let head_dim = doublings(&|case| number(case.head_dim));
        Some(
            features
                + keys
                + if self.is_dense() {
                    // Each tile of queries walks over the keys: how many tiles there are matters less than how long
                    // that takes, and the kernels of another head dim are others.
                    let rows = doublings(&|case| number(case.batch) * number(case.heads) * number(case.queries));
                    rows / 2.0 + 3.0 * head_dim + doublings(&group) / 4.0
                } else {
                    let items = doublings(&|case| number(case.batch) * number(case.kv_heads));
                    items + doublings(&|case| number(case.queries) * group(case)) + head_dim
                },
        )
    }
}
