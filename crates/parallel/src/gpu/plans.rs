//! Where the plans of a schedule come from.

use qkvault_compile::{OnMiss, Planner};
use qkvault_cudnn::CompileOptions;
use qkvault_exec::{LoadedPlan, Prepared, Session};
use qkvault_graph::{Valid, ValidCombination};

/// Why there is no plan.
pub type PlanFailure = Box<dyn std::error::Error + Send + Sync>;

/// Loads plans on the GPU of a rank.
pub trait Plans {
    /// The plan of an attention.
    ///
    /// # Errors
    ///
    /// Why it cannot be had.
    fn attention(&self, of: &Valid) -> Result<LoadedPlan, PlanFailure>;

    /// The plan of a merge, a sum, a copy, a fill or a dropout mask.
    ///
    /// # Errors
    ///
    /// Why it cannot be had.
    fn combination(&self, of: &ValidCombination) -> Result<LoadedPlan, PlanFailure>;
}

/// Plans of a session, from a planner's vault.
#[derive(Clone, Copy, Debug)]
pub struct SessionPlans<'a> {
    /// The session of the rank's GPU.
    pub session: &'a Session,
    /// Looks plans up, and builds them.
    pub planner: &'a Planner,
    /// How plans are compiled.
    pub options: &'a CompileOptions,
    /// What happens to a plan that the vault does not have.
    pub on_miss: OnMiss,
}

impl Plans for SessionPlans<'_> {
    fn attention(&self, of: &Valid) -> Result<LoadedPlan, PlanFailure> {
        let Prepared { plan, .. } = self.session.prepare(self.planner, of, self.options, self.on_miss)?;
        Ok(plan)
    }

    fn combination(&self, of: &ValidCombination) -> Result<LoadedPlan, PlanFailure> {
        Ok(self.session.prepare_combination(self.planner, of, self.on_miss)?)
    }
}
