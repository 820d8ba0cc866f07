//! An entry of the registry: everything that is known of one code, in one value.

use std::fmt;

use super::{Affected, Facts};
use crate::{CudnnVersion, Origin, Reason};

/// Everything that is known of one code.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Stable name, such as `head-dim.multiple-of-8`: never reused, never renamed.
    pub code: &'static str,
    /// What is the matter, in sentences.
    pub cause: &'static str,
    /// Who says so.
    pub origin: Origin,
    /// The versions and GPUs that it is about. A condition is asked for these alone.
    pub affected: &'static [Affected],
    /// The field of the description that it is about; empty where that depends on what was given.
    pub field: &'static str,
    /// What is needed instead; empty where that depends on what was given, or where another version is all that is
    /// needed.
    pub needed: &'static str,
    /// What to do about it; empty where there is nothing to be done.
    pub fix: &'static str,
    /// Where it is known from.
    pub source: &'static str,
    /// What was seen; empty where the source says all.
    pub evidence: &'static str,
    /// Of a quirk, its place in sets of quirks and in the order in which keys name them. It never changes.
    pub quirk: Option<u8>,
    /// Who asks whether it applies, and how.
    pub applies: Applies,
}

/// What was given, where a condition holds; nothing where it does not. Versions and GPUs are looked at before.
pub type Condition = fn(&Facts<'_>) -> Option<String>;

/// Who asks whether an entry applies.
#[derive(Clone, Copy)]
pub enum Applies {
    /// Whoever finds it, where it is found: validation, a compiler, a command.
    WhereFound,
    /// Lowering, which writes no op graph then.
    Lowering(Condition),
    /// The rules, which are asked before a library is. An op graph can be written all the same.
    Rules(Condition),
}

impl Entry {
    const fn of(origin: Origin) -> Entry {
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
            quirk: None,
            applies: Applies::WhereFound,
        }
    }

    /// The rest of an entry about what contradicts itself, whatever the library and the GPU.
    pub(super) const fn description() -> Entry {
        Entry { source: "the definition of the description", ..Entry::of(Origin::Description) }
    }

    /// The rest of an entry about what is not supported.
    pub(super) const fn rule() -> Entry {
        Entry::of(Origin::Rule)
    }

    /// The rest of an entry about what is computed wrongly, with its place in sets of quirks: the next free one.
    pub(super) const fn quirk(place: u8) -> Entry {
        Entry { quirk: Some(place), ..Entry::of(Origin::Quirk) }
    }

    /// The rest of an entry about what qkvault does not build yet.
    pub(super) const fn not_built() -> Entry {
        Entry::of(Origin::NotBuilt)
    }

    /// The rest of an entry about what the library says in its own words.
    pub(super) const fn library() -> Entry {
        Entry { source: "cuDNN, in the words of the reason", ..Entry::of(Origin::Library) }
    }

    /// The condition, of an entry that has one.
    #[must_use]
    pub const fn condition(&self) -> Option<Condition> {
        match self.applies {
            Applies::WhereFound => None,
            Applies::Lowering(condition) | Applies::Rules(condition) => Some(condition),
        }
    }

    /// What a version on a GPU is affected by; nothing where it is not.
    #[must_use]
    pub fn affects(&self, version: CudnnVersion, sm: u32) -> Option<Affected> {
        self.affected.iter().copied().find(|affected| affected.has(version, sm))
    }

    /// The reason with what was given, and the first version that takes it.
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

/// Makes a [`Code`](super::Code) of each entry, and the list of the entries of a file.
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
