//! One build: everything that it depends on, and why it gave no entry.

use std::sync::Arc;

use qkvault_cache::{Error as VaultError, Source, StoreError};
use qkvault_graph::{Choice, CompileOptions, GraphKey, OpGraph, Origin, PlanKey, Refusal, Target, Valid, plan_key_of};

use crate::failure::Failure;
use crate::plan::Plan;
use crate::planner::PlanError;
use qkvault_probe::{Request, check};

/// Where an answer came from, why it was not stored if it was not, and the answer.
pub(crate) type Found = (Source, Option<Arc<StoreError>>, Result<Arc<Plan>, Refusal>);

/// Everything that a build depends on; all of it is under the key.
pub(crate) struct Job<'a> {
    pub(crate) attention: &'a Valid,
    pub(crate) graph: &'a OpGraph,
    pub(crate) target: &'a Target,
    pub(crate) policy: &'a CompileOptions,
    pub(crate) choice: Choice,
    pub(crate) key: PlanKey,
    pub(crate) graph_key: GraphKey,
    pub(crate) what: &'a str,
}

/// Why a builder gave no entry; what is refused is an entry.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Build {
    #[error("no compiler")]
    NoCompiler,
    #[error("{0}")]
    Failed(Arc<Failure>),
    /// No kernel was compiled, and rules say that none is: an answer, but not the library's, so it is not kept.
    #[error("{0}")]
    Known(Refusal),
}

impl<'a> Job<'a> {
    /// The same of another choice.
    pub(crate) fn choosing(self, choice: Choice) -> Job<'a> {
        Job { choice, key: plan_key_of(self.graph, self.target, self.policy, choice), ..self }
    }

    pub(crate) fn unbuilt(&self, error: VaultError<Build>) -> Result<Found, PlanError> {
        let VaultError::Build(build) = error else {
            return Err(PlanError::Interrupted { key: self.key, why: error.to_string() });
        };
        match &*build {
            Build::NoCompiler => Err(PlanError::NoCompiler { key: self.key }),
            Build::Failed(failure) => Err(PlanError::Failure(Arc::clone(failure))),
            Build::Known(refusal) => Ok((Source::Built, None, Err(refusal.clone()))),
        }
    }

    /// What rules say that the library does not support: that it wrote a kernel which does not compile is told from a failure of the
    /// moment by them alone.
    pub(crate) fn known_refusal(&self) -> Option<Refusal> {
        let verdict = check(&Request::new(self.attention, self.target).with_policy(*self.policy));
        Refusal::of(verdict.reasons.into_iter().filter(|reason| reason.origin == Origin::Rule).collect())
    }
}
