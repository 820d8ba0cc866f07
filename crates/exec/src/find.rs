//! Which stored plans serve a machine besides those compiled for exactly it, and in which order they are looked for.

use std::sync::Arc;

use qkvault_graph::{LibrarySet, Policy, Refusal, Target, Valid};
use qkvault_probe::{Answer, BuildPolicy, Plan, PlanError, Planner};

use crate::fit::{DriverRule, LoadRules};
use crate::properties::PropertiesError;
use crate::raw::load_error::LoadError;

/// CUDA versions of drivers that plans are looked for under, newest first, where an older driver's plans load too.
pub const DRIVERS: [i64; 8] = [13_050, 13_040, 13_030, 13_020, 13_010, 13_000, 12_090, 12_080];

/// Targets whose plans load on a machine, in the order in which they are looked for: its own first, then the other library set's, then
/// those of older drivers where its cuDNN takes them.
#[must_use]
pub fn candidates(here: &Target) -> Vec<Target> {
    let with = |driver: i64, libraries| {
        let mut target = Target { libraries, ..here.clone() };
        target.device.driver_ver = driver;
        target
    };
    let own = here.device.driver_ver;
    let older = DRIVERS.into_iter().filter(|driver| *driver < own);
    let drivers: Vec<i64> = match LoadRules::of(here.cudnn).driver {
        DriverRule::Same => vec![own],
        DriverRule::SameOrNewer => std::iter::once(own).chain(older).collect(),
    };
    let sets = match here.libraries {
        LibrarySet::Slim => [LibrarySet::Slim, LibrarySet::Full],
        LibrarySet::Full => [LibrarySet::Full, LibrarySet::Slim],
    };
    drivers.into_iter().flat_map(|driver| sets.map(|set| with(driver, set))).collect()
}

/// A plan that is loaded, and where it came from.
#[derive(Clone, Debug)]
pub struct Prepared<P> {
    /// The plan on the device.
    pub plan: P,
    /// Where it came from, and under which key.
    pub answer: Answer,
    /// What it was compiled for; not always exactly this machine.
    pub target: Target,
}

/// Why a plan was not prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The attention cannot run here; these are the reasons.
    #[error("{0}")]
    Refused(Refusal),
    /// There is no plan, and none was made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// What plans for this GPU are compiled for is not known.
    #[error(transparent)]
    Properties(#[from] PropertiesError),
    /// The plan does not load.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// What belongs to the plan on the GPU could not be put there.
    #[error("the slopes of ALiBi could not be put on the GPU: {detail}")]
    Resident {
        /// What the driver answered.
        detail: String,
    },
}

/// Finds the plan of an attention for a machine and loads it: stored plans that load here first, and only then a build, if allowed.
///
/// # Errors
///
/// [`PrepareError`]; what is missing is named by the key of this machine's own target.
pub fn prepare<P>(
    planner: &Planner,
    here: &Target,
    attention: &Valid,
    policy: &Policy,
    build: BuildPolicy,
    mut load: impl FnMut(&Plan) -> Result<P, LoadError>,
) -> Result<Prepared<P>, PrepareError> {
    let look = match build {
        BuildPolicy::NeverBuild => BuildPolicy::NeverBuild,
        BuildPolicy::LoadOnly | BuildPolicy::BuildIfMissing => BuildPolicy::LoadOnly,
    };
    let (mut missing, mut too_large) = (None, None);
    for (i, target) in candidates(here).into_iter().enumerate() {
        let answer = match planner.plan(attention, &target, policy, look) {
            Ok(answer) => answer,
            Err(error @ PlanError::Missing { .. }) => {
                missing.get_or_insert(error);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        match &answer.outcome {
            Err(refusal) if i == 0 => return Err(PrepareError::Refused(refusal.clone())),
            // What another set or driver refuses, this machine's own may not.
            Err(_) => {}
            Ok(plan) => match load(&Arc::clone(plan)) {
                Ok(plan) => return Ok(Prepared { plan, answer, target }),
                Err(error) if i == 0 => return Err(error.into()),
                // Which target it was compiled for has nothing to do with that: it is no missing plan.
                Err(error @ LoadError::WorkspaceTooLarge { .. }) => {
                    too_large.get_or_insert(error);
                }
                Err(error) => tracing::debug!(%error, %target, "a plan of another target does not load here"),
            },
        }
    }
    if let Some(error) = too_large {
        return Err(error.into());
    }
    match (build, missing) {
        (BuildPolicy::NeverBuild | BuildPolicy::LoadOnly, Some(missing)) => Err(missing.into()),
        (BuildPolicy::BuildIfMissing, _) | (_, None) => {
            let answer = planner.plan(attention, here, policy, build)?;
            let plan = match &answer.outcome {
                Ok(plan) => load(plan)?,
                Err(refusal) => return Err(PrepareError::Refused(refusal.clone())),
            };
            Ok(Prepared { plan, answer, target: here.clone() })
        }
    }
}
