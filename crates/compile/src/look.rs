//! Looks up plans and refusals in a vault, and reads its entries.

use std::sync::Arc;

use qkvault_cache::{Entry, EntryKind, Key, Lookup, Source, Vault};
use qkvault_graph::{PlanKey, Refusal, codec};

use crate::facts::Made;
use crate::job::{Found, Job};
use crate::origin::Origin;
use crate::plan::{self, BadPlan, Plan};
use crate::planner::PlanError;

/// Looks up an existing entry. `OnMiss::Memory` reads no disk, for code that must not wait.
pub(crate) fn look(vault: &Vault, job: &Job<'_>, memory_alone: bool) -> Result<Found, PlanError> {
    if let Some((source, entry)) = stored(vault, &job.key, memory_alone) {
        match outcome(job, &entry) {
            Ok(outcome) => return Ok((source, None, outcome)),
            Err(bad) => discredit(vault, &job.key, &entry, &bad),
        }
    }
    let (what, target) = (job.what.to_owned(), job.target.label());
    Err(PlanError::Missing { key: job.key, what, target, memory_alone })
}

/// The entry under a plan's key, from memory or, if that may be asked, from everywhere else.
pub(crate) fn stored(vault: &Vault, key: &PlanKey, memory_alone: bool) -> Option<(Source, Arc<Entry>)> {
    let key = vault_key(key);
    match vault.recall(&key) {
        Some(entry) => Some((Source::Memory, entry)),
        None if memory_alone => None,
        None => match vault.get(&key) {
            Lookup::Hit(entry) => Some((Source::Disk, entry)),
            Lookup::Absent | Lookup::Rejected(_) => None,
        },
    }
}

/// The vault's key for a plan's key.
pub(crate) fn vault_key(key: &PlanKey) -> Key {
    Key(*key.bytes())
}

/// A vault entry that cannot be read as its kind requires.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadEntry {
    #[error(transparent)]
    Plan(#[from] BadPlan),
    #[error("the reasons of a refusal cannot be read: {0}")]
    Refusal(#[from] codec::DecodeError),
    #[error("the entry has measured times and is no plan")]
    Times,
}

/// The plan or the refusal of an entry. Every fact that follows from the job is compared with the job's.
pub(crate) fn outcome(job: &Job<'_>, entry: &Arc<Entry>) -> Result<Result<Arc<Plan>, Refusal>, BadEntry> {
    match entry.kind {
        EntryKind::Plan => {
            let Plan { facts, blob } = Plan::from_entry(job.key, entry)?;
            // The description begins where cuDNN's bytes end.
            let origin: Result<Origin, _> = codec::decode(&entry.payload[blob.len()..]);
            origin.map_err(|error| BadPlan::Origin { key: job.key, why: error.to_string() })?;
            let asked = job.facts(Made::of(&facts)).asked(&facts);
            let facts = asked.map_err(|altered| BadPlan::Altered { key: job.key, altered: Box::new(altered) })?;
            Ok(Ok(Arc::new(Plan { facts, blob })))
        }
        EntryKind::Refusal => Ok(Err(plan::refusal_of(entry)?)),
        EntryKind::Times => Err(BadEntry::Times),
    }
}

impl BadEntry {
    /// Whether the entry says something wrong, rather than something that this version does not read.
    fn is_wrong(&self) -> bool {
        match self {
            BadEntry::Plan(bad) => bad.is_wrong(),
            BadEntry::Refusal(_) => false,
            BadEntry::Times => true,
        }
    }
}

/// Serves an entry no more: a wrong one goes to the vault's quarantine with the reason.
pub(crate) fn discredit(vault: &Vault, key: &PlanKey, entry: &Arc<Entry>, bad: &BadEntry) {
    if bad.is_wrong() {
        vault.discredit(&vault_key(key), entry, &bad.to_string());
    } else {
        tracing::warn!(%key, %bad, "a vault entry is not read");
    }
}
