//! An entry of the registry: every known fact about one code.

use std::fmt;

use super::{Affected, Facts, Standing};
use crate::{CudnnVersion, Origin, Reason};

/// Every known fact about one code.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The stable name, such as `head-dim.multiple-of-8`. It is never renamed, and never gets another meaning.
    pub code: &'static str,
    /// What is wrong, in sentences.
    pub cause: &'static str,
    /// The kind of the refusal.
    pub origin: Origin,
    /// The affected versions and GPUs. The condition is checked only for these.
    pub affected: &'static [Affected],
    /// The field of the description; empty if it depends on what was given.
    pub field: &'static str,
    /// What is needed instead; empty if it depends on what was given, or if a newer version is enough.
    pub needed: &'static str,
    /// What to do about it; empty if nothing can be done.
    pub fix: &'static str,
    /// The source of the facts.
    pub source: &'static str,
    /// What was observed; empty if the source is enough.
    pub evidence: &'static str,
    /// Who saw it; every quirk has it.
    pub standing: Option<Standing>,
    /// Addresses of public reports and of guards of other projects.
    pub reports: &'static [&'static str],
    /// For a quirk, its place in [`QuirkSet`](super::QuirkSet) and in keys. It never changes.
    pub quirk: Option<u8>,
    /// How it is found that the entry applies.
    pub applies: Applies,
}

/// Returns what was given if the condition holds, and `None` if it does not. Versions and GPUs are checked before.
pub type Condition = fn(&Facts<'_>) -> Option<String>;

/// How it is found that an entry applies.
#[derive(Clone, Copy)]
pub enum Applies {
    /// The code that finds the fault reports it: validation, the compiler or a command.
    WhereFound,
    /// Lowering checks this condition, and writes no op graph if it holds.
    Lowering(Condition),
    /// The rules check this condition before cuDNN is asked. An op graph can still be written if it holds.
    Rules(Condition),
}

impl Entry {
    const fn with_origin(origin: Origin) -> Entry {
        Entry {
            code: "",
            cause: "",
            origin,
            affected: Affected::ALL,
            field: "",
            needed: "",
            fix: "",
            source: "",
            evidence: "",
            standing: None,
            reports: &[],
            quirk: None,
            applies: Applies::WhereFound,
        }
    }

    /// Defaults of an entry for a description that contradicts itself, on every version and GPU.
    pub(super) const fn description() -> Entry {
        Entry { source: "the definition of the description", ..Entry::with_origin(Origin::Description) }
    }

    /// Defaults of an entry for an unsupported feature.
    pub(super) const fn rule() -> Entry {
        Entry::with_origin(Origin::Rule)
    }

    /// Defaults of an entry for a feature that cuDNN computes wrongly. `place` is the next free [`Entry::quirk`].
    pub(super) const fn quirk(place: u8) -> Entry {
        Entry { quirk: Some(place), ..Entry::with_origin(Origin::Quirk) }
    }

    /// Defaults of an entry for a feature that qkvault does not build yet.
    pub(super) const fn not_built() -> Entry {
        Entry::with_origin(Origin::NotBuilt)
    }

    /// Defaults of an entry for a refusal of cuDNN itself.
    pub(super) const fn library() -> Entry {
        Entry { source: "the message of cuDNN, which the reason quotes", ..Entry::with_origin(Origin::Library) }
    }

    /// The condition, if the entry has one.
    #[must_use]
    pub const fn condition(&self) -> Option<Condition> {
        match self.applies {
            Applies::WhereFound => None,
            Applies::Lowering(condition) | Applies::Rules(condition) => Some(condition),
        }
    }

    /// The range of [`Entry::affected`] that contains a version and a GPU, if there is one.
    #[must_use]
    pub fn affects(&self, version: CudnnVersion, sm: u32) -> Option<Affected> {
        self.affected.iter().copied().find(|affected| affected.has(version, sm))
    }

    /// Makes the reason, with what was given and the first version that accepts it.
    pub(super) fn given(&'static self, given: String, since: Option<CudnnVersion>) -> Reason {
        let mut reason = super::Code::known(self).reason(given);
        reason.since = since;
        if let (true, Some(since)) = (self.needed.is_empty(), since) {
            reason.needed = format!("cuDNN {since} or newer");
        }
        reason
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("code", &self.code).field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// Defines a [`Code`](super::Code) for each entry, and the list of the file's entries.
macro_rules! entries {
    [$($name:ident = Entry { code: $code:literal, cause: $cause:literal, $($rest:tt)* }),+ $(,)?] => {
        $(
            #[doc = concat!("`", $code, "`: ", $cause)]
            pub static $name: $crate::registry::Code = {
                const ENTRY: &$crate::registry::Entry = &Entry { code: $code, cause: $cause, $($rest)* };
                $crate::registry::Code::known(ENTRY)
            };
        )+

        /// The entries of this file.
        pub(in $crate::registry) const ENTRIES: &[&$crate::registry::Entry] = &[
            $(match $name.entry() { Some(entry) => entry, None => panic!("a code of this file is an entry") }),+
        ];
    };
}

pub(super) use entries;
