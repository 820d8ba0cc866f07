//! What of an attention decides which engine is faster, and how near two of them are.

use qkvault_graph::expr::{Binary, Node, ScoreExpr, Unary};
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
    /// The most keys that a row sees, if a band has a left end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Rows of a page, if they are fewer than 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<u32>,
    /// Queries of all sequences of a packed batch, if that is not the longest for each: a step of prompts and decodes,
    /// documents of uneven lengths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
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

/// A feature that decides which engine is faster. Where memory is the limit ([`Case::is_dense`] is false), masks and
/// lengths are none, and score modifications of one query are none: engines take the same time with them.
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
    /// A predicate of positions, or a block mask.
    MaskMod,
    /// A predicate that reads a tensor over queries and keys.
    MaskTensor,
    /// A length for each sequence.
    Lengths,
    /// Sums of a backward in one order.
    Deterministic,
    /// A score modification with a function that takes many instructions, such as the tanh of a softcap.
    Transcendental,
}

impl Feature {
    /// Every feature.
    pub(super) const ALL: [Feature; 11] = [
        Feature::Paged,
        Feature::Window,
        Feature::Sink,
        Feature::Varlen,
        Feature::Causal,
        Feature::ScoreMod,
        Feature::MaskMod,
        Feature::MaskTensor,
        Feature::Lengths,
        Feature::Deterministic,
        Feature::Transcendental,
    ];

    /// How far apart two cases are of which only one has it, in doublings of a size.
    const fn distance(self) -> f64 {
        match self {
            Feature::Causal => 0.4,
            Feature::Paged => 0.85,
            Feature::Window
            | Feature::Sink
            | Feature::Varlen
            | Feature::ScoreMod
            | Feature::Transcendental
            | Feature::MaskMod
            | Feature::MaskTensor
            | Feature::Lengths
            | Feature::Deterministic => 1.25,
        }
    }
}

/// How many more or fewer tokens have the same times, as a share.
const MORE_OR_LESS: f64 = 0.1;

/// Whether an expression calls a function that takes more than a few instructions.
fn is_slow(modification: &ScoreExpr) -> bool {
    let few = |op: Unary| matches!(op, Unary::Neg | Unary::Abs | Unary::Floor | Unary::Ceil | Unary::Relu);
    modification.program().nodes().iter().any(|node| match node {
        Node::Unary(op, _) => !few(*op),
        Node::Binary(op, ..) => matches!(op, Binary::Pow | Binary::Atan2 | Binary::FloorRem | Binary::Rem),
        _ => false,
    })
}

/// Whether a predicate reads a tensor over queries and keys, of which no bounds of a tile are known.
fn is_dense_tensor(predicate: &ScoreExpr) -> bool {
    predicate.tensors().iter().any(|spec| spec.dims[2] > 1 && spec.dims[3] > 1)
}

