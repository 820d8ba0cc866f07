//! The look-up of an attention's plan for the machine of a session, and why none was prepared.

use qkvault_compile::host::{self, Fault};
use qkvault_compile::{Gap, OnMiss, Plan, PlanError, Planner};
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_graph::{Refusal, Valid};
use qkvault_sys::{Error, Status};

use crate::raw::load_error::LoadError;
use crate::raw::session::SessionError;

pub use qkvault_compile::host::Prepared;

/// Why a plan was not prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The attention cannot run here, for these reasons.
    #[error("{0}")]
    Refused(Refusal),
    /// The plan is missing and was not built, or could not be built.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan of cuDNN is needed, and the session has none: there is no cuDNN, or it does not work on this GPU.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The plan does not load.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The stored plan of this machine's own target does not load, and building it again was not allowed.
    #[error("{0}; with OnMiss::Compile, prepare builds it again and replaces the stored one")]
    Unusable(LoadError),
    /// Uploading the plan's constant operands (ALiBi slopes) failed.
    #[error("the constant operands of the plan (ALiBi slopes) could not be uploaded: {detail}")]
    Constants {
        /// The error of the driver.
        detail: String,
    },
}

impl From<Refusal> for PrepareError {
    fn from(refusal: Refusal) -> PrepareError {
        PrepareError::Refused(refusal)
    }
}

/// Looks up the plan of an attention for a machine and loads it with `load`, as [`host::prepare`] says.
///
/// Stands between the two layers: [`Session::prepare`](crate::Session::prepare) calls it, and callers of the raw layer
/// call it with [`RawSession::target`](crate::raw::RawSession::target) and
/// [`RawSession::load`](crate::raw::RawSession::load).
///
/// # Errors
///
/// [`PrepareError`]. The error for a missing plan names the key of this machine's own target.
pub fn prepare<P>(
    planner: &Planner,
    here: &Target,
    attention: &Valid,
    options: &CompileOptions,
    on_miss: OnMiss,
    load: impl FnMut(&Plan) -> Result<P, LoadError>,
) -> Result<Prepared<P>, PrepareError> {
    prepare_on(planner, here.sm(), || Ok(here), attention, options, on_miss, load)
}

/// [`prepare`] on a GPU of a compute capability, whose target is asked for only when a plan of cuDNN is looked for: a
/// host whose plans are all of kernels needs no cuDNN.
///
/// # Errors
///
/// As [`prepare`], and those of `here`.
pub fn prepare_on<'t, P>(
    planner: &Planner,
    sm: u32,
    here: impl Fn() -> Result<&'t Target, PrepareError>,
    attention: &Valid,
    options: &CompileOptions,
    on_miss: OnMiss,
    mut load: impl FnMut(&Plan) -> Result<P, LoadError>,
) -> Result<Prepared<P>, PrepareError> {
    host::prepare(planner, sm, here, attention, options, on_miss, |plan| Ok(load(plan)?))
}

impl Fault for PrepareError {
    fn is_of_the_plan(&self) -> bool {
        matches!(self, PrepareError::Load(error) if is_of_the_plan(error))
    }

    fn is_too_large(&self) -> bool {
        matches!(self, PrepareError::Load(LoadError::WorkspaceTooLarge { .. }))
    }

    fn unusable(self) -> PrepareError {
        match self {
            PrepareError::Load(error) => PrepareError::Unusable(error),
            other => other,
        }
    }

    fn refusal(&self) -> Option<&Refusal> {
        match self {
            PrepareError::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// Its plan is missing and is not compiled here, there is no cuDNN, the driver is too old for kernels, or its plan
    /// needs more scratch memory than is allowed.
    fn gap(&self) -> Option<Gap> {
        let plan = |is: bool| is.then_some(Gap::Plan);
        match self {
            PrepareError::Plan(error) => error.gap(),
            PrepareError::Session(error) => plan(matches!(error, SessionError::NoCudnn(_))),
            PrepareError::Load(error) | PrepareError::Unusable(error) => {
                plan(matches!(error, LoadError::OtherMachine(_) | LoadError::WorkspaceTooLarge { .. }))
            }
            PrepareError::Refused(_) | PrepareError::Constants { .. } => None,
        }
    }

    fn cause(&self) -> String {
        match self {
            PrepareError::Plan(error) => error.cause(),
            other => other.to_string(),
        }
    }
}

/// Whether an error is about the stored plan, so that another build of it may load: not about memory, limits or the
/// session.
fn is_of_the_plan(error: &LoadError) -> bool {
    match error {
        LoadError::OtherMachine(_)
        | LoadError::Length { .. }
        | LoadError::Workspace { .. }
        | LoadError::Recipe { .. }
        | LoadError::Kernels { .. } => true,
        LoadError::Refused { source, .. } => match &**source {
            Error::Call(refusal) => !matches!(
                refusal.status,
                Status::NOT_INITIALIZED
                    | Status::SUBLIBRARY_LOADING_FAILED
                    | Status::INTERNAL_ERROR_HOST_ALLOCATION_FAILED
                    | Status::INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
                    | Status::EXECUTION_FAILED_CUDA_DRIVER
            ),
            _ => false,
        },
        LoadError::WorkspaceTooLarge { .. }
        | LoadError::Stranger { .. }
        | LoadError::Properties(_)
        | LoadError::RawSession(_)
        | LoadError::Cudnn(_) => false,
    }
}

#[cfg(test)]
mod tests;
