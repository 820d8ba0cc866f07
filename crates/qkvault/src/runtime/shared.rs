//! Plans of schedules: what a rank of several GPUs loads.

use qkvault_exec::LoadedPlan;
use qkvault_graph::{Valid, ValidCombination};
use qkvault_parallel::{PlanFailure, Plans};

use crate::Runtime;

/// The plans of a rank are loaded and kept as all others of the runtime.
impl Plans for Runtime {
    fn attention(&self, of: &Valid) -> Result<LoadedPlan, PlanFailure> {
        Ok(LoadedPlan::clone(&*self.plan(of)?))
    }

    fn combination(&self, of: &ValidCombination) -> Result<LoadedPlan, PlanFailure> {
        Ok(LoadedPlan::clone(&*Runtime::combination(self, of)?))
    }
}
