//! The choice of an engine: measured times of cuDNN and of the kernels, as data.
//!
//! `data/engines.json` has a row for every case that was measured, which `qkvault-lab bench engines` writes anew. An
//! attention is judged by the row nearest to it, and the farther that is, the clearer the row must be. Where no row
//! speaks, cuDNN keeps the attention.

use std::sync::OnceLock;

use qkvault_graph::{Storage, Valid};
use serde::{Deserialize, Serialize};

use crate::takes::is_varlen;

/// The format of the table.
pub const TABLE_FORMAT: u32 = 1;

/// The kernels are chosen below this share of cuDNN's time: a difference within the noise of measurements is none.
const CLEAR: f64 = 0.97;

/// How much clearer a row must be for each doubling that lies between it and the attention.
const FARTHER: f64 = 0.1;

/// Who computes an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// cuDNN.
    Cudnn,
    /// The kernels of this crate.
    Kernels,
    /// FlashAttention-4's kernels.
    Fa4,
}

impl Engine {
    /// Its name, as in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Cudnn => "cudnn",
            Engine::Kernels => "kernels",
            Engine::Fa4 => "fa4",
        }
    }
}

/// The table of measured times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// [`TABLE_FORMAT`].
    pub format: u32,
    /// Where and when it was measured.
    pub source: String,
    /// What was measured.
    pub rows: Vec<Row>,
}

/// A case that both engines were measured at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The case.
    #[serde(flatten)]
    pub case: Case,
    /// How far the row speaks, in doublings.
    pub reach: f64,
    /// Time of the kernels, in microseconds.
    pub kernels_us: f64,
    /// Time of cuDNN, in microseconds.
    pub cudnn_us: f64,
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

/// A feature that decides which engine is faster. Score modifications and masks are none: both engines take the same
/// time with them.
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
}

impl Case {
    /// The case of an attention.
    #[must_use]
    pub fn of(a: &Valid) -> Case {
        let count = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        let [batch, heads, queries, head_dim] = a.q.dims.map(count);
        let features = [
            (matches!(a.k.storage, Storage::Paged { .. }), Feature::Paged),
            (a.mask.band.is_some_and(|band| band.left.is_some()), Feature::Window),
            (a.sink, Feature::Sink),
            (is_varlen(&a.q), Feature::Varlen),
        ];
        Case {
            direction: if a.is_backward() { Direction::Backward } else { Direction::Forward },
            batch,
            heads,
            kv_heads: count(a.k.heads()),
            queries,
            keys: count(a.k.seq()),
            head_dim: head_dim.max(count(a.v.head_dim())),
            features: features.into_iter().filter(|(there, _)| *there).map(|(_, feature)| feature).collect(),
        }
    }

    /// Queries that are split over the GPU in one way: one, some drafts, a short chunk, a prompt.
    const fn family(&self) -> u8 {
        match self.queries {
            ..=1 => 0,
            2..=16 => 1,
            17..=128 => 2,
            _ => 3,
        }
    }

    /// Doublings between two cases; `None` if nothing follows from one for the other.
    fn distance(&self, other: &Case) -> Option<f64> {
        let kept = |case: &Case| case.features.iter().copied().filter(|f| *f != Feature::Paged).collect::<Vec<_>>();
        if self.direction != other.direction || self.family() != other.family() || kept(self) != kept(other) {
            return None;
        }
        let doublings = |a: u32, b: u32| (f64::from(a.max(1)) / f64::from(b.max(1))).log2().abs();
        let items = |case: &Case| case.batch.saturating_mul(case.kv_heads);
        let rows = |case: &Case| case.queries.saturating_mul(case.heads / case.kv_heads.max(1));
        let paged = |case: &Case| case.features.contains(&Feature::Paged);
        Some(
            doublings(items(self), items(other))
                + doublings(self.keys, other.keys)
                + doublings(rows(self), rows(other))
                + doublings(self.head_dim, other.head_dim)
                + f64::from(u8::from(paged(self) != paged(other))),
        )
    }
}

impl Table {
    /// The table that is built in.
    pub fn built_in() -> &'static Table {
        static TABLE: OnceLock<Table> = OnceLock::new();
        // A test reads the file, so there is no other case.
        let empty = || Table { format: TABLE_FORMAT, source: String::new(), rows: Vec::new() };
        TABLE.get_or_init(|| serde_json::from_str(include_str!("../data/engines.json")).unwrap_or_else(|_| empty()))
    }

    /// The row that speaks for a case, and how many doublings away it is.
    #[must_use]
    pub fn nearest(&self, case: &Case) -> Option<(&Row, f64)> {
        let near = self.rows.iter().filter_map(|row| Some((row, row.case.distance(case)?)));
        near.filter(|(row, distance)| *distance <= row.reach).min_by(|(_, a), (_, b)| a.total_cmp(b))
    }
}

impl Row {
    /// The kernels' time divided by cuDNN's.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.kernels_us / self.cudnn_us
    }

    /// The engine for an attention so many doublings away.
    #[must_use]
    pub fn engine(&self, distance: f64) -> Engine {
        if self.ratio() < CLEAR / (1.0 + FARTHER * distance) { Engine::Kernels } else { Engine::Cudnn }
    }
}

#[cfg(test)]
mod tests;
