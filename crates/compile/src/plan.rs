//! Plans: cuDNN's bytes, or cubins, with everything else that a launch needs, and their form in a vault.

use std::sync::Arc;

use qkvault_cache::{Entry, EntryKind};
use qkvault_cudnn::Target;
use qkvault_graph::{PlanKey, Refusal, codec};
use qkvault_kernels::recipe::BadRecipe;

use crate::blob::Blob;
use crate::facts::{Altered, PlanFacts};
use crate::origin::Origin;

/// A compiled plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its facts, which need no cuDNN to read.
    pub facts: PlanFacts,
    /// cuDNN's serialised plan, with code for the GPU; for a plan of kernels, its cubins one after the other.
    pub blob: Blob,
}

/// The error for a vault entry that is not a plan of this version of qkvault.
#[derive(Debug, thiserror::Error)]
pub enum BadPlan {
    /// The entry's facts cannot be read.
    #[error("the entry's facts cannot be read: {0}; another version of qkvault wrote it, and it will be built again")]
    Facts(#[from] codec::DecodeError),
    /// The entry's facts have another key than the entry.
    #[error("the entry with the key {wanted} contains plan {found}; the vault was tampered with")]
    WrongKey {
        /// The key of the entry.
        wanted: PlanKey,
        /// The key in the facts.
        found: PlanKey,
    },
    /// The recipe refers to what is not there.
    #[error(transparent)]
    Recipe(#[from] BadRecipe),
    /// A fact is not the one that follows from what was asked.
    #[error("the entry with the key {key} was altered: {altered}; it will be built again")]
    Altered {
        /// The key.
        key: PlanKey,
        /// The first such fact.
        altered: Box<Altered>,
    },
    /// What it was compiled from cannot be read.
    #[error("what plan {key} was compiled from cannot be read: {why}; it will be built again")]
    Origin {
        /// The key.
        key: PlanKey,
        /// Why not.
        why: String,
    },
    /// The entry's length differs from its facts.
    #[error("the entry has {found} bytes of plan, and its facts require {wanted}")]
    Length {
        /// The length in the facts.
        wanted: u64,
        /// The actual length.
        found: u64,
    },
}

/// Cuts a label to the length of a header field, between characters.
fn label(text: &str) -> String {
    let mut end = text.len().min(255);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl Plan {
    /// The plan as a vault entry: facts in the header, cuDNN's bytes as payload. A planner also stores the description
    /// after these bytes, without which look-ups serve none.
    pub(crate) fn to_entry(&self, target: &Target) -> Entry {
        self.entry(&target.label(), target.cudnn.to_string())
    }

    pub(crate) fn entry(&self, target: &str, library: String) -> Entry {
        Entry {
            kind: EntryKind::Plan,
            target: label(target),
            what: label(&self.facts.what),
            library,
            meta: codec::encode(&self.facts),
            payload: self.blob.to_vec(),
        }
    }

    /// The plan of a vault entry.
    ///
    /// # Errors
    ///
    /// [`BadPlan`], for anything that is not the plan with this key.
    pub fn from_entry(key: PlanKey, entry: &Arc<Entry>) -> Result<Plan, BadPlan> {
        let facts: PlanFacts = codec::decode(&entry.meta)?;
        if facts.key != key {
            return Err(BadPlan::WrongKey { wanted: key, found: facts.key });
        }
        // The inputs of the compilation follow cuDNN's bytes; only deep checks read them.
        let blob = usize::try_from(facts.blob_bytes).ok().and_then(|len| Blob::of_entry(entry, len));
        let found = entry.payload.len() as u64;
        let blob = blob.ok_or(BadPlan::Length { wanted: facts.blob_bytes, found })?;
        if let Some(kernels) = facts.kernels() {
            kernels.check(&facts)?.check_code(&blob)?;
        }
        Ok(Plan { facts, blob })
    }
}

impl BadPlan {
    /// Whether the entry says something wrong, rather than something that this version does not read.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        match self {
            BadPlan::Facts(_) | BadPlan::Origin { .. } | BadPlan::Recipe(BadRecipe::Format { .. }) => false,
            BadPlan::WrongKey { .. } | BadPlan::Length { .. } | BadPlan::Recipe(_) | BadPlan::Altered { .. } => true,
        }
    }
}

/// A refusal as a vault entry, for the version that refused, with what was refused.
pub(crate) fn refusal_entry(refusal: &Refusal, what: &str, target: &Target, origin: &Origin) -> Entry {
    Entry {
        kind: EntryKind::Refusal,
        target: label(&target.label()),
        what: label(what),
        library: target.cudnn.to_string(),
        meta: codec::encode(origin),
        payload: codec::encode(refusal),
    }
}

/// The refusal of a vault entry.
pub(crate) fn refusal_of(entry: &Entry) -> Result<Refusal, codec::DecodeError> {
    codec::decode(&entry.payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_cudnn::Profile;
    use qkvault_graph::{CudnnVersion, GraphKey, KEY_FORMAT, LibrarySet};

    /// A vault's folder holds keys of one format. Whoever raises the format of keys raises the vault's format, and both
    /// numbers here.
    #[test]
    fn b3_the_vaults_format_changes_with_that_of_keys() {
        assert_eq!((qkvault_cache::STORE_FORMAT, KEY_FORMAT), (4, 2));
    }

    /// Facts of format 1, without the toolchain, under a current key: an error, and never another plan.
    #[test]
    fn b3_facts_of_format_1_are_an_error() {
        let version = CudnnVersion::v9(19, 0);
        let target = Profile::named("h200").expect("built in").target(version, LibrarySet::Slim);
        let key = PlanKey::from_bytes([3; 32]);
        let none: [u8; 0] = [];
        let (of, at, made) = (
            (key, GraphKey::from_bytes([4; 32]), "fwd", version, LibrarySet::Slim),
            (90_u32, 132_i64, 13_000_i64, Option::<i64>::None),
            ("engine 2", 256_u64, 400_u32, 3_u64),
        );
        let old = (of.0, of.1, of.2, of.3, of.4, at.0, at.1, at.2, at.3, made.0, made.1, made.2, made.3, none, none);
        let entry = Entry {
            kind: EntryKind::Plan,
            target: target.label(),
            what: "fwd".into(),
            library: version.to_string(),
            meta: codec::encode(&old),
            payload: vec![1, 2, 3],
        };
        let error = Plan::from_entry(key, &Arc::new(entry)).expect_err("another form");
        assert!(matches!(error, BadPlan::Facts(_)) && error.to_string().contains("another version"), "{error}");
    }
}
