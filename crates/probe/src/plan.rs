//! Plans: cuDNN's bytes with everything a launch needs to know beside them, and how they are kept in a vault.

use std::sync::Arc;

use qkvault_cache::{Entry, EntryKind};
use qkvault_graph::op::{Constant, TensorId, TensorKind};
use qkvault_graph::{
    Attention, CudnnVersion, DType, GraphKey, LibrarySet, OpGraph, PlanKey, Refusal, Role, Storage, Target, Tensor,
    Toolchain, codec,
};
use serde::{Deserialize, Serialize};

use crate::passed::PassedOver;

/// Alignment in bytes that every operand is declared with, as cuDNN's own front end does.
pub(crate) const ALIGNMENT: usize = 16;

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

/// One operand of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Which operand it is.
    pub role: Role,
    /// Element type.
    pub dtype: DType,
    /// Whether it is one number on the host.
    pub slot: bool,
    /// Whether a launch writes it.
    pub output: bool,
    /// Bytes that its buffer must have: from its first to one past its last element, rounded up to 4 for a 16-bit tensor that is
    /// read beside the scores (a bias, a dropout mask), because kernels read those two elements at a time.
    pub bytes: u64,
    /// Alignment in bytes that its address must have.
    pub alignment: u32,
}

/// A number fixed by the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fixed {
    /// Unique id of its tensor.
    pub uid: i64,
    /// The number.
    pub value: Constant,
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

/// Bytes of an input that kernels read at once, where that reaches beyond its last element.
///
/// Source: compute-sanitizer on an H200 under cuDNN 9.19 (`bench/odd-tensors.txt`, docs/results/sanitize.md): 10 of 169 forwards read
/// 2 bytes beyond a 16-bit tensor whose elements, all together, are odd in number; 32-bit tensors and backwards showed none.
const fn read_at_once(role: Role, dtype: DType) -> u64 {
    match role {
        Role::ScoreTensor(_) | Role::DropoutMask if dtype.size() == 2 => 4,
        _ => 1,
    }
}

/// The operands of an op graph, in order of unique id.
///
/// How far a packed operand reaches is decided at launch by its offsets, and how far a pool of pages by its tables: both count as the
/// room that the description gives. Without a description they count as dense, every sequence at its longest.
pub(crate) fn bindings(graph: &OpGraph, attention: Option<&Attention>) -> Vec<Binding> {
    let backward = graph.tensors.iter().any(|t| matches!(t.kind, TensorKind::Operand(Role::DO)));
    let mut list: Vec<(i64, Binding)> = graph
        .tensors
        .iter()
        .filter_map(|t| {
            let (role, slot) = match t.kind {
                TensorKind::Operand(role) if role.memory() == role => (role, false),
                TensorKind::Operand(_) => return None,
                TensorKind::Slot(role) => (role, true),
                TensorKind::Virtual | TensorKind::Constant(_) => return None,
            };
            let span: i64 = t.dims.iter().zip(t.strides).map(|(n, s)| (n - 1) * s).sum::<i64>() + 1;
            let stored = attention.and_then(|a| a.stored(role)).filter(|stored| stored.storage != Storage::Dense);
            let room = stored.filter(|stored| t.offsets.is_some() || is_pool(stored)).and_then(|stored| stored.span());
            let output = role.is_output(backward);
            let elements = room.unwrap_or(span).unsigned_abs() * t.dtype.size() as u64;
            let bytes = if output { elements } else { elements.next_multiple_of(read_at_once(role, t.dtype)) };
            // A number on the host is read where it lies; operands must lie as they were declared.
            let alignment = if slot { t.dtype.size() } else { ALIGNMENT } as u32;
            Some((role.uid(), Binding { role, dtype: t.dtype, slot, output, bytes, alignment }))
        })
        .collect();
    list.sort_unstable_by_key(|(uid, _)| *uid);
    list.into_iter().map(|(_, binding)| binding).collect()
}

const fn is_pool(t: &Tensor) -> bool {
    matches!(t.storage, Storage::Paged { .. })
}

/// The plan with the capacities of an attention's packed operands and pools, which are not under its key: it may have been compiled
/// for an attention that has others.
pub(crate) fn for_capacity(plan: Arc<Plan>, graph: &OpGraph, attention: &Attention) -> Arc<Plan> {
    let pools = [&attention.k, &attention.v].into_iter().any(is_pool);
    if !pools && graph.tensors.iter().all(|t| t.offsets.is_none()) {
        return plan;
    }
    let bindings = bindings(graph, Some(attention));
    if plan.facts.bindings == bindings {
        return plan;
    }
    Arc::new(Plan { facts: PlanFacts { bindings, ..plan.facts.clone() }, blob: Arc::clone(&plan.blob) })
}

/// The operands that an op graph declares a second time.
pub(crate) fn again(graph: &OpGraph) -> Vec<Role> {
    graph.roles().into_iter().filter(|role| role.memory() != *role).collect()
}

/// The fixed numbers of an op graph.
pub(crate) fn fixed(graph: &OpGraph) -> Vec<Fixed> {
    let numbers = graph.tensors.iter().enumerate().filter_map(|(i, t)| match t.kind {
        TensorKind::Constant(value) => Some(Fixed { uid: graph.uid(TensorId(i as u32)), value }),
        TensorKind::Virtual | TensorKind::Operand(_) | TensorKind::Slot(_) => None,
    });
    numbers.collect()
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
    use qkvault_graph::{KEY_FORMAT, Policy, Profile, lower, text, validate};

    /// Bytes that a plan demands for the bias of a forward over 63 keys.
    fn demanded(tensor: &str) -> u64 {
        let written = format!(
            "pass: forward\nq: f16 [1,1,64,64] bshd\nk: f16 [1,1,63,64] bshd\nscore: tensor @t1: {tensor}; score + @t1"
        );
        let attention = validate(text::parse(&written).expect("reads")).expect("is valid");
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let graph = lower(&attention, &target, &Policy::default()).expect("lowers");
        let list = bindings(&graph, Some(&attention));
        list.iter().find(|b| b.role == Role::ScoreTensor(0)).expect("it has a bias").bytes
    }

    #[test]
    fn an_odd_16_bit_bias_is_read_two_bytes_beyond_its_last_element() {
        assert_eq!([demanded("f16[1,1,1,63]"), demanded("bf16[1,1,1,63]")], [128, 128]);
        // An even number of elements, and 32-bit ones, end where they end.
        assert_eq!([demanded("f16[1,1,64,63]"), demanded("f32[1,1,1,63]")], [2 * 64 * 63, 252]);
    }

    /// The folder of a vault holds keys of one format, so that what is left of an older one is known by its folder.
    #[test]
    fn b3_the_vaults_format_goes_up_with_that_of_keys() {
        assert_eq!(u32::from(qkvault_cache::STORE_FORMAT), KEY_FORMAT);
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
