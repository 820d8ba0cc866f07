//! Whose plan is taken: cuDNN's or that of kernels, by policy and by what each takes.

use std::time::Instant;

use qkvault_cache::Source;
use qkvault_graph::{EnginePolicy, PlanKey, Refusal, Valid};
use qkvault_kernels::{Generated, generate};

use crate::kernels::KernelPlan;
use crate::planner::{PlanError, Planner, Resolution};

/// The key of an attention's plan of kernels.
pub(crate) fn kernel_key(attention: &Valid, sm: u32) -> Result<PlanKey, Refusal> {
    let Generated { source, options, recipe } = generate(attention, sm)?;
    Ok(KernelPlan { of: attention, source: &source, options: &options, recipe: &recipe }.key())
}

impl Planner {
    /// The answer of the engine that the policy names. Where cuDNN refuses and the policy allows both, that of kernels,
    /// with cuDNN's reasons; where both refuse, the reasons of both.
    pub(crate) fn choose(
        &self,
        attention: &Valid,
        sm: u32,
        policy: EnginePolicy,
        of_cudnn: impl FnOnce() -> Result<Resolution, PlanError>,
        of_kernels: impl FnOnce(&KernelPlan<'_>) -> Result<Resolution, PlanError>,
    ) -> Result<Resolution, PlanError> {
        let refused = match policy {
            EnginePolicy::Cudnn => return of_cudnn(),
            EnginePolicy::Kernels => None,
            EnginePolicy::Auto => {
                let answer = of_cudnn()?;
                match &answer.outcome {
                    Ok(_) => return Ok(answer),
                    Err(refusal) => Some(refusal.clone()),
                }
            }
        };
        let started = Instant::now();
        match generate(attention, sm) {
            Ok(Generated { source, options, recipe }) => {
                let kernels = KernelPlan { of: attention, source: &source, options: &options, recipe: &recipe };
                Ok(Resolution { instead: refused, ..of_kernels(&kernels)? })
            }
            Err(refusal) => {
                let all = refused.into_iter().chain([refusal.clone()]).flat_map(|one| one.reasons().to_vec()).collect();
                Ok(Resolution {
                    key: None,
                    graph_key: attention.key(),
                    source: Source::Built,
                    unstored: None,
                    instead: None,
                    outcome: Err(Refusal::of(all).unwrap_or(refusal)),
                    milliseconds: started.elapsed().as_secs_f64() * 1e3,
                })
            }
        }
    }
}
