//! Why a plan was not bound or launched, or a scalar kept its value.

use qkvault_graph::{DType, PlanKey, Role};
use qkvault_sys::Error;

use crate::bind_error::BindErrors;

/// Why a plan was not bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawBindFailure {
    /// What was bound is wrong.
    #[error(transparent)]
    Wrong(#[from] BindErrors),
    /// cuDNN does not take the variant pack.
    #[error(
        "cuDNN does not take what was bound to the plan of '{what}': {source}; report this with what `qkvault doctor` prints"
    )]
    Cudnn {
        /// What the plan computes.
        what: String,
        /// What cuDNN answered.
        source: Error,
    },
}

/// Why a scalar kept its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScalarError {
    /// The plan has no such scalar.
    #[error("{role} is no scalar of the plan; it has {}", if scalars.is_empty() { "none".to_owned() } else { join(scalars) })]
    NoScalar {
        /// The role.
        role: Role,
        /// The scalars there are.
        scalars: Vec<Role>,
    },
    /// The scalar holds another type.
    #[error("scalar {role} is {needed}, and {given} was given")]
    WrongDType {
        /// The role.
        role: Role,
        /// What the plan wants.
        needed: DType,
        /// What was given.
        given: DType,
    },
}

fn join(roles: &[Role]) -> String {
    roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a launch was not queued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// cuDNN refused it.
    #[error(
        "plan {key} ({what}) was not launched: {source}; an error of an earlier kernel on this GPU can show here too"
    )]
    Refused {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// What cuDNN answered.
        source: Box<Error>,
    },
    /// The driver refused a step before or after it.
    #[error(
        "the launch could not {step}: {detail}; if it is an error of an earlier kernel or of something dropped before, it is reported here \
         because CUDA tells it late"
    )]
    Driver {
        /// What was tried.
        step: &'static str,
        /// What the driver answered.
        detail: String,
    },
    /// The stream is of another context than the plan.
    #[error(
        "the stream is of GPU {stream}'s context and the plan is loaded in one of GPU {plan}; use a stream of RawSession::device()"
    )]
    OtherContext {
        /// Ordinal of the stream's GPU.
        stream: usize,
        /// Ordinal of the plan's GPU.
        plan: usize,
    },
    /// The stream is being captured while cudarc tracks events, whose waits a capture does not allow.
    #[error(
        "the stream is being captured, and cudarc's event tracking is on, which would break the capture; use Bound::capture, or turn it off first \
         (CudaContext::disable_event_tracking) and order the streams yourself"
    )]
    TrackedCapture,
}
