//! The conditions, next to each other in memory: every check of a description runs all of them, in about a microsecond.

use super::{Affected, Applies, Condition, Declared, Facts, THEMES};
use crate::{CudnnVersion, Reason};

/// A condition, and the versions and GPUs for which it is checked.
#[derive(Clone, Copy)]
pub(super) struct Row {
    affected: Affected,
    /// The other ranges of versions and GPUs, if there are several.
    others: &'static [Affected],
    condition: Condition,
    entry: &'static qkvault_graph::registry::Entry,
}

/// The conditions that lowering checks.
pub(super) static LOWERING: [Row; count(true)] = rows(true);

/// The conditions that the rules check.
pub(super) static RULES: [Row; count(false)] = rows(false);

impl Row {
    /// The reason to refuse these facts, if the condition holds.
    pub(super) fn reason(&self, facts: &Facts<'_>) -> Option<Reason> {
        let (version, sm) = (facts.version(), facts.sm());
        let affected = self.affected_by(version, sm)?;
        let given = (self.condition)(facts)?;
        Some(super::given(self.entry, given, affected.versions.before))
    }

    /// The result of [`Entry::affects`], without a read of the entry.
    fn affected_by(&self, version: CudnnVersion, sm: u32) -> Option<Affected> {
        let is = |affected: &&Affected| affected.has(version, sm);
        Some(&self.affected).filter(is).or_else(|| self.others.iter().find(is)).copied()
    }

    #[cfg(test)]
    pub(super) const fn entry(&self) -> &'static qkvault_graph::registry::Entry {
        self.entry
    }
}

/// The row of an entry, if lowering (or, with `lowering` false, the rules) checks it.
const fn row((entry, facts): Declared, lowering: bool) -> Option<Row> {
    let condition = match entry.applies {
        Applies::Lowering(condition) if lowering => condition,
        Applies::Rules(condition) if !lowering => condition,
        Applies::Lowering(_) | Applies::Rules(_) | Applies::WhereFound => return None,
    };
    match entry.affected.split_first() {
        Some((&affected, others)) => Some(Row { affected, others, condition, entry: facts }),
        None => panic!("an entry affects at least one range of versions and GPUs"),
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
    const NEVER: Row = Row { affected: Affected::ALL[0], others: &[], condition: |_| None, entry: THEMES[0][0].1 };
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
