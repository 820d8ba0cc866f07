//! The registry: every reason that there is, with what is known of it, in one place.
//!
//! An [`Entry`] has a code and its origin, the cuDNN versions and GPUs that it is about, cause, need and fix, and where
//! that is known from. Reasons are made of entries ([`Code::reason`]) and of nothing else, so what is not here cannot
//! be said. `docs/reasons.md` is written from here.
//!
//! Two kinds of entries have a condition over [`Facts`], a valid description on a target. What lowering refuses
//! ([`Applies::Lowering`]) has no op graph. What rules refuse ([`Applies::Rules`]) has one, which a library may take
//! all the same; who has no library at hand, as `qkvault-probe`, asks them. Everything else is found where it happens
//! ([`Applies::WhereFound`]).
//!
//! To add a quirk, write its entry into the file of its theme in `codes`, with the next free place ([`Entry::quirk`]),
//! and two tests: a description for which it fires, and one for which it does not (`crates/probe/tests/rules.rs`).

mod affected;
mod code;
pub mod codes;
mod entry;
mod facts;
mod quirks;
mod rows;

pub use affected::{Affected, Gpus, Versions};
pub use code::Code;
pub use entry::{Applies, Condition, Entry};
pub use facts::Facts;
pub use quirks::{BadQuirk, QUIRKS, QuirkSet};

use crate::Reason;

/// The entries by theme, in the order in which reasons are given.
const THEMES: [&[&Entry]; 19] = [
    codes::forms::ENTRIES,
    codes::not_built::ENTRIES,
    codes::scores::ENTRIES,
    codes::paged::ENTRIES,
    codes::varlen::ENTRIES,
    codes::engines::ENTRIES,
    codes::versions::ENTRIES,
    codes::sizes::ENTRIES,
    codes::strides::ENTRIES,
    codes::bands::ENTRIES,
    codes::passes::ENTRIES,
    codes::deterministic::ENTRIES,
    codes::memory::ENTRIES,
    codes::tensors::ENTRIES,
    codes::features::ENTRIES,
    codes::documents::ENTRIES,
    codes::offsets::ENTRIES,
    codes::callers::ENTRIES,
    codes::library::ENTRIES,
];

/// Every entry.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    THEMES.iter().copied().flatten().copied()
}

/// What lowering refuses of a description on a target.
pub fn refused_by_lowering(facts: &Facts<'_>) -> impl Iterator<Item = Reason> {
    rows::LOWERING.iter().filter_map(|row| row.reason(facts))
}

/// What the rules refuse of a description on a target, beside what lowering does.
pub fn refused_by_rules(facts: &Facts<'_>) -> impl Iterator<Item = Reason> {
    rows::RULES.iter().filter_map(|row| row.reason(facts))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Origin;

    #[test]
    fn a_code_is_one_entry() {
        let codes: BTreeSet<&str> = entries().map(|entry| entry.code).collect();
        assert_eq!(codes.len(), entries().count());
    }

    #[test]
    fn every_condition_is_asked_once() {
        let asked: Vec<&str> = rows::LOWERING.iter().chain(&rows::RULES).map(|row| row.entry().code).collect();
        let with: BTreeSet<&str> = entries().filter(|e| e.condition().is_some()).map(|e| e.code).collect();
        assert_eq!((asked.len(), asked.into_iter().collect()), (with.len(), with));
    }

    #[test]
    fn an_entry_says_what_people_need() {
        for entry in entries() {
            // `cuDNN` and `dK` are names.
            let begins = |word: &str| word.chars().any(|c| c.is_uppercase() || c.is_numeric());
            let sentences = |text: &str| text.split(' ').next().is_some_and(begins) && text.ends_with('.');
            assert!(sentences(entry.cause), "{}: cause: {}", entry.code, entry.cause);
            assert!(entry.evidence.is_empty() || sentences(entry.evidence), "{}: {}", entry.code, entry.evidence);
            assert!(!entry.source.is_empty(), "{}: no source", entry.code);
            assert!(!entry.affected.is_empty(), "{}: about nothing", entry.code);
            assert_eq!(entry.quirk.is_some(), entry.origin == Origin::Quirk, "{}", entry.code);
            if entry.condition().is_some() {
                assert!(!entry.field.is_empty() && !entry.fix.is_empty(), "{}", entry.code);
                let newer = entry.affected.iter().all(|affected| affected.versions.before.is_some());
                assert!(newer || !entry.needed.is_empty(), "{}: what is needed?", entry.code);
            }
        }
    }
}
