//! Plans: cuDNN's bytes, or cubins, with everything else that a launch needs, and their form in a vault.

use std::sync::Arc;

use qkvault_cache::{Entry, EntryKind};
use qkvault_graph::op::{self, Binding, Fixed, Scratch};
use qkvault_graph::{
    Attention, CudnnVersion, GraphKey, LibrarySet, OpGraph, PlanKey, Refusal, Role, Target, Toolchain, Valid, codec,
};
use qkvault_kernels::recipe::BadRecipe;
use qkvault_probe::Footprint;
use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::kernels::KernelFacts;
use crate::passed::PassedOver;

/// A compiled plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its facts, which need no cuDNN to read.
    pub facts: PlanFacts,
    /// cuDNN's serialised plan, with code for the GPU; for a plan of kernels, its cubins one after the other.
    pub blob: Blob,
}

/// The facts about a plan that are known without cuDNN.
///
/// A plan of kernels ([`PlanFacts::kernels`]) needs no cuDNN: the fields about cuDNN's version, library set, toolchain,
/// multiprocessors and memory bus say nothing about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFacts {
    /// Key of the plan.
    pub key: PlanKey,
    /// Key of its attention.
    pub graph_key: GraphKey,
    /// Short description of the attention.
    pub what: String,
    /// Version that compiled it, the only one that can load it.
    pub cudnn: CudnnVersion,
    /// Library set that compiled it.
    pub libraries: LibrarySet,
    /// The rest of the toolchain that compiled it: CUDA build, NVRTC, host architecture, environment.
    pub toolchain: Toolchain,
    /// Compute capability, major * 10 + minor.
    pub sm: u32,
    /// Streaming multiprocessors of the target.
    pub multi_processors: i64,
    /// CUDA version of the driver of the target, major * 1000 + minor * 10; for kernels, the oldest that loads them.
    pub driver: i64,
    /// Width of the target's memory bus in bits, if its cuDNN reports it.
    pub memory_bus: Option<i64>,
    /// Engine and knobs of the plan.
    pub engine: String,
    /// Configurations before it in cuDNN's order that gave no plan, each with its reason.
    pub passed_over: Vec<PassedOver>,
    /// Bytes of scratch memory that a launch needs.
    pub workspace: u64,
    /// Time that compiling took, in milliseconds.
    pub compile_ms: u32,
    /// Bytes of cuDNN's serialised plan.
    pub blob_bytes: u64,
    /// Operands to bind, in order of unique id.
    pub bindings: Vec<Binding>,
    /// Operands that the graph declares a second time: a launch passes the address of [`Role::memory`] for each.
    pub again: Vec<Role>,
    /// Constants of the graph, which cuDNN also needs at every launch.
    pub fixed: Vec<Fixed>,
    /// The facts of a plan of kernels; `None` for cuDNN's plans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<Box<KernelFacts>>,
}

impl PlanFacts {
    /// All scratch memory of a launch: cuDNN's workspace (the field `workspace`) and, after it, the buffers that are
    /// neither inputs nor outputs.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        Scratch::of(self.workspace, &self.bindings)
    }

    /// Whether cuDNN keeps a gradient of every score in its workspace, which then grows with queries times keys: see
    /// [`qkvault_graph::op::keeps_scores`].
    #[must_use]
    pub fn keeps_scores(&self) -> bool {
        // Kernels tell all their scratch memory, and keep no such gradient.
        self.kernels.is_none() && op::keeps_scores(self.bindings.iter().map(|b| b.role), self.sm)
    }

    /// The device memory that a launch of the attention needs.
    #[must_use]
    pub fn footprint(&self, attention: &Valid) -> Footprint {
        Footprint::of_launch(attention, &self.scratch(), self.keeps_scores())
    }
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
    /// The entry is a plan of another attention or engine.
    #[error("the entry with the key {key} has other operands than the attention; it will be built again")]
    OtherOperands {
        /// The key.
        key: PlanKey,
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

/// The plan with the capacities of an attention's varlen operands and pools. Its key does not contain them, so it may
/// have been compiled for an attention with other capacities.
pub(crate) fn for_capacity(plan: Arc<Plan>, graph: &OpGraph, attention: &Attention) -> Arc<Plan> {
    let pools = [&attention.k, &attention.v].into_iter().any(|t| t.is_paged());
    if !pools && graph.tensors.iter().all(|t| t.offsets.is_none()) {
        return plan;
    }
    let bindings = graph.bindings(Some(attention));
    if plan.facts.bindings == bindings {
        return plan;
    }
    Arc::new(Plan { facts: PlanFacts { bindings, ..plan.facts.clone() }, blob: plan.blob.clone() })
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
    /// The plan as a vault entry: facts in the header, cuDNN's bytes as payload. A planner also stores the inputs of
    /// the compilation after these bytes.
    #[must_use]
    pub fn to_entry(&self, target: &Target) -> Entry {
        self.entry(&target.label(), self.facts.cudnn.to_string())
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
        if let Some(kernels) = &facts.kernels {
            kernels.check(&facts)?;
        }
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

    /// A vault's folder holds keys of one format. Whoever raises the format of keys raises the vault's format, and both
    /// numbers here.
    #[test]
    fn b3_the_vaults_format_changes_with_that_of_keys() {
        assert_eq!((qkvault_cache::STORE_FORMAT, KEY_FORMAT), (3, 2));
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
