//! The facts of a plan: everything that is known of it without a compiler, and which of them a stored plan has altered.

use std::fmt::Debug;

use qkvault_graph::op::{self, Binding, Fixed, Scratch};
use qkvault_graph::{CudnnVersion, GraphKey, LibrarySet, PlanKey, Role, Toolchain, Valid};
use qkvault_probe::Footprint;
use serde::{Deserialize, Serialize};

use crate::cudnn::passed::PassedOver;
use crate::kernels::KernelFacts;

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

/// What only compiling tells of a plan of cuDNN. All other facts follow from what was asked.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) engine: String,
    pub(crate) passed_over: Vec<PassedOver>,
    pub(crate) workspace: u64,
    pub(crate) compile_ms: u32,
    pub(crate) blob_bytes: u64,
}

impl Made {
    /// What a stored plan says of it.
    pub(crate) fn of(facts: &PlanFacts) -> Made {
        let PlanFacts { engine, passed_over, workspace, compile_ms, blob_bytes, .. } = facts.clone();
        Made { engine, passed_over, workspace, compile_ms, blob_bytes }
    }
}

/// A fact of a stored plan that is not the one that follows from what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its {fact} is {stored}, and {expected} follows from what was asked")]
pub struct Altered {
    /// The fact, by its name.
    pub fact: &'static str,
    /// What the entry says, cut to some characters.
    pub stored: String,
    /// What this version computes.
    pub expected: String,
}

impl Altered {
    pub(crate) fn of(fact: &'static str, stored: &impl Debug, expected: &impl Debug) -> Altered {
        const SHOWN: usize = 160;
        let shown = |text: String| match text.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        };
        Altered { fact, stored: shown(format!("{stored:?}")), expected: shown(format!("{expected:?}")) }
    }
}

impl PlanFacts {
    /// The first fact that is not as expected. The time that compiling took is a measurement, which nothing can check.
    pub(crate) fn altered(&self, expected: &PlanFacts) -> Option<Altered> {
        let PlanFacts {
            key,
            graph_key,
            what,
            cudnn,
            libraries,
            toolchain,
            sm,
            multi_processors,
            driver,
            memory_bus,
            engine,
            passed_over,
            workspace,
            compile_ms: _,
            blob_bytes,
            bindings,
            again,
            fixed,
            kernels,
        } = expected;
        fn other<T: PartialEq + Debug>(fact: &'static str, stored: &T, expected: &T) -> Option<Altered> {
            (stored != expected).then(|| Altered::of(fact, stored, expected))
        }
        None.or_else(|| other("key", &self.key, key))
            .or_else(|| other("graph_key", &self.graph_key, graph_key))
            .or_else(|| other("what", &self.what, what))
            .or_else(|| other("cudnn", &self.cudnn, cudnn))
            .or_else(|| other("libraries", &self.libraries, libraries))
            .or_else(|| other("toolchain", &self.toolchain, toolchain))
            .or_else(|| other("sm", &self.sm, sm))
            .or_else(|| other("multi_processors", &self.multi_processors, multi_processors))
            .or_else(|| other("driver", &self.driver, driver))
            .or_else(|| other("memory_bus", &self.memory_bus, memory_bus))
            .or_else(|| other("engine", &self.engine, engine))
            .or_else(|| other("passed_over", &self.passed_over, passed_over))
            .or_else(|| other("workspace", &self.workspace, workspace))
            .or_else(|| other("blob_bytes", &self.blob_bytes, blob_bytes))
            .or_else(|| other("bindings", &self.bindings, bindings))
            .or_else(|| other("again", &self.again, again))
            .or_else(|| other("fixed", &self.fixed, fixed))
            .or_else(|| other("kernels", &self.kernels, kernels))
    }

    /// The facts of a look-up by a description: compared with the stored ones, except for what the key does not contain
    /// (the description's name and key, and how large varlen buffers and pools are), which is the description's own.
    pub(crate) fn asked(self, stored: &PlanFacts) -> Result<PlanFacts, Altered> {
        let bytes = |of: &Binding| stored.bindings.iter().find(|b| b.role == of.role).map_or(of.bytes, |b| b.bytes);
        let like = PlanFacts {
            graph_key: stored.graph_key,
            what: stored.what.clone(),
            bindings: self.bindings.iter().map(|b| Binding { bytes: bytes(b), ..*b }).collect(),
            ..self.clone()
        };
        match stored.altered(&like) {
            Some(altered) => Err(altered),
            None => Ok(PlanFacts { compile_ms: stored.compile_ms, ..self }),
        }
    }
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
