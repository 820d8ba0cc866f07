//! Errors of loading, with advice for each error of cuDNN.

use qkvault_compile::PlanFacts;
use qkvault_graph::{EngineName, PlanKey, Reason};
use qkvault_kernels::recipe::BadRecipe;
use qkvault_sys::{Error, Status};

use crate::raw::session::SessionError;
use qkvault_compile::OtherMachine;

/// Why the workspace of a backward is large.
const WHY_QUADRATIC: &str = " (it holds a gradient of every score, because the backward is deterministic or computes \
                             the gradient of a bias; other backwards sum dQ in a buffer of its size)";

/// Why a plan was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The plan is for another machine; cuDNN did not see it.
    #[error(transparent)]
    OtherMachine(#[from] OtherMachine),
    /// The plan needs more scratch memory than the session allows.
    #[error(
        "plan {key} ({what}) needs {need} bytes of workspace{}, and the limit is {limit}; raise \
         SessionOptions::workspace_limit, or compile with a workspace limit (CompileOptions::workspace_limit)",
        if *quadratic { WHY_QUADRATIC } else { "" }
    )]
    WorkspaceTooLarge {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// Bytes that a launch needs.
        need: u64,
        /// Bytes that the session allows.
        limit: u64,
        /// Whether the size grows with queries times keys.
        quadratic: bool,
    },
    /// The plan has another length than its facts have.
    #[error(
        "plan {key} ({what}) has {found} bytes, and its facts have {expected}; remove it (`qkvault cache verify`) and \
         build it again"
    )]
    Length {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// The length in the facts, in bytes.
        expected: u64,
        /// The length of the plan, in bytes.
        found: u64,
    },
    /// The plan is of an engine that whoever brought it launches.
    #[error("plan {key} ({what}) is of the engine `{engine}`, whose plans a session does not launch: load it with it")]
    Stranger {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// The engine.
        engine: EngineName,
    },
    /// cuDNN refuses the plan.
    #[error("cuDNN does not load plan {key} ({what}): {source}; {}", advice(source))]
    Refused {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// The error of cuDNN.
        source: Box<Error>,
    },
    /// cuDNN reports another workspace size than the facts have.
    #[error(
        "plan {key} ({what}) needs {found} bytes of workspace as loaded, and its facts have {expected}; facts and \
         plan are of different builds: remove it (`qkvault cache verify`) and build it again"
    )]
    Workspace {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// The size in the facts, in bytes.
        expected: u64,
        /// The size that cuDNN reports, in bytes.
        found: i64,
    },
    /// The recipe of a plan of kernels refers to what is not there.
    #[error("plan {key} ({what}) is not loaded: {source}")]
    Recipe {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// What is wrong in the recipe.
        source: Box<BadRecipe>,
    },
    /// The driver does not load the cubins of a plan of kernels, or they are not those of its recipe.
    #[error(
        "plan {key} ({what}) is not loaded: {detail}; remove it (`qkvault cache verify --deep`) and build it again"
    )]
    Kernels {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// The error of the driver, or what differs.
        detail: String,
    },
    /// The device properties lack some that this cuDNN needs.
    #[error("the device properties are incomplete: {}", join(.0))]
    Properties(Vec<Reason>),
    /// The session's context could not be made current.
    #[error(transparent)]
    RawSession(#[from] SessionError),
    /// cuDNN could not create a descriptor.
    #[error("cuDNN could not load: {0}")]
    Cudnn(#[from] Error),
}

impl LoadError {
    pub(crate) fn stranger(facts: &PlanFacts) -> LoadError {
        LoadError::Stranger { key: facts.key, what: facts.what.clone(), engine: facts.by }
    }

    /// cuDNN's refusal of a plan.
    pub(crate) fn refused(facts: &PlanFacts, source: Error) -> LoadError {
        LoadError::Refused { key: facts.key, what: facts.what.clone(), source: Box::new(source) }
    }
}

fn join(reasons: &[Reason]) -> String {
    reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The advice for an error of cuDNN.
fn advice(error: &Error) -> &'static str {
    let Error::Call(call) = error else {
        return "the library is not usable here: `qkvault doctor` shows what is loaded";
    };
    match call.status {
        Status::SERIALIZATION_VERSION_MISMATCH => {
            "another version wrote it: compile it again with the cuDNN that is loaded"
        }
        Status::SUBLIBRARY_VERSION_MISMATCH => {
            "another cuDNN compiled it, or libraries of several versions are mixed here: compile it again with the \
             one that is loaded, and see `qkvault doctor` for the loaded files"
        }
        Status::NOT_SUPPORTED_ARCH_MISMATCH => {
            "it was compiled for another GPU or driver: capture this machine's profile (`qkvault profile capture`) \
             and compile for that"
        }
        _ => "build it again; if that does not help, report it with the plan's key and the output of `qkvault doctor`",
    }
}
