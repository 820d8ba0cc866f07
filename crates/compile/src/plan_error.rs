//! Why a planner gives no answer. A refusal is an answer.

use std::sync::Arc;

use qkvault_graph::PlanKey;

use crate::fa4::Fa4Failure;
use crate::failure::Failure;
use crate::nvrtc::NvrtcError;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The plan is missing, and building was not allowed.
    #[error(
        "no plan {key} ({what} for {target}) is in {place}, and building it is not allowed here; \
         build it ahead with `qkvault warm`{load}, or use OnMiss::Compile",
        place = if *memory_alone { "the memory of this process" } else { "the vault" },
        load = if *memory_alone { " and load it with OnMiss::Load" } else { "" },
    )]
    Missing {
        /// The key of the plan.
        key: PlanKey,
        /// Its attention.
        what: String,
        /// Its target.
        target: String,
        /// Whether the lookup was only in memory ([`OnMiss::Memory`](crate::OnMiss::Memory)).
        memory_alone: bool,
    },
    /// The plan must be built, and there is no compiler.
    #[error(
        "plan {key} is not in the vault, and this planner has no cuDNN to build it with{}",
        if why.is_empty() { "; open it with a compiler".to_owned() } else { format!(": {why}") }
    )]
    NoCompiler {
        /// The key.
        key: PlanKey,
        /// Why no cuDNN was opened; empty for a planner that was given none.
        why: String,
    },
    /// Compiling does not work here.
    #[error("{0}")]
    Failure(Arc<Failure>),
    /// The kernels must be compiled, and that does not work here.
    #[error("plan {key} is not in the vault, and its kernels are not compiled here: {failure}")]
    Kernels {
        /// The key.
        key: PlanKey,
        /// Why not.
        failure: Arc<NvrtcError>,
    },
    /// The kernels of FlashAttention-4 must be compiled, and that does not work here.
    #[error("plan {key} is not in the vault, and its kernels are not compiled here: {failure}")]
    Fa4 {
        /// The key.
        key: PlanKey,
        /// Why not.
        failure: Arc<Fa4Failure>,
    },
    /// A recipe does not fit its attention.
    #[error("the kernels of plan {key} are not launched: {why}")]
    Recipe {
        /// The key.
        key: PlanKey,
        /// What is wrong.
        why: String,
    },
    /// The build ended in a panic, in this or another thread.
    #[error("the build of plan {key} did not end normally: {why}; call again to retry")]
    Interrupted {
        /// The key.
        key: PlanKey,
        /// What happened.
        why: String,
    },
}

impl PlanError {
    /// Why there is no plan, as told of one engine of several: without the key where the cause is the compiler's, so
    /// that many attentions have one reason.
    #[must_use]
    pub fn cause(&self) -> String {
        match self {
            PlanError::NoCompiler { why, .. } if !why.is_empty() => why.clone(),
            PlanError::Kernels { failure, .. } => failure.to_string(),
            PlanError::Fa4 { failure, .. } => failure.to_string(),
            PlanError::Missing { memory_alone: false, .. } => "it is not in the vault".to_owned(),
            PlanError::Missing { memory_alone: true, .. } => "it is not in the memory of this process".to_owned(),
            other => other.to_string(),
        }
    }
}
