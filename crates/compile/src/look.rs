//! Looks up plans and refusals in a vault, and reads its entries.

use std::sync::Arc;

use qkvault_cache::{Entry, Key, Lookup, Source, Vault};
use qkvault_graph::{PlanKey, codec};

use crate::plan::BadPlan;

/// The entry under a plan's key, from memory or, if that may be asked, from everywhere else; or why what is there is
/// not read, if something is.
pub(crate) fn stored(vault: &Vault, key: &PlanKey, memory_alone: bool) -> Result<(Source, Arc<Entry>), Option<String>> {
    let key = vault_key(key);
    match vault.recall(&key) {
        Some(entry) => Ok((Source::Memory, entry)),
        None if memory_alone => Err(None),
        None => match vault.get(&key) {
            Lookup::Hit(entry) => Ok((Source::Disk, entry)),
            Lookup::Absent => Err(None),
            Lookup::Rejected(why) => Err(Some(why.to_string())),
        },
    }
}

/// The vault's key for a plan's key.
pub(crate) fn vault_key(key: &PlanKey) -> Key {
    Key(*key.bytes())
}

/// A vault entry that cannot be read as its kind requires.
#[derive(Debug, thiserror::Error)]
pub enum BadEntry {
    /// It is no plan.
    #[error(transparent)]
    Plan(#[from] BadPlan),
    /// It is no refusal.
    #[error("the reasons of a refusal cannot be read: {0}")]
    Refusal(#[from] codec::DecodeError),
    /// It is something else.
    #[error("the entry has measured times and is no plan")]
    Times,
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
