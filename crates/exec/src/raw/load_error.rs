//! Why a plan was not loaded, and what to do about each of cuDNN's answers.

use qkvault_graph::{PlanKey, Reason};
use qkvault_sys::{Error, Status};

use crate::fit::OtherMachine;
use crate::raw::session::SessionError;

/// What a backward keeps that makes its workspace large.
const WHY_QUADRATIC: &str = " (it holds a gradient of every score, because the backward is deterministic or a bias wants its gradient; a \
                             backward that is neither sums dQ in a buffer of its size instead)";

/// Why a plan was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The plan is for another machine; cuDNN was not asked.
    #[error(transparent)]
    OtherMachine(#[from] OtherMachine),
    /// The plan needs more scratch memory than the session allows.
    #[error(
        "plan {key} ({what}) needs {need} bytes of workspace{}, and the limit is {limit}; raise SessionOptions::workspace_limit, or compile \
         with a workspace limit (CompileOptions::workspace_limit)",
        if *quadratic { WHY_QUADRATIC } else { "" }
    )]
    WorkspaceTooLarge {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// Bytes that a launch needs.
        need: u64,
        /// Bytes that it may have.
        limit: u64,
        /// Whether what it needs grows with queries times keys.
        quadratic: bool,
    },
    /// The plan has another length than its facts say.
    #[error(
        "plan {key} ({what}) has {found} bytes where its facts say {expected}; remove it (`qkvault cache verify`) and build it again"
    )]
    Length {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// What the facts say.
        expected: u64,
        /// What there is.
        found: u64,
    },
    /// cuDNN does not take the plan.
    #[error("cuDNN does not load plan {key} ({what}): {source}; {}", advice(source))]
    Refused {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// What cuDNN answered.
        source: Box<Error>,
    },
    /// cuDNN reports another workspace than the facts.
    #[error(
        "plan {key} ({what}) needs {found} bytes of workspace as cuDNN loads it, and its facts say {expected}; facts and plan are not of one \
         build: remove it (`qkvault cache verify`) and build it again"
    )]
    Workspace {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// What the facts say.
        expected: u64,
        /// What cuDNN says.
        found: i64,
    },
    /// The machine's properties lack what its cuDNN needs.
    #[error("the device properties are not complete: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Properties(Vec<Reason>),
    /// cuDNN could not be readied.
    #[error(transparent)]
    RawSession(#[from] SessionError),
    /// cuDNN gave no object to load into.
    #[error("cuDNN could not load: {0}")]
    Cudnn(#[from] Error),
}

/// What to do about cuDNN's answer to a plan.
fn advice(error: &Error) -> &'static str {
    let Error::Call(call) = error else {
        return "the library is not usable here: `qkvault doctor` shows what is loaded";
    };
    match call.status {
        Status::SERIALIZATION_VERSION_MISMATCH => {
            "it is written in another version's form: compile it again with the cuDNN that is loaded"
        }
        Status::SUBLIBRARY_VERSION_MISMATCH => {
            "it was compiled by another cuDNN, or libraries of several versions are mixed here: compile it again with the one that is \
             loaded, and see `qkvault doctor` for the loaded files"
        }
        Status::NOT_SUPPORTED_ARCH_MISMATCH => {
            "it was compiled for another GPU or driver: capture this machine's profile (`qkvault profile capture`) and compile for that"
        }
        _ => "build it again; if that does not help, report it with the plan's key and what `qkvault doctor` prints",
    }
}
