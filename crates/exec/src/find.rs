//! The look-up of an attention's plan for a machine: stored plans first, then the remote in one request, then a build.

mod engines;

use std::sync::Arc;

use qkvault_compile::{OnMiss, Plan, PlanError, Planner, Resolution};
use qkvault_graph::{CompileOptions, Refusal, Target, Valid};
use qkvault_sys::{Error, Status};

use self::engines::Asked;
use crate::candidates::candidates;
use crate::raw::load_error::LoadError;
use crate::raw::session::SessionError;

/// A loaded plan and its source.
#[derive(Clone, Debug)]
pub struct Prepared<P> {
    /// The plan on the device.
    pub plan: P,
    /// The answer of the planner: the source of the plan and its key.
    pub answer: Resolution,
    /// The target of a plan of cuDNN, which may differ from the target of this machine; `None` for kernels.
    pub target: Option<Target>,
}

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

/// Looks up the plan of an attention for a machine and loads it with `load`. If no stored plan loads here, builds one
/// if `on_miss` allows it.
///
/// Stands between the two layers: [`Session::prepare`](crate::Session::prepare) calls it, and callers of the raw layer
/// call it with [`RawSession::target`](crate::raw::RawSession::target) and
/// [`RawSession::load`](crate::raw::RawSession::load).
///
/// If the stored plan of the machine's own target does not load although it should (its bytes are damaged, or are of
/// another cuDNN), it is built again and replaced if `on_miss` allows a build.
///
/// Plans of other targets can load on a machine too: of the other library set, of other NVRTC versions, of older
/// drivers. It looks for all of them in memory, folder and layers, and then fetches all of them from the vault's remote
/// in one request, so that a miss costs one wait for the remote.
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
    let candidates = planner.candidates(attention, sm, options.engine);
    let asked = Asked { candidates: &candidates, planner, sm, here: &here, attention, options, on_miss };
    // What one engine has here serves at once, where another one's plan would be fetched or compiled first.
    let waits = on_miss == OnMiss::Compile || planner.vault().asks_remote();
    if candidates.engines.len() > 1 && on_miss != OnMiss::Memory && waits {
        let local = planner.local();
        let stored = Asked { planner: &local, on_miss: OnMiss::Load, ..asked };
        if let Ok(found) = stored.prepare(&mut load) {
            return Ok(found);
        }
    }
    asked.prepare(&mut load)
}

/// Looks up a plan of cuDNN and loads it.
fn prepare_cudnn<P>(
    planner: &Planner,
    here: &Target,
    attention: &Valid,
    options: &CompileOptions,
    on_miss: OnMiss,
    load: impl FnMut(&Plan) -> Result<P, LoadError>,
) -> Result<Prepared<P>, PrepareError> {
    let targets = candidates(here);
    let local = planner.local();
    let mut search =
        Search { planner: &local, whole: planner, attention, options, on_miss, load, missing: None, too_large: None };
    let mut absent = Vec::new();
    for (i, target) in targets.iter().enumerate() {
        match search.look(target, i == 0)? {
            Found::Loaded(prepared) => return Ok(*prepared),
            Found::Absent => absent.push(i),
            Found::Unusable => {}
        }
    }
    if on_miss != OnMiss::Memory {
        let wanted: Vec<Target> = absent.iter().map(|i| targets[*i].clone()).collect();
        for n in planner.fetch(attention, &wanted, options) {
            if let Found::Loaded(prepared) = search.look(&wanted[n], absent[n] == 0)? {
                return Ok(*prepared);
            }
        }
    }
    let Search { mut load, missing, too_large, .. } = search;
    if let Some(error) = too_large {
        return Err(error.into());
    }
    match (on_miss, missing) {
        (OnMiss::Memory | OnMiss::Load, Some(missing)) => Err(missing.into()),
        (OnMiss::Compile, _) | (_, None) => {
            // The remote was tried above.
            let answer = local.plan(attention, here, options, on_miss)?;
            let plan = match &answer.outcome {
                Ok(plan) => load(plan)?,
                Err(refusal) => return Err(PrepareError::Refused(refusal.clone())),
            };
            Ok(Prepared { plan, answer, target: Some(here.clone()) })
        }
    }
}

