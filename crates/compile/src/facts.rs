//! The facts of a plan: everything that is known of it without a compiler, and which of them a stored plan has altered.

mod cudnn;
mod kernels;

use std::fmt::Debug;

use qkvault_cudnn::op::{self, Fixed, Scratch};
use qkvault_graph::Binding;
use qkvault_graph::{EngineName, GraphKey, PlanKey, Role, Valid};
use qkvault_probe::Footprint;
use serde::{Deserialize, Serialize};

pub use cudnn::{CudnnFacts, PassedOver};
pub use kernels::{KernelCompiler, KernelFacts};

/// The facts about a plan that are known without a compiler: what plans of all engines have, and the engine's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFacts {
    /// Key of the plan.
    pub key: PlanKey,
    /// Key of its attention.
    pub graph_key: GraphKey,
    /// Short description of the attention.
    pub what: String,
    /// The engine that made it.
    pub by: EngineName,
    /// Compute capability, major * 10 + minor.
    pub sm: u32,
    /// A CUDA version of drivers, major * 1000 + minor * 10: for cuDNN's plans that of the target, else the oldest that
    /// loads the plan.
    pub driver: i64,
    /// What computes it: the engine of cuDNN with its knobs, or the compiler of the kernels.
    pub engine: String,
    /// Bytes of scratch memory that a launch needs.
    pub workspace: u64,
    /// Time that compiling took, in milliseconds.
    pub compile_ms: u32,
    /// Bytes of the plan itself.
    pub blob_bytes: u64,
    /// Operands to bind, in order of unique id.
    pub bindings: Vec<Binding>,
    /// The facts that plans of its engine have alone.
    pub own: OwnFacts,
}

/// Facts by the way in which a plan is launched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnFacts {
    /// By cuDNN.
    Cudnn(Box<CudnnFacts>),
    /// By the driver, with a recipe.
    Kernels(Box<KernelFacts>),
    /// By whoever brought the engine, in its own form.
    Other(Vec<u8>),
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
    pub(crate) fn new(fact: &'static str, stored: &impl Debug, expected: &impl Debug) -> Altered {
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
            by,
            sm,
            driver,
            engine,
            workspace,
            compile_ms: _,
            blob_bytes,
            bindings,
            own,
        } = expected;
        None.or_else(|| other("key", &self.key, key))
            .or_else(|| other("graph_key", &self.graph_key, graph_key))
            .or_else(|| other("what", &self.what, what))
            .or_else(|| other("by", &self.by, by))
            .or_else(|| other("sm", &self.sm, sm))
            .or_else(|| other("driver", &self.driver, driver))
            .or_else(|| other("engine", &self.engine, engine))
            .or_else(|| other("workspace", &self.workspace, workspace))
            .or_else(|| other("blob_bytes", &self.blob_bytes, blob_bytes))
            .or_else(|| other("bindings", &self.bindings, bindings))
            .or_else(|| match (&self.own, own) {
                (OwnFacts::Cudnn(stored), OwnFacts::Cudnn(expected)) => stored.altered(expected),
                (OwnFacts::Kernels(stored), OwnFacts::Kernels(expected)) => other("kernels", stored, expected),
                (stored, expected) => other("own", stored, expected),
            })
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

/// The fact if it is another one.
fn other<T: PartialEq + Debug>(fact: &'static str, stored: &T, expected: &T) -> Option<Altered> {
    (stored != expected).then(|| Altered::new(fact, stored, expected))
}

impl PlanFacts {
    /// The facts of a plan of cuDNN.
    #[must_use]
    pub fn cudnn(&self) -> Option<&CudnnFacts> {
        match &self.own {
            OwnFacts::Cudnn(own) => Some(own),
            OwnFacts::Kernels(_) | OwnFacts::Other(_) => None,
        }
    }

    /// The facts of a plan that the driver launches by a recipe.
    #[must_use]
    pub fn kernels(&self) -> Option<&KernelFacts> {
        match &self.own {
            OwnFacts::Kernels(own) => Some(own),
            OwnFacts::Cudnn(_) | OwnFacts::Other(_) => None,
        }
    }

    /// Operands that cuDNN's graph declares a second time: a launch passes the address of [`Role::memory`] for each.
    #[must_use]
    pub fn again(&self) -> &[Role] {
        self.cudnn().map_or(&[], |own| &own.again)
    }

    /// Constants of cuDNN's graph, which it also needs at every launch.
    #[must_use]
    pub fn fixed(&self) -> &[Fixed] {
        self.cudnn().map_or(&[], |own| &own.fixed)
    }

    /// All scratch memory of a launch: cuDNN's workspace (the field `workspace`) and, after it, the buffers that are
    /// neither inputs nor outputs.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        Scratch::new(self.workspace, &self.bindings)
    }

    /// Whether cuDNN keeps a gradient of every score in its workspace, which then grows with queries times keys: see
    /// [`qkvault_cudnn::op::keeps_scores`].
    #[must_use]
    pub fn keeps_scores(&self) -> bool {
        // Kernels tell all their scratch memory, and keep no such gradient.
        self.cudnn().is_some() && op::keeps_scores(self.bindings.iter().map(|b| b.role), self.sm)
    }

    /// The device memory that a launch of the attention needs.
    #[must_use]
    pub fn footprint(&self, attention: &Valid) -> Footprint {
        Footprint::of_launch(attention, &self.scratch(), self.keeps_scores())
    }
}
