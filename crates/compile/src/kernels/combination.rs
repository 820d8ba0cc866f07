//! Plans of combinations: merges, sums, copies and fills of tensors.

use qkvault_graph::ValidCombination;
use qkvault_kernels::generate_combination;

use crate::kernels::KernelPlan;
use crate::planner::{OnMiss, PlanError, Planner, Resolution};

impl Planner {
    /// The plan of a combination for GPUs of a compute capability (major * 10 + minor): from the vault, or compiled by
    /// NVRTC and stored there, as [`Planner::kernels`] does. It needs no GPU and no cuDNN.
    ///
    /// # Errors
    ///
    /// As [`Planner::kernels`].
    pub fn combination(&self, of: &ValidCombination, sm: u32, on_miss: OnMiss) -> Result<Resolution, PlanError> {
        self.kernels(&KernelPlan { of, made: generate_combination(of, sm) }, on_miss)
    }
}
