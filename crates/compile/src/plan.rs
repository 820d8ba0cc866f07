//! Plans: cuDNN's bytes with everything a launch needs to know beside them, and how they are kept in a vault.

use std::sync::Arc;

use qkvault_cache::{Entry, EntryKind};
use qkvault_graph::op::{self, Binding, Fixed, Scratch};
use qkvault_graph::{
    Attention, CudnnVersion, GraphKey, LibrarySet, OpGraph, PlanKey, Refusal, Role, Target, Toolchain, Valid, codec,
};
use qkvault_probe::Footprint;
use serde::{Deserialize, Serialize};

use crate::passed::PassedOver;

/// A compiled plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What is known of it without cuDNN.
    pub facts: PlanFacts,
    /// What cuDNN wrote; code for the GPU inside.
    pub blob: Arc<[u8]>,
}

/// Everything known of a plan without asking cuDNN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFacts {
    /// Key of the plan.
    pub key: PlanKey,
    /// Key of the attention it computes.
    pub graph_key: GraphKey,
    /// Short description of the attention.
    pub what: String,
    /// Version that compiled it and that alone can load it.
    pub cudnn: CudnnVersion,
    /// Library set that compiled it.
    pub libraries: LibrarySet,
    /// What else compiled it: CUDA build, NVRTC, host architecture, environment.
    pub toolchain: Toolchain,
    /// Compute capability, major * 10 + minor.
    pub sm: u32,
    /// Streaming multiprocessors of the target.
    pub multi_processors: i64,
    /// CUDA version of the driver of the target, major * 1000 + minor * 10.
    pub driver: i64,
    /// Width of the target's memory bus in bits, where its cuDNN reports it.
    pub memory_bus: Option<i64>,
    /// Engine and knobs that the heuristics chose.
    pub engine: String,
    /// Configurations that the heuristics named before it and that made no plan, with the reason of each.
    pub passed_over: Vec<PassedOver>,
    /// Bytes of scratch memory that a launch needs.
    pub workspace: u64,
    /// Time that compiling took, in milliseconds.
    pub compile_ms: u32,
    /// Bytes that cuDNN wrote.
    pub blob_bytes: u64,
    /// Operands to bind, in order of unique id.
    pub bindings: Vec<Binding>,
    /// Operands that the graph declares a second time: a launch gives each the address of [`Role::memory`].
    pub again: Vec<Role>,
    /// Numbers fixed by the graph, which cuDNN wants bound at every launch all the same.
    pub fixed: Vec<Fixed>,
}

impl PlanFacts {
    /// All scratch memory that a launch needs: cuDNN's workspace (the field `workspace`) and, after it, the buffers that are neither
    /// inputs nor outputs.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        Scratch::of(self.workspace, &self.bindings)
    }

    /// Whether cuDNN keeps a gradient of every score in its workspace, which grows with queries times keys: a backward whose dQ is not
    /// summed in a buffer of its own, as one that is deterministic or gives a bias its gradient. The engine that is named for deterministic
    /// ones on compute capability 10.x keeps none.
    #[must_use]
    pub fn keeps_scores(&self) -> bool {
        op::keeps_scores(self.bindings.iter().map(|b| b.role), self.sm)
    }

    /// What a launch of the attention needs in device memory.
    #[must_use]
    pub fn footprint(&self, attention: &Valid) -> Footprint {
        Footprint::of_launch(attention, &self.scratch(), self.keeps_scores())
    }
}

/// A vault entry that is no plan of this version of qkvault.
#[derive(Debug, thiserror::Error)]
pub enum BadPlan {
    /// The entry's facts do not read.
    #[error(
        "the entry's facts do not read: {0}; it was written by another version of qkvault, and will be built again"
    )]
    Facts(#[from] codec::DecodeError),
    /// The entry is under another key than the one it says.
    #[error("the entry says it is plan {found}, but it was asked for as {wanted}; the vault was tampered with")]
    WrongKey {
        /// The key it was asked for as.
        wanted: PlanKey,
        /// The key it says.
        found: PlanKey,
    },
    /// The entry's length is not what its facts say.
    #[error("the entry has {found} bytes of plan where its facts say {wanted}")]
    Length {
        /// What the facts say.
        wanted: u64,
        /// What is there.
        found: u64,
    },
}

/// The plan with the capacities of an attention's varlen operands and pools, which are not under its key: it may have been compiled
/// for an attention that has others.
pub(crate) fn for_capacity(plan: Arc<Plan>, graph: &OpGraph, attention: &Attention) -> Arc<Plan> {
    let pools = [&attention.k, &attention.v].into_iter().any(|t| t.is_paged());
    if !pools && graph.tensors.iter().all(|t| t.offsets.is_none()) {
        return plan;
    }
    let bindings = graph.bindings(Some(attention));
    if plan.facts.bindings == bindings {
        return plan;
    }
    Arc::new(Plan { facts: PlanFacts { bindings, ..plan.facts.clone() }, blob: Arc::clone(&plan.blob) })
}

/// Cuts a label to what an entry's header takes, at a character.
fn label(text: &str) -> String {
    let mut end = text.len().min(255);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl Plan {
    /// The plan as a vault entry: facts in the header, cuDNN's bytes as payload. What a planner stores also has what the plan
    /// was compiled from behind those bytes.
    #[must_use]
    pub fn to_entry(&self, target: &Target) -> Entry {
        Entry {
            kind: EntryKind::Plan,
            target: label(&target.label()),
            what: label(&self.facts.what),
            library: self.facts.cudnn.to_string(),
            meta: codec::encode(&self.facts),
            payload: self.blob.to_vec(),
        }
    }

    /// The plan of a vault entry.
    ///
    /// # Errors
    ///
    /// [`BadPlan`], for anything that is not the plan of this key.
    pub fn from_entry(key: PlanKey, entry: &Entry) -> Result<Plan, BadPlan> {
        let facts: PlanFacts = codec::decode(&entry.meta)?;
        if facts.key != key {
            return Err(BadPlan::WrongKey { wanted: key, found: facts.key });
        }
        // What follows cuDNN's bytes is what they were compiled from, for deep checks alone.
        let blob = usize::try_from(facts.blob_bytes).ok().and_then(|len| entry.payload.get(..len));
        let found = entry.payload.len() as u64;
        let blob = blob.ok_or(BadPlan::Length { wanted: facts.blob_bytes, found })?.into();
        Ok(Plan { facts, blob })
    }
}

/// A refusal as a vault entry, for the version that refused.
pub(crate) fn refusal_entry(refusal: &Refusal, what: &str, target: &Target) -> Entry {
    Entry {
        kind: EntryKind::Refusal,
        target: label(&target.label()),
        what: label(what),
        library: target.cudnn.to_string(),
        meta: Vec::new(),
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
    use qkvault_graph::{KEY_FORMAT, Profile};

    /// The folder of a vault holds keys of one format, so that what is left of an older one is known by its folder:
    /// whoever raises the format of keys raises that of the vault, and both here.
    #[test]
    fn b3_the_vaults_format_goes_up_with_that_of_keys() {
        assert_eq!((qkvault_cache::STORE_FORMAT, KEY_FORMAT), (3, 2));
    }

    /// Facts as format 1 wrote them, without the toolchain, under a key of today: an error that says so, and never another plan.
    #[test]
    fn b3_facts_of_format_1_do_not_read_as_facts() {
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
        let error = Plan::from_entry(key, &entry).expect_err("another form");
        assert!(matches!(error, BadPlan::Facts(_)) && error.to_string().contains("another version"), "{error}");
    }
}
