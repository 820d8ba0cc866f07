//! Plans of conversions to and from 8 bits.

use qkvault_cache::Source;
use qkvault_graph::ValidConversion;
use qkvault_kernels::{Engine, Generated, generate_conversion};

use crate::choice::EngineChoice;
use crate::kernels::KernelPlan;
use crate::planner::{OnMiss, PlanError, Planner, Resolution};

impl Planner {
    /// The plan of a conversion for GPUs of a compute capability (major * 10 + minor): from the vault, or compiled by
    /// NVRTC and stored there, as [`Planner::kernels`] does. It needs no GPU and no cuDNN.
    ///
    /// A GPU without instructions for 8 bits is a refusal in the [`Resolution`], with the reason.
    ///
    /// # Errors
    ///
    /// As [`Planner::kernels`].
    pub fn conversion(&self, of: &ValidConversion, sm: u32, on_miss: OnMiss) -> Result<Resolution, PlanError> {
        match generate_conversion(of, sm) {
            Ok(Generated { source, options, recipe }) => {
                self.kernels(&KernelPlan { of, source: &source, options: &options, recipe: &recipe }, on_miss)
            }
            Err(refusal) => Ok(Resolution {
                key: None,
                graph_key: of.key(),
                source: Source::Built,
                unstored: None,
                engine: EngineChoice::named(Engine::Kernels),
                outcome: Err(refusal),
                milliseconds: 0.0,
            }),
        }
    }
}
