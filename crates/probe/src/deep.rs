//! Deep checks: a stored plan compiled again from what is stored with it, and the kernels inside compared.
//!
//! Two builds of one plan differ in pointers that cuDNN leaves in it, and so have different bytes; the compiled kernel, the
//! engine and the workspace are the same.

use qkvault_cache::{Entry, EntryKind};
use qkvault_graph::{Choice, CudnnVersion, OpGraph, PlanKey, Policy, Target, codec, plan_key_of};
use serde::{Deserialize, Serialize};

use crate::compile::{Compiled, Compiler};
use crate::failure::Failure;
use crate::plan::{BadPlan, Plan};

/// Everything that a plan was compiled from. It follows cuDNN's bytes in the entry's payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) graph: OpGraph,
    pub(crate) target: Target,
    pub(crate) policy: Policy,
    pub(crate) choice: Choice,
}

/// What compiling a stored plan again came to.
#[derive(Debug)]
pub enum Deep {
    /// The same kernels, engine and workspace.
    Same {
        /// Compiled kernels inside.
        kernels: usize,
        /// Their bytes, as they stand in the plan.
        kernel_bytes: usize,
    },
    /// It was not compiled: a refusal, or a plan for another cuDNN than the one that is loaded.
    Skipped {
        /// Why.
        why: String,
    },
    /// It is not what compiling gives.
    Different(Difference),
    /// Compiling does not work here.
    Failed(Failure),
}

/// In what a stored plan is not what compiling gives.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// The entry is no plan of this key.
    #[error("{0}")]
    Plan(#[from] BadPlan),
    /// What it was compiled from does not read, or is not there.
    #[error("what it was compiled from does not read: {0}; it was written by another version of qkvault")]
    Origin(#[from] codec::DecodeError),
    /// What it says it was compiled from has another key.
    #[error("what it says it was compiled from has the key {found}: it was put under this key by somebody else")]
    Key {
        /// The key that follows from what is stored.
        found: PlanKey,
    },
    /// The kernels are others.
    #[error("its kernels are not those that cuDNN {cudnn} compiles ({stored} inside, {compiled} compiled)")]
    Kernels {
        /// The version that compiled.
        cudnn: CudnnVersion,
        /// Kernels in the stored plan.
        stored: usize,
        /// Kernels in the one compiled now.
        compiled: usize,
    },
    /// Engine or workspace are others.
    #[error("it has {stored} where compiling gives {compiled}")]
    Facts {
        /// Engine and workspace of the stored plan.
        stored: String,
        /// Those of the one compiled now.
        compiled: String,
    },
}

impl Compiler {
    /// Compiles a stored plan again, for the target and from the op graph that are stored with it, and compares.
    #[must_use]
    pub fn check_deep(&self, key: PlanKey, entry: &Entry) -> Deep {
        match self.deep(key, entry) {
            Ok(deep) => deep,
            Err(difference) => Deep::Different(difference),
        }
    }

    fn deep(&self, key: PlanKey, entry: &Entry) -> Result<Deep, Difference> {
        if entry.kind == EntryKind::Refusal {
            return Ok(Deep::Skipped { why: "a refusal has no kernel".to_owned() });
        }
        let plan = Plan::from_entry(key, entry)?;
        let Origin { graph, target, policy, choice } = codec::decode(&entry.payload[plan.blob.len()..])?;
        let found = plan_key_of(&graph, &target, &policy, choice);
        if found != key {
            return Err(Difference::Key { found });
        }
        let compiled = match self.compile_choice(&graph, &target, &policy, choice) {
            Ok(compiled) => compiled,
            Err(failure @ Failure::OtherLibrary { .. }) => return Ok(Deep::Skipped { why: failure.to_string() }),
            Err(failure) => return Ok(Deep::Failed(failure)),
        };
        let (stored, now) = (kernels(&plan.blob), kernels(&compiled.blob));
        if stored != now || stored.is_empty() {
            return Err(Difference::Kernels { cudnn: target.cudnn, stored: stored.len(), compiled: now.len() });
        }
        let Compiled { engine, workspace, passed_over: _, blob: _, milliseconds: _ } = &compiled;
        let facts = |engine: &str, workspace: u64| format!("{engine} with {workspace} bytes of workspace");
        if (&plan.facts.engine, plan.facts.workspace) != (engine, *workspace) {
            let stored = facts(&plan.facts.engine, plan.facts.workspace);
            return Err(Difference::Facts { stored, compiled: facts(engine, *workspace) });
        }
        Ok(Deep::Same { kernels: stored.len(), kernel_bytes: stored.iter().map(|kernel| kernel.len()).sum() })
    }
}

/// The compiled kernels in a plan's bytes: the texts that begin as base64 of an ELF file does.
fn kernels(blob: &[u8]) -> Vec<&[u8]> {
    blob.split(|byte| *byte == b'"').filter(|text| text.starts_with(b"f0VMR")).collect()
}
