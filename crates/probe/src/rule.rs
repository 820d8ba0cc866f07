//! One rule, as data.

use std::fmt;

use qkvault_graph::{CudnnVersion, Origin, Reason};

use crate::Facts;

/// What a rule says of what it applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The library does not support it.
    Unsupported,
    /// The library supports it and computes it wrongly. Refused unless the request allows the rule by name.
    Wrong,
    /// qkvault has not built it yet.
    NotBuilt,
}

impl Kind {
    /// The layer that reasons of this kind name.
    #[must_use]
    pub const fn origin(self) -> Origin {
        match self {
            Kind::Unsupported => Origin::Rule,
            Kind::Wrong => Origin::Quirk,
            Kind::NotBuilt => Origin::NotBuilt,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Unsupported => "not supported",
            Kind::Wrong => "computed wrongly",
            Kind::NotBuilt => "not built",
        })
    }
}

/// The cuDNN versions that a rule holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The first; all before the end where there is none.
    pub from: Option<CudnnVersion>,
    /// The first that it no longer holds for; all from the first where there is none.
    pub before: Option<CudnnVersion>,
}

impl Versions {
    /// Every version.
    pub const ALL: Versions = Versions { from: None, before: None };

    /// Every version before this one.
    #[must_use]
    pub const fn before(minor: u16, patch: u16) -> Versions {
        Versions { from: None, before: Some(CudnnVersion::v9(minor, patch)) }
    }

    /// This version and every later one.
    #[must_use]
    pub const fn from(minor: u16, patch: u16) -> Versions {
        Versions { from: Some(CudnnVersion::v9(minor, patch)), before: None }
    }

    /// From the first version on, and before the second.
    #[must_use]
    pub const fn between(from: (u16, u16), before: (u16, u16)) -> Versions {
        Versions { from: Some(CudnnVersion::v9(from.0, from.1)), before: Some(CudnnVersion::v9(before.0, before.1)) }
    }

    /// Whether a version is one of them.
    #[must_use]
    pub fn has(&self, version: CudnnVersion) -> bool {
        self.from.is_none_or(|from| version >= from) && self.before.is_none_or(|before| version < before)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from, self.before) {
            (None, None) => f.pad("all"),
            (Some(from), None) => f.pad(&format!("from {from}")),
            (None, Some(before)) => f.pad(&format!("before {before}")),
            (Some(from), Some(before)) => f.pad(&format!("{from} to before {before}")),
        }
    }
}

/// One rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Stable name, such as `head-dim.multiple-of-8`: never reused, never renamed.
    pub code: &'static str,
    /// What it says of what it applies to.
    pub kind: Kind,
    /// The versions that it holds for.
    pub versions: Versions,
    /// The field of the description that it is about.
    pub field: &'static str,
    /// What is needed instead.
    pub needed: &'static str,
    /// What to do about it.
    pub fix: &'static str,
    /// Where it is known from.
    pub source: &'static str,
    /// Says what was given where the rule applies; nothing where it does not. Versions are looked at before.
    pub(crate) given: fn(&Facts<'_>) -> Option<String>,
}

impl Rule {
    /// The reason against these facts, where the rule applies.
    #[must_use]
    pub fn reason(&self, facts: &Facts<'_>) -> Option<Reason> {
        if !self.versions.has(facts.version()) {
            return None;
        }
        let given = (self.given)(facts)?;
        let mut reason = Reason::new(self.kind.origin(), self.code, self.field, given, self.needed, self.fix);
        reason.since = self.versions.before;
        Some(reason)
    }
}
