//! The choice of an engine: measured times of all engines, as data, and what follows from them for every attention.
//!
//! `data/engines.json` has a row for every case that was measured; `qkvault-lab bench engines` writes it anew. A case
//! that was measured has its own times; every other one has those that [`Prior`] predicts from all rows, so no class
//! of attentions falls to one engine unseen.

mod case;
mod prior;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use qkvault_graph::EngineName;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::engine::EngineId;

pub use case::{Case, Direction, Feature};
pub use prior::{Expected, Limit, Prior};

/// The format of the table.
pub const TABLE_FORMAT: u32 = 3;

/// Another engine than the first is chosen below this share of the first one's time: a difference within the noise of
/// measurements is none.
pub const CLEAR: f64 = 0.97;

/// The table of measured times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// [`TABLE_FORMAT`].
    pub format: u32,
    /// The GPU that it was measured on.
    pub gpu: String,
    /// Its compute capability, as major * 10 + minor: other GPUs of it use the table too.
    pub sm: u32,
    /// With what it was measured, and when.
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
    /// Whether it is of a model and stays because the other rows do not foretell it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unforetold: bool,
    /// Times of the engines.
    #[serde(flatten)]
    pub times: Times,
}

/// Times of the engines for one case, in microseconds; one that does not take it or was not measured has none. In data
/// the time of an engine is `NAME_us`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times(BTreeMap<EngineName, f64>);

/// Times of a case by a table.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownTimes {
    /// The times.
    pub times: Times,
    /// Whether they were measured; else they are predicted from what was.
    pub measured: bool,
}

impl KnownTimes {
    /// The engines with times, the first choice first. A prediction has no noise that an engine would have to be clear
    /// of.
    #[must_use]
    pub fn order(&self, of: &[EngineId]) -> Vec<EngineId> {
        self.times.order(of, if self.measured { CLEAR } else { 1.0 })
    }
}

/// What follows the name of an engine in data.
const UNIT: &str = "_us";

impl FromIterator<(EngineName, f64)> for Times {
    fn from_iter<I: IntoIterator<Item = (EngineName, f64)>>(times: I) -> Times {
        Times(times.into_iter().collect())
    }
}

impl Serialize for Times {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.iter().map(|(engine, us)| (format!("{engine}{UNIT}"), us)))
    }
}

impl<'de> Deserialize<'de> for Times {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Times, D::Error> {
        // A row has other fields beside them.
        let fields = BTreeMap::<String, serde_json::Value>::deserialize(from)?;
        let times = fields.into_iter().filter_map(|(field, us)| Some((field.strip_suffix(UNIT)?.parse(), us.as_f64())));
        times
            .map(|(name, us)| Ok((name.map_err(de::Error::custom)?, us.ok_or_else(|| de::Error::custom("no time"))?)))
            .collect()
    }
}

impl Times {
    /// The times with the engines' names.
    pub fn iter(&self) -> impl Iterator<Item = (EngineName, f64)> {
        self.0.iter().map(|(engine, us)| (*engine, *us))
    }

    /// The time of an engine.
    #[must_use]
    pub fn us(&self, engine: EngineId) -> Option<f64> {
        self.0.get(&engine.name()).copied()
    }

    /// Notes the time of an engine.
    pub fn set(&mut self, engine: EngineId, us: f64) {
        self.0.insert(engine.name(), us);
    }

    /// The measured engines of those given, the first choice first: by time, but those that are not clearly faster than
    /// the first of those given come after it. `clear` is the share of its time that is clear.
    #[must_use]
    pub fn order(&self, of: &[EngineId], clear: f64) -> Vec<EngineId> {
        let first = of.first().copied();
        let bound = first.and_then(|first| self.us(first));
        let mut timed: Vec<(bool, f64, EngineId)> = of
            .iter()
            .filter_map(|&engine| {
                let us = self.us(engine)?;
                let after = Some(engine) != first && bound.is_some_and(|bound| us >= clear * bound);
                Some((after, if Some(engine) == first { f64::MAX } else { us }, engine))
            })
            .collect();
        timed.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        timed.into_iter().map(|(_, _, engine)| engine).collect()
    }

    /// How many of these engines, the first ones, are not clearly slower than the first; all, if its time is not known.
    #[must_use]
    pub fn near(&self, of: &[EngineId]) -> usize {
        let Some(first) = of.first().and_then(|first| self.us(*first)) else { return of.len() };
        of.iter().take_while(|engine| self.us(**engine).is_some_and(|us| us * CLEAR <= first)).count()
    }

    /// The time of an engine divided by the best of the others among those given.
    #[must_use]
    pub fn ratio(&self, engine: EngineId, of: &[EngineId]) -> Option<(f64, EngineId)> {
        let others = of.iter().filter(|other| **other != engine).filter_map(|&other| Some((self.us(other)?, other)));
        let (best, other) = others.min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some((self.us(engine)? / best, other))
    }
}

impl Table {
    /// The table that is built in.
    pub fn built_in() -> &'static Table {
        static TABLE: OnceLock<Table> = OnceLock::new();
        // A test reads the file, so there is no other case.
        let empty =
            || Table { format: TABLE_FORMAT, gpu: String::new(), sm: 0, source: String::new(), rows: Vec::new() };
        TABLE.get_or_init(|| serde_json::from_str(include_str!("../../data/engines.json")).unwrap_or_else(|_| empty()))
    }

    /// What the rows of the built-in table predict.
    pub fn prior_of_built_in() -> &'static Prior<'static> {
        static PRIOR: OnceLock<Prior<'static>> = OnceLock::new();
        PRIOR.get_or_init(|| Prior::over_rows(&Table::built_in().rows))
    }

    /// The times of a case: those of its row, if it compares these engines, or two of them; else what a prior over the
    /// rows predicts.
    #[must_use]
    pub fn times(&self, case: &Case, of: &[EngineId], prior: &Prior<'_>) -> KnownTimes {
        match self.row(case, of) {
            Some(row) => KnownTimes { times: row.times.clone(), measured: true },
            None => KnownTimes { times: prior.times(case), measured: false },
        }
    }

    /// The row of a case, or of one that differs by few tokens, if it compares these engines, or two of them.
    #[must_use]
    pub fn row(&self, case: &Case, of: &[EngineId]) -> Option<&Row> {
        let timed = |row: &&Row| of.iter().filter(|engine| row.times.us(**engine).is_some()).count();
        self.rows.iter().find(|row| row.case.is_like(case) && timed(row) >= of.len().min(2))
    }
}

#[cfg(test)]
mod tests;
