//! An entry of the registry: every known fact about one code.

use std::fmt;

use super::{Affected, Standing};
use crate::{CudnnVersion, Origin};

/// Every known fact about one code. `C` is the condition under which it applies, for registries that check conditions.
#[derive(Clone, Copy)]
pub struct Entry<C = ()> {
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
    /// For a quirk, its place in sets of quirks and in keys. It never changes.
    pub quirk: Option<u8>,
    /// How it is found that the entry applies.
    pub applies: Applies<C>,
}

/// How it is found that an entry applies.
#[derive(Clone, Copy)]
pub enum Applies<C = ()> {
    /// The code that finds the fault reports it: validation, the compiler or a command.
    WhereFound,
    /// Lowering checks this condition, and writes no op graph if it holds.
    Lowering(C),
    /// The rules check this condition before a library is asked. An op graph can still be written if it holds.
    Rules(C),
}

impl<C: Copy> Entry<C> {
    const fn with_origin(origin: Origin) -> Entry<C> {
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
    #[must_use]
    pub const fn description() -> Entry<C> {
        Entry { source: "the definition of the description", ..Entry::with_origin(Origin::Description) }
    }

    /// Defaults of an entry for an unsupported feature.
    #[must_use]
    pub const fn rule() -> Entry<C> {
        Entry::with_origin(Origin::Rule)
    }

    /// Defaults of an entry for a feature that a library computes wrongly. `place` is the next free [`Entry::quirk`].
    #[must_use]
    pub const fn quirk(place: u8) -> Entry<C> {
        Entry { quirk: Some(place), ..Entry::with_origin(Origin::Quirk) }
    }

    /// Defaults of an entry for a feature that qkvault does not build yet.
    #[must_use]
    pub const fn not_built() -> Entry<C> {
        Entry::with_origin(Origin::NotBuilt)
    }

    /// Defaults of an entry for a refusal of a library itself.
    #[must_use]
    pub const fn library() -> Entry<C> {
        Entry { source: "the message of cuDNN, which the reason quotes", ..Entry::with_origin(Origin::Library) }
    }

    /// The condition, if the entry has one.
    #[must_use]
    pub const fn condition(&self) -> Option<C> {
        match self.applies {
            Applies::WhereFound => None,
            Applies::Lowering(condition) | Applies::Rules(condition) => Some(condition),
        }
    }

    /// The facts without the condition.
    #[must_use]
    pub const fn facts(&self) -> Entry {
        let applies = match self.applies {
            Applies::WhereFound => Applies::WhereFound,
            Applies::Lowering(_) => Applies::Lowering(()),
            Applies::Rules(_) => Applies::Rules(()),
        };
        let Entry {
            code, cause, origin, affected, field, needed, fix, source, evidence, standing, reports, quirk, ..
        } = *self;
        Entry { code, cause, origin, affected, field, needed, fix, source, evidence, standing, reports, quirk, applies }
    }

    /// The range of [`Entry::affected`] that contains a version and a GPU, if there is one.
    #[must_use]
    pub fn affects(&self, version: CudnnVersion, sm: u32) -> Option<Affected> {
        self.affected.iter().copied().find(|affected| affected.has(version, sm))
    }
}

impl<C> fmt::Debug for Entry<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("code", &self.code).field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// Defines a [`Code`](crate::Code) for each entry, and `ENTRIES`, the list of the file's entries, for this crate or,
/// after `pub;`, for all.
#[macro_export]
macro_rules! entries {
    [pub; $($rest:tt)*] => {
        $crate::entries![(pub) $($rest)*];
    };
    [($list:vis) $($name:ident = Entry { code: $code:literal, cause: $cause:literal, $($rest:tt)* }),+ $(,)?] => {
        $(
            #[doc = concat!("`", $code, "`: ", $cause)]
            pub static $name: $crate::Code = {
                const ENTRY: &$crate::registry::Entry = &Entry { code: $code, cause: $cause, $($rest)* };
                $crate::Code::known(ENTRY)
            };
        )+

        /// The entries of this file.
        $list const ENTRIES: &[&$crate::registry::Entry] = &[
            $(match $name.entry() { Some(entry) => entry, None => panic!("a code of this file is an entry") }),+
        ];
    };
    [$($rest:tt)*] => {
        $crate::entries![(pub(crate)) $($rest)*];
    };
}
