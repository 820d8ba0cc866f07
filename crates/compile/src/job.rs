//! One build: its inputs, and why it gave no entry.

use std::sync::Arc;

use qkvault_cache::{Entry, Error as VaultError, Source, StoreError};
use qkvault_graph::{
    Choice, CompileOptions, GraphKey, OpGraph, Origin as ReasonOrigin, PlanKey, Refusal, Target, Valid, codec,
    plan_key_of,
};

use crate::blob::Blob;
use crate::facts::{Made, PlanFacts};
use crate::failure::Failure;
use crate::origin::{By, Description, Origin};
use crate::plan::Plan;
use crate::planner::PlanError;
use qkvault_probe::{Request, check};

/// The source of an answer, why it was not stored if it was not, and the answer.
pub(crate) type Found = (Source, Option<Arc<StoreError>>, Result<Arc<Plan>, Refusal>);

/// All inputs of a build; the key contains all of them.
pub(crate) struct Job<'a> {
    pub(crate) attention: &'a Valid,
    pub(crate) graph: &'a OpGraph,
    pub(crate) target: &'a Target,
    pub(crate) options: &'a CompileOptions,
    pub(crate) choice: Choice,
    pub(crate) key: PlanKey,
    pub(crate) graph_key: GraphKey,
    pub(crate) what: &'a str,
}

/// Why a builder gave no entry; a refusal is an entry.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Build {
    #[error("no compiler: {0}")]
    NoCompiler(String),
    #[error("{0}")]
    Failed(Arc<Failure>),
    /// No kernel was compiled, and rules predict that. It is an answer, but not cuDNN's, so it is not stored.
    #[error("{0}")]
    Known(Refusal),
}

impl<'a> Job<'a> {
    /// The same job with another choice.
    pub(crate) fn choosing(self, choice: Choice) -> Job<'a> {
        Job { choice, key: plan_key_of(self.graph, self.target, self.options, choice), ..self }
    }

    /// The facts of the plan, with what compiling told.
    pub(crate) fn facts(&self, made: Made) -> PlanFacts {
        let Made { engine, passed_over, workspace, compile_ms, blob_bytes } = made;
        let Job { attention, graph, target, options: _, choice: _, key, graph_key, what } = *self;
        PlanFacts {
            key,
            graph_key,
            what: what.to_owned(),
            cudnn: target.cudnn,
            libraries: target.libraries,
            toolchain: target.toolchain.clone(),
            sm: target.sm(),
            multi_processors: target.device.multi_processor_count,
            driver: target.device.driver_ver,
            memory_bus: target.device.memory_bus_width,
            engine,
            passed_over,
            workspace,
            compile_ms,
            blob_bytes,
            bindings: graph.bindings(Some(attention)),
            again: graph.declared_again(),
            fixed: graph.fixed_numbers(),
            kernels: None,
        }
    }

    /// The plan as an entry of a vault, with what it is compiled from.
    pub(crate) fn entry(&self, made: Made, blob: Blob) -> Entry {
        let mut entry = Plan { facts: self.facts(made), blob }.to_entry(self.target);
        entry.payload.extend(codec::encode(&self.origin()));
        entry
    }

    /// What the plan is compiled from.
    pub(crate) fn origin(&self) -> Origin {
        let Job { attention, target, options, choice, .. } = *self;
        let by = By::Cudnn { target: Box::new(target.clone()), options: *options, choice };
        Origin { of: Description::attention(attention), by }
    }

    pub(crate) fn unbuilt(&self, error: VaultError<Build>) -> Result<Found, PlanError> {
        let VaultError::Build(build) = error else {
            return Err(PlanError::Interrupted { key: self.key, why: error.to_string() });
        };
        match &*build {
            Build::NoCompiler(why) => Err(PlanError::NoCompiler { key: self.key, why: why.clone() }),
            Build::Failed(failure) => Err(PlanError::Failure(Arc::clone(failure))),
            Build::Known(refusal) => Ok((Source::Built, None, Err(refusal.clone()))),
        }
    }

    /// The refusal by rules, if they say that cuDNN does not support it: only rules distinguish a generated kernel that
    /// does not compile from a failure of the moment.
    pub(crate) fn known_refusal(&self) -> Option<Refusal> {
        let verdict = check(&Request::new(self.attention, self.target).with_policy(*self.options));
        Refusal::of(verdict.reasons.into_iter().filter(|reason| reason.origin == ReasonOrigin::Rule).collect())
    }
}
