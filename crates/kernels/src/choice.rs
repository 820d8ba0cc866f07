//! The choice of an engine: measured times of all engines, as data.
//!
//! `data/engines.json` has a row for every case that was measured, which `qkvault-lab bench engines` writes anew. An
//! attention is judged by the row nearest to it, and the farther that is, the clearer the row must be. Where no row
//! speaks, cuDNN keeps the attention.

mod case;

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

pub use case::{Case, Direction, Feature};

/// The format of the table.
pub const TABLE_FORMAT: u32 = 2;

/// Another engine than cuDNN is chosen below this share of cuDNN's time: a difference within the noise of measurements
/// is none.
pub const CLEAR: f64 = 0.97;

/// How much clearer a row must be for each doubling that lies between it and the attention, where memory is the limit.
const FARTHER: f64 = 0.1;

/// The same for prompts and backwards, whose ratios change slowly.
const FARTHER_DENSE: f64 = 0.03;

/// Who computes an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// Every engine.
    pub const ALL: [Engine; 3] = [Engine::Cudnn, Engine::Kernels, Engine::Fa4];

    /// Its name, as in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Cudnn => "cudnn",
            Engine::Kernels => "kernels",
            Engine::Fa4 => "fa4",
        }
    }

    /// Its name in sentences.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Engine::Cudnn => "cuDNN",
            Engine::Kernels => "kernels",
            Engine::Fa4 => "FlashAttention-4",
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

/// A case that at least two engines were measured at, in turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The case.
    #[serde(flatten)]
    pub case: Case,
    /// How far the row speaks, in doublings.
    pub reach: f64,
    /// Times of the engines.
    #[serde(flatten)]
    pub times: Times,
}

/// Times of the engines for one case, in microseconds; `None` for one that does not take it or was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Of the kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels_us: Option<f64>,
    /// Of cuDNN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cudnn_us: Option<f64>,
    /// Of FlashAttention-4's kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fa4_us: Option<f64>,
}

impl Times {
    /// The time of an engine.
    #[must_use]
    pub const fn of(&self, engine: Engine) -> Option<f64> {
        match engine {
            Engine::Cudnn => self.cudnn_us,
            Engine::Kernels => self.kernels_us,
            Engine::Fa4 => self.fa4_us,
        }
    }

    /// The time of an engine, to be written.
    pub const fn of_mut(&mut self, engine: Engine) -> &mut Option<f64> {
        match engine {
            Engine::Cudnn => &mut self.cudnn_us,
            Engine::Kernels => &mut self.kernels_us,
            Engine::Fa4 => &mut self.fa4_us,
        }
    }

    /// The measured engines of those given, the first choice first: by time, but those that are not clearly faster than
    /// cuDNN come after it. `clear` is the share of cuDNN's time that is clear.
    #[must_use]
    pub fn order(&self, of: &[Engine], clear: f64) -> Vec<Engine> {
        let bound = self.cudnn_us.filter(|_| of.contains(&Engine::Cudnn));
        let mut timed: Vec<(bool, f64, Engine)> = of
            .iter()
            .filter_map(|&engine| {
                let us = self.of(engine)?;
                let after = engine != Engine::Cudnn && bound.is_some_and(|bound| us >= clear * bound);
                Some((after, if engine == Engine::Cudnn && !after { f64::MAX } else { us }, engine))
            })
            .collect();
        timed.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        timed.into_iter().map(|(_, _, engine)| engine).collect()
    }

    /// The time of an engine divided by the best of the others among those given.
    #[must_use]
    pub fn ratio(&self, engine: Engine, of: &[Engine]) -> Option<(f64, Engine)> {
        let others = of.iter().filter(|other| **other != engine).filter_map(|&other| Some((self.of(other)?, other)));
        let (best, other) = others.min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some((self.of(engine)? / best, other))
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

    /// The row that speaks for a case and compares at least two of these engines, and how many doublings away it is.
    #[must_use]
    pub fn nearest(&self, case: &Case, of: &[Engine]) -> Option<(&Row, f64)> {
        let compares = |row: &&Row| of.iter().filter(|engine| row.times.of(**engine).is_some()).count() > 1;
        let near = self.rows.iter().filter(compares).filter_map(|row| Some((row, row.case.distance(case)?)));
        near.filter(|(row, distance)| *distance <= row.reach).min_by(|(_, a), (_, b)| a.total_cmp(b))
    }
}

impl Row {
    /// The measured engines of those given for an attention so many doublings away, the first choice first.
    #[must_use]
    pub fn order(&self, of: &[Engine], distance: f64) -> Vec<Engine> {
        let farther = if self.case.is_dense() { FARTHER_DENSE } else { FARTHER };
        self.times.order(of, CLEAR / (1.0 + farther * distance))
    }
}

#[cfg(test)]
mod tests;
