//! Checks a stored entry by a rebuild: everything in it is generated again from the description that it keeps, compiled
//! again by this version's compilers, and compared.
//!
//! What follows without a compiler is compared first. Nothing of an entry but its description, versions and options
//! from closed lists is used, so an entry of a stranger can be checked. What an engine compares is in the `rebuild.rs`
//! of its folder.

use std::error::Error;
use std::sync::Arc;

use qkvault_cache::{Entry, EntryKind};
use qkvault_graph::{PlanKey, codec};

use crate::computation::ValidDescription;
use crate::difference::Difference;
use crate::facts::{Altered, PlanFacts};
use crate::origin::{By, Origin};
use crate::plan::Plan;
use crate::same_code::same_code;

/// The result of a rebuild.
#[derive(Debug)]
#[non_exhaustive]
pub enum RebuildCheck {
    /// Every fact, the kernels, and the labels are the same.
    Same {
        /// Number of compiled kernels in the plan.
        kernels: usize,
        /// Their bytes in the plan.
        kernel_bytes: usize,
    },
    /// It is refused again, for the same reasons.
    SameRefusal,
    /// It was not compiled: it is a measurement, or what compiled it is not here.
    Skipped {
        /// The reason.
        why: String,
    },
    /// The rebuild gives another plan.
    Different(Difference),
    /// Compiling does not work here.
    Failed(Box<dyn Error + Send + Sync>),
}

/// Why a check ends early.
pub(crate) enum Stop {
    Different(Difference),
    Other(RebuildCheck),
}

impl<T: Into<Difference>> From<T> for Stop {
    fn from(difference: T) -> Stop {
        Stop::Different(difference.into())
    }
}

pub(crate) type Checked = Result<RebuildCheck, Stop>;

/// An entry as what it was compiled from.
pub(crate) struct Stored<'a> {
    pub(crate) key: PlanKey,
    pub(crate) entry: &'a Entry,
    /// The plan; `None` if it is a refusal.
    pub(crate) plan: Option<Plan>,
    pub(crate) of: ValidDescription,
    pub(crate) by: By,
}

impl Stored<'_> {
    fn read(key: PlanKey, entry: &Entry) -> Result<Stored<'_>, Stop> {
        let plan = match entry.kind {
            EntryKind::Plan => Some(Plan::from_entry(key, &Arc::new(entry.clone()))?),
            EntryKind::Refusal | EntryKind::Times => None,
        };
        let written = plan.as_ref().map_or(&entry.meta[..], |plan| &entry.payload[plan.blob.len()..]);
        let Origin { of, by } = codec::decode(written)?;
        let (of, by) = (of.validate()?, by.canonical());
        // Its one form, which this version writes: nothing else may lie in it.
        let again = Origin { of: of.computation().description(), by };
        if plan.is_some() && codec::encode(&again) != written {
            return Err(Difference::Description.into());
        }
        Ok(Stored { key, entry, plan, of, by: again.by })
    }
}

/// Checks an entry if `check` knows what compiled it. An entry that does not read is nobody's.
pub(crate) fn by_its_engine(
    key: PlanKey,
    entry: &Entry,
    check: impl FnOnce(&Stored<'_>) -> Option<Checked>,
) -> Option<RebuildCheck> {
    let stored = Stored::read(key, entry).ok()?;
    check(&stored).map(told)
}

/// What nobody's check says of an entry: that it does not read, or whose it is not.
pub(crate) fn by_nobody(key: PlanKey, entry: &Entry) -> RebuildCheck {
    told(Stored::read(key, entry).and_then(|_| skipped("the engine that compiled it is not here")))
}

fn told(check: Checked) -> RebuildCheck {
    match check {
        Ok(check) | Err(Stop::Other(check)) => check,
        Err(Stop::Different(difference)) => RebuildCheck::Different(difference),
    }
}

pub(crate) fn skipped<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Other(RebuildCheck::Skipped { why: why.into() }))
}

pub(crate) fn failed<T>(why: impl Into<Box<dyn Error + Send + Sync>>) -> Result<T, Stop> {
    Err(Stop::Other(RebuildCheck::Failed(why.into())))
}

pub(crate) fn same_key(stored: PlanKey, found: PlanKey) -> Result<(), Difference> {
    if stored == found { Ok(()) } else { Err(Difference::Key { found }) }
}

pub(crate) fn same_facts(stored: &PlanFacts, expected: &PlanFacts) -> Result<(), Altered> {
    stored.altered(expected).map_or(Ok(()), Err)
}

/// Compares what a list of entries shows.
pub(crate) fn same_labels(stored: &Entry, expected: &Entry) -> Result<(), Altered> {
    let Entry { kind, target, what, library, meta: _, payload: _ } = expected;
    let labels = [
        ("target in the header", &stored.target, target),
        ("description in the header", &stored.what, what),
        ("library in the header", &stored.library, library),
    ];
    if stored.kind != *kind {
        return Err(Altered::new("kind", &stored.kind, kind));
    }
    match labels.into_iter().find(|(_, stored, expected)| stored != expected) {
        Some((label, stored, expected)) => Err(Altered::new(label, stored, expected)),
        None => Ok(()),
    }
}

pub(crate) fn same_cubins(stored: &Plan, compiled: &Plan) -> Checked {
    if !same_code(&stored.blob, &compiled.blob) {
        let (stored, compiled) = (stored.blob.len(), compiled.blob.len());
        return Err(Difference::Cubins { stored, compiled }.into());
    }
    let kernels = compiled.facts.kernels().map_or(0, |facts| facts.recipe.modules.len());
    Ok(RebuildCheck::Same { kernels, kernel_bytes: compiled.blob.len() })
}
