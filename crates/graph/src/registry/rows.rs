//! The conditions beside each other in memory, since each is asked of every description: a check takes a microsecond.

use super::{Affected, Applies, Condition, Entry, Facts, THEMES};
use crate::{CudnnVersion, Reason};

/// A condition, and where it is asked.
#[derive(Clone, Copy)]
pub(super) struct Row {
    affected: Affected,
    /// Where there is more than one range of versions and GPUs, the others.
    others: &'static [Affected],
    condition: Condition,
    entry: &'static Entry,
}

/// What lowering asks.
pub(super) static LOWERING: [Row; count(true)] = rows(true);

/// What the rules ask.
pub(super) static RULES: [Row; count(false)] = rows(false);

impl Row {
    /// The reason against these facts, where the condition holds.
    pub(super) fn reason(&self, facts: &Facts<'_>) -> Option<Reason> {
        let (version, sm) = (facts.version(), facts.sm());
        let affected = self.affected_by(version, sm)?;
        let given = (self.condition)(facts)?;
        Some(self.entry.given(given, affected.versions.before))
    }

    /// What [`Entry::affects`] says, without going to the entry.
    fn affected_by(&self, version: CudnnVersion, sm: u32) -> Option<Affected> {
        let is = |affected: &&Affected| affected.has(version, sm);
        Some(&self.affected).filter(is).or_else(|| self.others.iter().find(is)).copied()
    }

    #[cfg(test)]
    pub(super) const fn entry(&self) -> &'static Entry {
        self.entry
    }
}

/// The row of an entry, of those that lowering asks or of those that rules ask.
const fn row(entry: &'static Entry, lowering: bool) -> Option<Row> {
    let condition = match entry.applies {
        Applies::Lowering(condition) if lowering => condition,
        Applies::Rules(condition) if !lowering => condition,
        Applies::Lowering(_) | Applies::Rules(_) | Applies::WhereFound => return None,
    };
    match entry.affected.split_first() {
        Some((&affected, others)) => Some(Row { affected, others, condition, entry }),
        None => panic!("an entry is about some versions on some GPUs"),
    }
}

const fn count(lowering: bool) -> usize {
    let (mut count, mut theme) = (0, 0);
    while theme < THEMES.len() {
        let mut at = 0;
        while at < THEMES[theme].len() {
            if row(THEMES[theme][at], lowering).is_some() {
                count += 1;
            }
            at += 1;
        }
        theme += 1;
    }
    count
}

const fn rows<const N: usize>(lowering: bool) -> [Row; N] {
    const NEVER: Row = Row { affected: Affected::ALL[0], others: &[], condition: |_| None, entry: THEMES[0][0] };
    let (mut rows, mut count, mut theme) = ([NEVER; N], 0, 0);
    while theme < THEMES.len() {
        let mut at = 0;
        while at < THEMES[theme].len() {
            if let Some(row) = row(THEMES[theme][at], lowering) {
                rows[count] = row;
                count += 1;
            }
            at += 1;
        }
        theme += 1;
    }
    rows
}
