//! Looks up plans and refusals in a vault, and reads its entries.

use std::sync::Arc;

use qkvault_cache::{Entry, EntryKind, Key, Lookup, Source, Vault};
use qkvault_graph::{PlanKey, Refusal, codec};

use crate::job::{Found, Job};
use crate::plan::{self, BadPlan, Plan};
use crate::planner::PlanError;

/// Looks up an existing entry. `OnMiss::Memory` reads no disk, for code that must not wait.
pub(crate) fn look(vault: &Vault, job: &Job<'_>, memory_alone: bool) -> Result<Found, PlanError> {
    if let Some((source, entry)) = stored(vault, &job.key, memory_alone)
        && let Ok(outcome) = outcome(job.key, &entry)
    {
        return Ok((source, None, outcome));
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

/// The plan or the refusal of an entry.
pub(crate) fn outcome(key: PlanKey, entry: &Arc<Entry>) -> Result<Result<Arc<Plan>, Refusal>, BadEntry> {
    match entry.kind {
        EntryKind::Plan => Ok(Ok(Arc::new(Plan::from_entry(key, entry)?))),
        EntryKind::Refusal => Ok(Err(plan::refusal_of(entry)?)),
        EntryKind::Times => Err(BadEntry::Times),
    }
}
