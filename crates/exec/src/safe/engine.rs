//! A planner and a GPU together: from a valid attention to a plan that is ready to be bound.

use qkvault_compile::{BuildPolicy, Planner};
use qkvault_graph::{CompileOptions, Target, Valid};

use crate::find::{PrepareError, Prepared};
use crate::properties::PropertiesError;
use crate::safe::session::{LoadedPlan, Session};
use crate::safe::training::TrainingPair;
use crate::training::Training;

/// Hands out plans that are loaded on one GPU.
#[derive(Clone, Debug)]
pub struct Engine {
    session: Session,
    planner: Planner,
    target: Target,
}

impl Engine {
    /// An engine over a session and a planner.
    ///
    /// # Errors
    ///
    /// [`PropertiesError`], where what plans for this GPU are compiled for is not known.
    pub fn new(session: Session, planner: Planner) -> Result<Engine, PropertiesError> {
        let target = session.target()?.clone();
        Ok(Engine { session, planner, target })
    }

    /// The plan of an attention, loaded: looked up for this machine and for those whose plans load here too, and built only if none is there
    /// and `build` allows it. Getting a plan and launching it are different steps: keep what this gives.
    ///
    /// # Errors
    ///
    /// [`PrepareError`].
    pub fn prepare(
        &self,
        attention: &Valid,
        policy: &CompileOptions,
        build: BuildPolicy,
    ) -> Result<Prepared<LoadedPlan>, PrepareError> {
        self.session.prepare(&self.planner, attention, policy, build)
    }

    /// Both plans of a step of training, as [`Engine::prepare`] gives one.
    ///
    /// # Errors
    ///
    /// [`PrepareError`].
    pub fn prepare_training(
        &self,
        training: &Training,
        policy: &CompileOptions,
        build: BuildPolicy,
    ) -> Result<TrainingPair, PrepareError> {
        self.session.prepare_training(&self.planner, training, policy, build)
    }

    /// The session; its counters tell every load.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The planner; its vault's counters tell every hit, miss and build.
    #[must_use]
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// What plans for this machine are compiled for.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }
}
