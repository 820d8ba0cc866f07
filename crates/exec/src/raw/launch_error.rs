//! Errors of binding, of launching, and of setting scalars.

use qkvault_graph::{DType, PlanKey, Role};
use qkvault_sys::Error;

use crate::bind_error::BindErrors;

/// Why a plan was not bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawBindFailure {
    /// The bindings have errors.
    #[error(transparent)]
    Wrong(#[from] BindErrors),
    /// cuDNN refuses the variant pack.
    #[error(
        "cuDNN refuses the bindings of the plan of '{what}': {source}; report this with the output of `qkvault doctor`"
    )]
    Cudnn {
        /// What the plan computes.
        what: String,
        /// The error of cuDNN.
        source: Error,
    },
}

/// Why a scalar kept its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScalarError {
    /// The plan does not have this scalar.
    #[error("the plan has no scalar {role}; it has {}", join(scalars))]
    NoScalar {
        /// The role.
        role: Role,
        /// The scalars that the plan has.
        scalars: Vec<Role>,
    },
    /// The scalar has another type.
    #[error("scalar {role} is {needed}, and {given} was given; convert the value")]
    WrongDType {
        /// The role.
        role: Role,
        /// The type that the plan needs.
        needed: DType,
        /// The type of the value.
        given: DType,
    },
}

fn join(roles: &[Role]) -> String {
    if roles.is_empty() {
        return "none".to_owned();
    }
    roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a launch was not queued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// cuDNN refused the launch.
    #[error("plan {key} ({what}) was not launched: {source}; an earlier kernel on this GPU can be the cause")]
    Refused {
        /// The plan.
        key: PlanKey,
        /// What it computes.
        what: String,
        /// The error of cuDNN.
        source: Box<Error>,
    },
    /// The driver refused a step before or after the launch.
    #[error(
        "the launch could not {step}: {detail}; CUDA reports errors late, so an earlier kernel or drop can be the cause"
    )]
    Driver {
        /// The step that failed.
        step: &'static str,
        /// The error of the driver.
        detail: String,
    },
    /// The stream is in another context than the plan.
    #[error(
        "the stream is in a context of GPU {stream} and the plan in one of GPU {plan}; use a stream of \
         Session::device()"
    )]
    OtherContext {
        /// Ordinal of the stream's GPU.
        stream: usize,
        /// Ordinal of the plan's GPU.
        plan: usize,
    },
    /// The stream is being captured while cudarc tracks events, whose waits would break the capture.
    #[error(
        "the stream is being captured, and cudarc's event tracking is on, which would break the capture; use \
         Bound::capture, or turn tracking off first (CudaContext::disable_event_tracking) and order the streams \
         yourself"
    )]
    TrackedCapture,
}
