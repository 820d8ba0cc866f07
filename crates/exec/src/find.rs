//! Finding the plan of an attention for a machine: what is stored first, the remote in one question, and then a build.

use std::sync::Arc;

use qkvault_compile::{BuildPolicy, Plan, PlanError, Planner, Resolution};
use qkvault_graph::{CompileOptions, Refusal, Target, Valid};

use crate::candidates::candidates;
use crate::properties::PropertiesError;
use crate::raw::load_error::LoadError;

/// A plan that is loaded, and where it came from.
#[derive(Clone, Debug)]
pub struct Prepared<P> {
    /// The plan on the device.
    pub plan: P,
    /// Where it came from, and under which key.
    pub answer: Resolution,
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
    Constants {
        /// What the driver answered.
        detail: String,
    },
}

/// Finds the plan of an attention for a machine and loads it: stored plans that load here first, and only then a build, if allowed.
///
/// Memory, folder and layers are looked through for every one of the machine's [`candidates`]; then the vault's remote is asked for all of
/// them in one question, so that a miss costs one wait for it and not one per candidate.
///
/// # Errors
///
/// [`PrepareError`]; what is missing is named by the key of this machine's own target.
pub fn prepare<P>(
    planner: &Planner,
    here: &Target,
    attention: &Valid,
    policy: &CompileOptions,
    build: BuildPolicy,
    load: impl FnMut(&Plan) -> Result<P, LoadError>,
) -> Result<Prepared<P>, PrepareError> {
    let targets = candidates(here);
    let local = planner.local();
    let mut search = Search { planner: &local, attention, policy, build, load, missing: None, too_large: None };
    let mut absent = Vec::new();
    for (i, target) in targets.iter().enumerate() {
        match search.look(target, i == 0)? {
            Found::Loaded(prepared) => return Ok(*prepared),
            Found::Absent => absent.push(i),
            Found::Unusable => {}
        }
    }
    if build != BuildPolicy::NeverBuild {
        let wanted: Vec<Target> = absent.iter().map(|i| targets[*i].clone()).collect();
        for n in planner.fetch(attention, &wanted, policy) {
            if let Found::Loaded(prepared) = search.look(&wanted[n], absent[n] == 0)? {
                return Ok(*prepared);
            }
        }
    }
    let Search { mut load, missing, too_large, .. } = search;
    if let Some(error) = too_large {
        return Err(error.into());
    }
    match (build, missing) {
        (BuildPolicy::NeverBuild | BuildPolicy::LoadOnly, Some(missing)) => Err(missing.into()),
        (BuildPolicy::BuildIfMissing, _) | (_, None) => {
            // The remote was asked already.
            let answer = local.plan(attention, here, policy, build)?;
            let plan = match &answer.outcome {
                Ok(plan) => load(plan)?,
                Err(refusal) => return Err(PrepareError::Refused(refusal.clone())),
            };
            Ok(Prepared { plan, answer, target: here.clone() })
        }
    }
}

/// A search under way.
struct Search<'a, F> {
    planner: &'a Planner,
    attention: &'a Valid,
    policy: &'a CompileOptions,
    build: BuildPolicy,
    load: F,
    /// What is told when nothing is found: the first, which is this machine's own.
    missing: Option<PlanError>,
    /// A plan that is there and needs more scratch memory than is allowed.
    too_large: Option<LoadError>,
}

/// What came of one candidate.
enum Found<P> {
    Loaded(Box<Prepared<P>>),
    /// It is nowhere here.
    Absent,
    /// It is there, and does not serve.
    Unusable,
}

impl<P, F: FnMut(&Plan) -> Result<P, LoadError>> Search<'_, F> {
    /// Looks for the plan of one target here, and loads it. What is wrong with this machine's own ends the search.
    fn look(&mut self, target: &Target, own: bool) -> Result<Found<P>, PrepareError> {
        let look = match self.build {
            BuildPolicy::NeverBuild => BuildPolicy::NeverBuild,
            BuildPolicy::LoadOnly | BuildPolicy::BuildIfMissing => BuildPolicy::LoadOnly,
        };
        let answer = match self.planner.plan(self.attention, target, self.policy, look) {
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
            // What another set or driver refuses, this machine's own may not.
            Err(_) => return Ok(Found::Unusable),
        };
        match (self.load)(&plan) {
            Ok(plan) => return Ok(Found::Loaded(Box::new(Prepared { plan, answer, target: target.clone() }))),
            Err(error) if own => return Err(error.into()),
            // Which target it was compiled for has nothing to do with that: it is no missing plan.
            Err(error @ LoadError::WorkspaceTooLarge { .. }) => {
                self.too_large.get_or_insert(error);
            }
            Err(error) => tracing::debug!(%error, %target, "a plan of another target does not load here"),
        }
        Ok(Found::Unusable)
    }
}

#[cfg(test)]
mod tests;