/// From so many rows on, the size of a page changes no time: fewer are brought by more than one copy.
const PAGE: u32 = 16;

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
            window: a.mask.band.and_then(|band| Some(count(band.left?.saturating_add(band.right.unwrap_or(0))))),
            page: match a.k.storage {
                Storage::Paged { page_size, .. } => Some(count(page_size)).filter(|rows| *rows < PAGE),
                Storage::Dense | Storage::Varlen { .. } => None,
            },
            tokens: match a.q.storage {
                Storage::Varlen { tokens } => {
                    Some(count(tokens)).filter(|tokens| *tokens < batch.saturating_mul(queries))
                }
                Storage::Dense | Storage::Paged { .. } => None,
            },
            features: Vec::new(),
        };
        let dense = case.is_dense();
        let features = [
            (matches!(a.k.storage, Storage::Paged { .. }), Feature::Paged),
            (a.mask.band.is_some_and(|band| band.left.is_some()), Feature::Window),
            (a.sink, Feature::Sink),
            (is_varlen(&a.q), Feature::Varlen),
            (dense && a.mask.band.is_some_and(|band| band.right.is_some()), Feature::Causal),
            ((dense || queries > 1) && a.score_mod.is_some(), Feature::ScoreMod),
            (dense && (a.mask.mask_mod.is_some() || a.block_mask), Feature::MaskMod),
            (dense && a.mask.mask_mod.as_ref().is_some_and(is_dense_tensor), Feature::MaskTensor),
            (dense && !is_varlen(&a.q) && a.mask.lengths == Lengths::PerSequence, Feature::Lengths),
            (deterministic, Feature::Deterministic),
            ((dense || queries > 1) && a.score_mod.as_ref().is_some_and(is_slow), Feature::Transcendental),
        ];
        case.features.extend(features.into_iter().filter(|(there, _)| *there).map(|(_, feature)| feature));
        case
    }

    /// Whether arithmetic is the limit and not memory: a prompt, or a backward.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.queries > FEW || self.direction == Direction::Backward
    }

    /// Whether the case has a feature.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    /// Query heads for each head of keys.
    #[must_use]
    pub fn group(&self) -> f64 {
        f64::from(self.heads) / f64::from(self.kv_heads).max(1.0)
    }

    /// Queries of all sequences.
    pub(super) fn all_queries(&self) -> f64 {
        self.tokens.map_or_else(|| f64::from(self.batch) * f64::from(self.queries), f64::from)
    }

    /// Doublings from the queries of a packed batch to those of one with the longest for each sequence, which some
    /// engines compute.
    pub(super) fn padding(&self) -> f64 {
        (f64::from(self.batch) * f64::from(self.queries) / self.all_queries().max(1.0)).max(1.0).log2()
    }

    /// How often the least page whose size does not matter is halved.
    pub(super) fn page_halvings(&self) -> f64 {
        self.page.map_or(0.0, |rows| f64::from(PAGE / rows.max(1)).log2())
    }

    /// Whether another case's times are this one's: the same but for a few tokens more or less.
    #[must_use]
    pub fn is_like(&self, other: &Case) -> bool {
        let near = |a: u32, b: u32| f64::from(a.abs_diff(b)) <= MORE_OR_LESS * f64::from(a.min(b));
        let Case { direction, batch, heads, kv_heads, queries, keys, head_dim, window, page, tokens, features } = other;
        (self.direction, self.batch, self.heads, self.kv_heads) == (*direction, *batch, *heads, *kv_heads)
            && (self.head_dim, self.window, self.page, &self.features) == (*head_dim, *window, *page, features)
            && near(self.queries, *queries)
            && near(self.keys, *keys)
            && match (self.tokens, tokens) {
                (Some(a), Some(b)) => near(a, *b),
                (a, b) => a == *b,
            }
    }

    /// Its place among cases of one kind of work.
    pub(super) fn place(&self) -> Place {
        let number = |n: u32| f64::from(n);
        let (rows, items) = match self.is_dense() {
            true => (1.0, number(self.heads) * self.all_queries()),
            false => (number(self.queries) * self.group(), number(self.batch) * number(self.kv_heads)),
        };
        // Each tile of queries walks over the keys: how many tiles there are matters less than how long that takes, and
        // the kernels of another head dim are others.
        let doublings = |n: f64| n.max(1.0).log2();
        Place {
            sizes: [
                doublings(number(self.window.unwrap_or(self.keys).min(self.keys))) / 2.0,
                doublings(items) * 0.15,
                doublings(rows),
                doublings(number(self.head_dim)),
                doublings(self.group()) * if self.is_dense() { 0.05 } else { 0.0 },
                self.page_halvings(),
                self.padding(),
            ],
            features: Feature::ALL.map(|feature| self.has(feature)),
        }
    }
}

/// A case as a point: sizes in doublings, by how much each matters, and which features it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    sizes: [f64; 7],
    features: [bool; Feature::ALL.len()],
}

impl Place {
    /// Doublings between two places; a feature that only one has counts as some of them.
    pub(super) fn distance(&self, other: &Place) -> f64 {
        let sizes: f64 = self.sizes.iter().zip(&other.sizes).map(|(a, b)| (a - b).abs()).sum();
        let one_has = self.features.iter().zip(&other.features).zip(Feature::ALL).filter(|((a, b), _)| a != b);
        sizes + one_has.map(|(_, feature)| feature.distance()).sum::<f64>()
    }
}
