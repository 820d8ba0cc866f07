//! Every reason for which cuDNN's engine refuses, and all known facts about it.
//!
//! Two kinds of entries have a condition over [`Facts`], which are a valid description and a target. Lowering checks
//! the conditions of [`Applies::Lowering`], and writes no op graph if one holds. The rules check the conditions of
//! [`Applies::Rules`]; an op graph can still be written, and cuDNN may accept it. `qkvault-probe` checks the rules,
//! because it answers without cuDNN. Every other entry ([`Applies::WhereFound`]) is reported where its fault is found.
//!
//! To add a quirk, write its entry into the file of its theme in `codes`, with the next free place (the field `quirk`
//! of [`Entry`]), and two tests: a description that it refuses, and one that it does not
//! (`crates/probe/tests/rules.rs`). The crate's README lists the files, tests and pages of every such change.

pub mod codes;
mod facts;
mod quirks;
mod rows;

pub use facts::Facts;
pub use qkvault_graph::registry::{Affected, Applies, Code, Gpus, Sight, Standing, Versions};
pub use quirks::{BadQuirk, QUIRKS, QuirkSet};

use crate::{CudnnVersion, Reason};

/// Returns what was given if the condition holds, and `None` if it does not. Versions and GPUs are checked before.
pub type Condition = fn(&Facts<'_>) -> Option<String>;

/// An entry with its condition.
pub type Entry = qkvault_graph::registry::Entry<Condition>;

/// An entry, and the same without its condition.
type Declared = (&'static Entry, &'static qkvault_graph::registry::Entry);

/// Defines a [`Code`] for each entry, and the list of the file's entries.
macro_rules! entries {
    [$($name:ident = Entry { code: $code:literal, cause: $cause:literal, $($rest:tt)* }),+ $(,)?] => {
        $(
            #[doc = concat!("`", $code, "`: ", $cause)]
            pub static $name: $crate::registry::Code = {
                const ENTRY: $crate::registry::Entry = Entry { code: $code, cause: $cause, $($rest)* };
                const FACTS: &qkvault_graph::registry::Entry = &ENTRY.facts();
                $crate::registry::Code::known(FACTS)
            };
        )+

        /// The entries of this file.
        pub(in $crate::registry) const ENTRIES: &[$crate::registry::Declared] = &[
            $((&Entry { code: $code, cause: $cause, $($rest)* }, match $name.entry() {
                Some(facts) => facts,
                None => panic!("a code of this file is an entry"),
            })),+
        ];
    };
}

pub(in crate::registry) use entries as declare;

/// The entries by theme, in the order in which a refusal lists its reasons.
const THEMES: [&[Declared]; 22] = [
    codes::forms::ENTRIES,
    codes::fp8::ENTRIES,
    codes::fp8_limits::ENTRIES,
    codes::fp8_one_query::ENTRIES,
    codes::fp8_unproven::ENTRIES,
    codes::fp8_wrong::ENTRIES,
    codes::mxfp8::ENTRIES,
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
    codes::library::ENTRIES,
    codes::targets::ENTRIES,
];

/// Every entry.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    THEMES.iter().copied().flatten().map(|(entry, _)| *entry)
}

/// Every entry without its condition.
pub fn facts() -> impl Iterator<Item = &'static qkvault_graph::registry::Entry> {
    THEMES.iter().copied().flatten().map(|(_, facts)| *facts)
}

/// The reasons for which lowering refuses a description on a target.
pub fn refused_by_lowering(facts: &Facts<'_>) -> impl Iterator<Item = Reason> {
    rows::LOWERING.iter().filter_map(|row| row.reason(facts))
}

/// The reasons for which the rules refuse a description on a target, without those of lowering.
pub fn refused_by_rules(facts: &Facts<'_>) -> impl Iterator<Item = Reason> {
    rows::RULES.iter().filter_map(|row| row.reason(facts))
}

/// Makes the reason of an entry, with what was given and the first version that accepts it.
fn given(entry: &'static qkvault_graph::registry::Entry, given: String, since: Option<CudnnVersion>) -> Reason {
    let mut reason = Code::known(entry).reason(given);
    reason.since = since;
    if let (true, Some(since)) = (entry.needed.is_empty(), since) {
        reason.needed = format!("cuDNN {since} or newer");
    }
    reason
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
