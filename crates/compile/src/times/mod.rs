//! The choice of an engine: measured times of all engines, as data.
//!
//! `data/engines.json` has a row for every case that was measured, which `qkvault-lab bench engines` writes anew. An
//! attention is judged by the row nearest to it, and the farther that is, the clearer the row must be. Where no row
//! speaks, the engine that comes first without times keeps the attention.

mod case;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use qkvault_graph::EngineName;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::engine::EngineId;

pub use case::{Case, Direction, Feature};

/// The format of the table.
pub const TABLE_FORMAT: u32 = 2;

/// Another engine than the first is chosen below this share of the first one's time: a difference within the noise of
/// measurements is none.
pub const CLEAR: f64 = 0.97;

/// How much clearer a row must be for each doubling that lies between it and the attention, where memory is the limit.
const FARTHER: f64 = 0.1;

/// The same for prompts and backwards, whose ratios change slowly.
const FARTHER_DENSE: f64 = 0.03;

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

/// Times of the engines for one case, in microseconds; one that does not take it or was not measured has none. In data
/// the time of an engine is `NAME_us`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times(BTreeMap<EngineName, f64>);

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
        let empty = || Table { format: TABLE_FORMAT, source: String::new(), rows: Vec::new() };
        TABLE.get_or_init(|| serde_json::from_str(include_str!("../../data/engines.json")).unwrap_or_else(|_| empty()))
    }

    /// The row that speaks for a case and compares at least two of these engines, and how many doublings away it is.
    #[must_use]
    pub fn nearest(&self, case: &Case, of: &[EngineId]) -> Option<(&Row, f64)> {
        let compares = |row: &&Row| of.iter().filter(|engine| row.times.us(**engine).is_some()).count() > 1;
        let near = self.rows.iter().filter(compares).filter_map(|row| Some((row, row.case.distance(case)?)));
        near.filter(|(row, distance)| *distance <= row.reach).min_by(|(_, a), (_, b)| a.total_cmp(b))
    }
}

impl Row {
    /// The measured engines of those given for an attention so many doublings away, the first choice first.
    #[must_use]
    pub fn order(&self, of: &[EngineId], distance: f64) -> Vec<EngineId> {
        let farther = if self.case.is_dense() { FARTHER_DENSE } else { FARTHER };
        self.times.order(of, CLEAR / (1.0 + farther * distance))
    }
}

#[cfg(test)]
mod tests;
