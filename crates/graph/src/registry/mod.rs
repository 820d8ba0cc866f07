//! The registry: every reason for a refusal and all known facts about it, in one place.
//!
//! An [`Entry`] holds a code and its origin, the affected cuDNN versions and GPUs, the cause, what is needed instead,
//! the fix, and the source and evidence of these facts. Every reason is made from an entry ([`Code::reason`]), and
//! `docs/reasons.md` is written from this module.
//!
//! Two kinds of entries have a condition over [`Facts`], which are a valid description and a target. Lowering checks
//! the conditions of [`Applies::Lowering`], and writes no op graph if one holds. The rules check the conditions of
//! [`Applies::Rules`]; an op graph can still be written, and cuDNN may accept it. `qkvault-probe` checks the rules,
//! because it answers without cuDNN. Every other entry ([`Applies::WhereFound`]) is reported where its fault is found.
//!
//! To add a reason of validation, write its entry with `Entry::description()`, report it in `valid`, and add a fault
//! that causes it to `arbitrary/fault.rs`. To add a quirk, write its entry into the file of its theme in `codes`, with
//! the next free place (the field `quirk` of [`Entry`]), and two tests: a description that it refuses, and one that it
//! does not (`crates/probe/tests/rules.rs`). The crate's README lists the files, tests and pages of every such change.

mod affected;
mod code;
pub mod codes;
mod entry;
mod facts;
mod quirks;
mod reports;
mod rows;
mod standing;

pub use affected::{Affected, Gpus, Versions};
pub use code::Code;
pub use entry::{Applies, Condition, Entry};
pub use facts::Facts;
pub use quirks::{BadQuirk, QUIRKS, QuirkSet};
pub use reports::{Finding, LIBRARIES, Library, Project, Report, reports};
pub use standing::{Sight, Standing};

use crate::Reason;

/// The entries by theme, in the order in which a refusal lists its reasons.
const THEMES: [&[&Entry]; 31] = [
    codes::forms::ENTRIES,
    codes::fp8::ENTRIES,
    codes::fp8_limits::ENTRIES,
    codes::fp8_one_query::ENTRIES,
    codes::fp8_unproven::ENTRIES,
    codes::fp8_wrong::ENTRIES,
    codes::mxfp8::ENTRIES,
    codes::kernels::ENTRIES,
    codes::fa4::ENTRIES,
    codes::not_built::ENTRIES,
    codes::scores::ENTRIES,
    codes::paged::ENTRIES,
    codes::varlen::ENTRIES,
    codes::engines::ENTRIES,
    codes::versions::ENTRIES,
    codes::sizes::ENTRIES,
    codes::queries::ENTRIES,
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
    codes::combination::ENTRIES,
    codes::conversion::ENTRIES,
    codes::parallel::ENTRIES,
    codes::library::ENTRIES,
];

/// Every entry.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    THEMES.iter().copied().flatten().copied()
}

/// The reasons for which lowering refuses a description on a target.
pub fn refused_by_lowering(facts: &Facts<'_>) -> impl Iterator<Item = Reason> {
    rows::LOWERING.iter().filter_map(|row| row.reason(facts))
}

/// The reasons for which the rules refuse a description on a target, without those of lowering.
pub fn refused_by_rules(facts: &Facts<'_>) -> impl Iterator<Item = Reason> {
    rows::RULES.iter().filter_map(|row| row.reason(facts))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{CudnnVersion, Origin};

    #[test]
    fn every_entry_has_its_own_code() {
        let codes: BTreeSet<&str> = entries().map(|entry| entry.code).collect();
        assert_eq!(codes.len(), entries().count());
    }

    #[test]
    fn every_condition_is_checked_once() {
        let asked: Vec<&str> = rows::LOWERING.iter().chain(&rows::RULES).map(|row| row.entry().code).collect();
        let with: BTreeSet<&str> = entries().filter(|e| e.condition().is_some()).map(|e| e.code).collect();
        assert_eq!((asked.len(), asked.into_iter().collect()), (with.len(), with));
    }

    /// The page of `outputs.combination` named both the versions before 9.21 and every version.
    #[test]
    fn no_version_on_a_gpu_is_in_two_ranges_of_an_entry() {
        for entry in entries() {
            let edges = entry.affected.iter().flat_map(|affected| [affected.versions.from, affected.versions.before]);
            for version in edges.flatten().chain([CudnnVersion::v9(0, 0)]) {
                for sm in [75, 80, 86, 89, 90, 100, 103, 120, 121] {
                    let ranges = entry.affected.iter().filter(|affected| affected.has(version, sm)).count();
                    assert!(ranges <= 1, "{}: {ranges} ranges have {version} on {sm}", entry.code);
                }
            }
        }
    }

    #[test]
    fn an_entry_has_every_fact_that_people_need() {
        for entry in entries() {
            // The names `cuDNN`, `dK`, `qkvault` and `score_mod` begin in lower case.
            let begins =
                |word: &str| word.chars().any(|c| c.is_uppercase() || c.is_numeric() || c == '_') || word == "qkvault";
            let sentences = |text: &str| text.split(' ').next().is_some_and(begins) && text.ends_with('.');
            assert!(sentences(entry.cause), "{}: cause: {}", entry.code, entry.cause);
            assert!(entry.evidence.is_empty() || sentences(entry.evidence), "{}: {}", entry.code, entry.evidence);
            assert!(!entry.source.is_empty(), "{}: no source", entry.code);
            assert!(!entry.affected.is_empty(), "{}: about nothing", entry.code);
            assert_eq!(entry.quirk.is_some(), entry.origin == Origin::Quirk, "{}", entry.code);
            assert_eq!(entry.quirk.is_some(), entry.standing.is_some(), "{}: seen by whom?", entry.code);
            let told = entry.standing != Some(Standing::Reported) || !entry.reports.is_empty();
            assert!(told, "{}: where is the report?", entry.code);
            let not_confirmed = matches!(entry.standing, Some(Standing::NotConfirmed(_)));
            assert!(!not_confirmed, "{}: what runs right is not refused", entry.code);
            assert!(entry.reports.iter().all(|report| report.starts_with("https://")), "{}", entry.code);
            if entry.condition().is_some() {
                assert!(!entry.field.is_empty() && !entry.fix.is_empty(), "{}", entry.code);
                let newer = entry.affected.iter().all(|affected| affected.versions.before.is_some());
                assert!(newer || !entry.needed.is_empty(), "{}: what is needed?", entry.code);
            }
        }
    }
}
