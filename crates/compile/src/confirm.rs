//! Asks cuDNN itself about a change that the rules propose.

use qkvault_cudnn::CompileOptions;
use qkvault_graph::{PlanKey, Refusal};

use crate::cudnn::failure::Failure;
use crate::planner::{OnMiss, PlanError, Planner};
use qkvault_probe::Near;

/// cuDNN's answer to a change that the rules accept.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Confirmation {
    /// cuDNN made a plan, which is in the vault.
    Supported(PlanKey),
    /// cuDNN refuses the changed description too.
    Refused(Refusal),
    /// The change is to another cuDNN than the loaded one, which therefore cannot answer.
    OtherLibrary,
}

impl Planner {
    /// Compiles a change that [`nearest`](qkvault_probe::nearest) proposes, like [`Planner::plan`]: 0.3 to 1 s, unless
    /// the vault has the answer.
    ///
    /// # Errors
    ///
    /// [`PlanError`]: compiling does not work here.
    pub fn confirm(&self, near: &Near, options: &CompileOptions) -> Result<Confirmation, PlanError> {
        match self.plan(&near.attention, &near.target, options, OnMiss::Compile) {
            Ok(answer) => Ok(match answer.outcome {
                Ok(plan) => Confirmation::Supported(plan.facts.key),
                Err(refusal) => Confirmation::Refused(refusal),
            }),
            Err(error) if matches!(error.failure(), Some(Failure::OtherLibrary { .. })) => {
                Ok(Confirmation::OtherLibrary)
            }
            Err(error) => Err(error),
        }
    }
}