/// Finds a plan of kernels and loads it: one plan serves every machine of the architecture, so there are no others to
/// look for. One that does not load is built again if `on_miss` allows it.
fn prepare_kernels<P>(
    on_miss: OnMiss,
    find: impl FnOnce() -> Result<Resolution, PlanError>,
    rebuild: impl FnOnce() -> Result<Resolution, PlanError>,
    mut load: impl FnMut(&Plan) -> Result<P, LoadError>,
) -> Result<Prepared<P>, PrepareError> {
    let mut loaded = |answer: &Resolution| match &answer.outcome {
        Ok(plan) => load(plan).map_err(PrepareError::Load),
        Err(refusal) => Err(PrepareError::Refused(refusal.clone())),
    };
    let mut answer = find()?;
    let plan = match (loaded(&answer), answer.key) {
        (Err(PrepareError::Load(error)), Some(key)) if is_of_the_plan(&error) => {
            if on_miss != OnMiss::Compile {
                return Err(PrepareError::Unusable(error));
            }
            tracing::warn!(%key, %error, "a stored plan does not load; it is built again");
            answer = rebuild()?;
            loaded(&answer)?
        }
        (other, _) => other?,
    };
    Ok(Prepared { plan, answer, target: None })
}

/// A look-up under way.
struct Search<'a, F> {
    planner: &'a Planner,
    /// The planner that asks the remote too.
    whole: &'a Planner,
    attention: &'a Valid,
    options: &'a CompileOptions,
    on_miss: OnMiss,
    load: F,
    /// The error if nothing is found: the first one, which is for this machine's own target.
    missing: Option<PlanError>,
    /// The error of a stored plan that needs more scratch memory than is allowed.
    too_large: Option<LoadError>,
}

/// The result for one candidate.
enum Found<P> {
    Loaded(Box<Prepared<P>>),
    /// No plan is stored for it.
    Absent,
    /// Its plan is refused or does not load.
    Unusable,
}

impl<P, F: FnMut(&Plan) -> Result<P, LoadError>> Search<'_, F> {
    /// Looks up the plan of one target and loads it. An error for this machine's own target ends the look-up.
    fn look(&mut self, target: &Target, own: bool) -> Result<Found<P>, PrepareError> {
        let look = match self.on_miss {
            OnMiss::Memory => OnMiss::Memory,
            OnMiss::Load | OnMiss::Compile => OnMiss::Load,
        };
        let answer = match self.planner.plan(self.attention, target, self.options, look) {
            Ok(answer) => answer,
            Err(error @ PlanError::Missing { .. }) => {
                self.missing.get_or_insert(error);
                return Ok(Found::Absent);
            }
            Err(error) => return Err(error.into()),
        };
        let plan = match &answer.outcome {
            Ok(plan) => Arc::clone(plan),
            Err(refusal) if own => return Err(PrepareError::Refused(refusal.clone())),
            // This machine's own target may have a plan where another one has a refusal.
            Err(_) => return Ok(Found::Unusable),
        };
        match (self.load)(&plan) {
            Ok(plan) => return Ok(Found::Loaded(Box::new(Prepared { plan, answer, target: Some(target.clone()) }))),
            Err(error) if own => return self.anew(target, &answer, error),
            // Every target's plan has this size, so the plan does not count as missing.
            Err(error @ LoadError::WorkspaceTooLarge { .. }) => {
                self.too_large.get_or_insert(error);
            }
            Err(error) => tracing::debug!(%error, %target, "a plan of another target does not load here"),
        }
        Ok(Found::Unusable)
    }

    /// Builds the plan of this machine's own target again, whose stored one does not load, and replaces it. Returns the
    /// error of the stored plan if it is not about the plan, or if the plan cannot be built again.
    fn anew(&mut self, target: &Target, stored: &Resolution, error: LoadError) -> Result<Found<P>, PrepareError> {
        let Some(key) = stored.key.filter(|_| is_of_the_plan(&error)) else { return Err(error.into()) };
        if self.on_miss != OnMiss::Compile {
            return Err(PrepareError::Unusable(error));
        }
        tracing::warn!(%key, %error, "a stored plan does not load; it is built again");
        let answer = match self.whole.rebuild(self.attention, target, self.options, &key) {
            Ok(answer) => answer,
            Err(PlanError::NoCompiler { .. }) => return Err(error.into()),
            Err(failure) => return Err(failure.into()),
        };
        match &answer.outcome {
            Ok(plan) => {
                let plan = (self.load)(plan)?;
                Ok(Found::Loaded(Box::new(Prepared { plan, answer, target: Some(target.clone()) })))
            }
            Err(refusal) => Err(PrepareError::Refused(refusal.clone())),
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
        | LoadError::Properties(_)
        | LoadError::RawSession(_)
        | LoadError::Cudnn(_) => false,
    }
}

#[cfg(test)]
mod tests;
