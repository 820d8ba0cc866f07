//! A planner and a GPU: from a valid attention to a loaded plan.

use qkvault_compile::{OnMiss, Planner};
use qkvault_graph::{CompileOptions, Target, Valid};

use crate::find::{PrepareError, Prepared};
use crate::properties::PropertiesError;
use crate::safe::plan::LoadedPlan;
use crate::safe::session::Session;
use crate::safe::training::TrainingPair;
use crate::training::Training;

/// Prepares plans on one GPU.
///
/// ```no_run
/// use qkvault_cache::{Vault, VaultOptions};
/// use qkvault_compile::{OnMiss, Planner};
/// use qkvault_exec::{Device, Engine, Session};
/// use qkvault_graph::{Attention, CompileOptions, DType, validate};
/// use qkvault_sys::{Library, Search};
///
/// let session = Session::open(&Device::open(0)?, &Library::open(&Search::default())?)?;
/// let engine = Engine::new(session, Planner::new(Vault::open(VaultOptions::new())?, None))?;
/// let attention = validate(Attention::bshd(1, (8, 8), (512, 512), 64, DType::F16))?;
/// let prepared = engine.prepare(&attention, &CompileOptions::default(), OnMiss::Load)?;
/// println!("{} for {}, from {:?}", prepared.plan.facts().key, prepared.target, prepared.answer.source);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Engine {
    session: Session,
    planner: Planner,
    target: Target,
}

impl Engine {
    /// An engine with a session and a planner.
    ///
    /// # Errors
    ///
    /// [`PropertiesError`] if this version of qkvault cannot read the device properties.
    pub fn new(session: Session, planner: Planner) -> Result<Engine, PropertiesError> {
        let target = session.target()?.clone();
        Ok(Engine { session, planner, target })
    }

    /// Looks up the plan of an attention and loads it, as [`Session::prepare`] does. Keep the result: this call takes
    /// milliseconds, and a launch takes microseconds.
    ///
    /// # Errors
    ///
    /// [`PrepareError`], as for [`Session::prepare`].
    pub fn prepare(
        &self,
        attention: &Valid,
        options: &CompileOptions,
        on_miss: OnMiss,
    ) -> Result<Prepared<LoadedPlan>, PrepareError> {
        self.session.prepare(&self.planner, attention, options, on_miss)
    }

    /// Looks up both plans of a training step and loads them, as [`Session::prepare_training`] does.
    ///
    /// # Errors
    ///
    /// [`PrepareError`] of the first plan that is not prepared.
    pub fn prepare_training(
        &self,
        training: &Training,
        options: &CompileOptions,
        on_miss: OnMiss,
    ) -> Result<TrainingPair, PrepareError> {
        self.session.prepare_training(&self.planner, training, options, on_miss)
    }

    /// The session. Its counters include every load.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The planner. The counters of its vault include every hit, miss and build.
    #[must_use]
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// The target of plans for this machine.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }
}
