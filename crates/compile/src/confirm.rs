//! What rules found near a refusal, put to the library itself.

use qkvault_graph::{CompileOptions, PlanKey, Refusal};

use crate::failure::Failure;
use crate::planner::{OnMiss, PlanError, Planner};
use qkvault_probe::Near;

/// What the library says of a change that rules accept.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Confirmation {
    /// It made a plan, which is in the vault.
    Supported(PlanKey),
    /// It refuses the changed description too.
    Refused(Refusal),
    /// The change is to another cuDNN, which is not the one that is loaded: this one cannot say.
    OtherLibrary,
}

impl Planner {
    /// Compiles a change that [`nearest`](qkvault_probe::nearest) proposes, as [`Planner::plan`] would: 0.3 to 1 s, unless the vault has
    /// the answer.
    ///
    /// # Errors
    ///
    /// [`PlanError`]: building cannot work here.
    pub fn confirm(&self, near: &Near, policy: &CompileOptions) -> Result<Confirmation, PlanError> {
        match self.plan(&near.attention, &near.target, policy, OnMiss::Compile) {
            Ok(answer) => Ok(match answer.outcome {
                Ok(plan) => Confirmation::Supported(plan.facts.key),
                Err(refusal) => Confirmation::Refused(refusal),
            }),
            Err(PlanError::Failure(failure)) if matches!(*failure, Failure::OtherLibrary { .. }) => {
                Ok(Confirmation::OtherLibrary)
            }
            Err(error) => Err(error),
        }
    }
}
