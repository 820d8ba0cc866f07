//! Whose plan is taken: cuDNN's or that of kernels, by policy, by what each takes, and by measured times.

use std::fmt;
use std::time::Instant;

use qkvault_cache::Source;
use qkvault_fa4::CompileError;
use qkvault_graph::{EnginePolicy, PlanKey, Refusal, Valid};
use qkvault_kernels::choice::{Case, Table};
use qkvault_kernels::{Engine, Generated, generate, takes};

use crate::fa4::{Fa4Failure, Fa4Plan};
use crate::kernels::KernelPlan;
use crate::nvrtc::NvrtcError;
use crate::planner::{OnMiss, PlanError, Planner, Resolution};

/// Who computes an attention, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineChoice {
    /// The engine.
    pub engine: Engine,
    /// The reason.
    pub why: Why,
}

/// Why an engine computes an attention.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Why {
    /// The options name it.
    Named,
    /// The other engine does not take it, for these reasons.
    OtherRefuses(Refusal),
    /// It was faster where both were measured.
    Measured {
        /// Time of the kernels divided by that of cuDNN.
        ratio: f64,
        /// Doublings between the attention and what was measured.
        distance: f64,
    },
    /// Nothing near was measured, which leaves it to cuDNN.
    Unmeasured,
    /// The plan of the other engine is in no vault and is not compiled here: why.
    OtherMissing(String),
}

impl EngineChoice {
    /// The engine by policy, by what kernels take on GPUs of a compute capability and by measured times. Whether cuDNN
    /// takes it is not asked: where it refuses what is chosen for it, the kernels take its place.
    #[must_use]
    pub fn of(attention: &Valid, sm: u32, policy: EnginePolicy) -> EngineChoice {
        let (engine, why) = match policy {
            EnginePolicy::Cudnn => (Engine::Cudnn, Why::Named),
            EnginePolicy::Kernels => (Engine::Kernels, Why::Named),
            EnginePolicy::Fa4 => (Engine::Fa4, Why::Named),
            EnginePolicy::Auto => match takes(attention, sm) {
                Err(refusal) => (Engine::Cudnn, Why::OtherRefuses(refusal)),
                Ok(()) => match Table::built_in().nearest(&Case::of(attention)) {
                    Some((row, distance)) => (row.engine(distance), Why::Measured { ratio: row.ratio(), distance }),
                    None => (Engine::Cudnn, Why::Unmeasured),
                },
            },
        };
        EngineChoice { engine, why }
    }

    /// Whether kernels take it where cuDNN does not have it.
    #[must_use]
    pub fn may_be_kernels(&self) -> bool {
        self.engine == Engine::Kernels || matches!(self.why, Why::Measured { .. } | Why::Unmeasured)
    }

    /// The kernels in cuDNN's place, which refuses.
    #[must_use]
    pub const fn instead_of_cudnn(refusal: Refusal) -> EngineChoice {
        EngineChoice { engine: Engine::Kernels, why: Why::OtherRefuses(refusal) }
    }

    /// The engine that the caller names.
    #[must_use]
    pub const fn named(engine: Engine) -> EngineChoice {
        EngineChoice { engine, why: Why::Named }
    }

    /// Why cuDNN has no plan, if kernels took its place.
    #[must_use]
    pub fn cudnn_refuses(&self) -> Option<&Refusal> {
        match (self.engine, &self.why) {
            (Engine::Kernels, Why::OtherRefuses(refusal)) => Some(refusal),
            _ => None,
        }
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (one, other) = match self.engine {
            Engine::Cudnn => ("cuDNN", "kernels"),
            Engine::Kernels => ("kernels", "cuDNN"),
            Engine::Fa4 => ("FlashAttention-4", "cuDNN"),
        };
        match &self.why {
            Why::Named => write!(f, "{one}, as the options say"),
            Why::OtherRefuses(refusal) if self.engine == Engine::Kernels => {
                write!(f, "cuDNN refuses, kernels take it: {refusal}")
            }
            Why::OtherRefuses(refusal) => write!(f, "kernels do not take it: {refusal}"),
            Why::Measured { ratio, distance } => {
                write!(f, "{one}: kernels take {ratio:.2} of cuDNN's time, measured {distance:.1} doublings away")
            }
            Why::Unmeasured => f.write_str("cuDNN: both take it, and no time was measured near it"),
            Why::OtherMissing(why) => write!(f, "{one}, because {other} have no plan here: {why}"),
        }
    }
}

/// The key of an attention's plan of kernels.
pub(crate) fn kernel_key(attention: &Valid, sm: u32) -> Result<PlanKey, Refusal> {
    let Generated { source, options, recipe } = generate(attention, sm)?;
    Ok(KernelPlan { of: attention, source: &source, options: &options, recipe: &recipe }.key())
}

/// What an engine says to an attention. `R` is what its caller gets.
#[derive(Debug)]
pub enum Answer<R> {
    /// A plan.
    Plan(R),
    /// It is refused, for these reasons.
    Refused(R, Refusal),
    /// There is no plan, and none is made here: why.
    Missing(R, String),
    /// Something else is wrong, which no other engine mends.
    Failed(R),
}

/// Asks the engine of a choice and, where the policy allows both, the other one: kernels where cuDNN refuses, and
/// either where the other's plan is not to be had. Where neither has a plan, the first answer stays.
pub fn ask_engines<R>(choice: EngineChoice, policy: EnginePolicy, mut of: impl FnMut(&EngineChoice) -> Answer<R>) -> R {
    let first = of(&choice);
    let both = policy == EnginePolicy::Auto && choice.may_be_kernels();
    let other = match choice.engine {
        Engine::Cudnn => Engine::Kernels,
        Engine::Kernels | Engine::Fa4 => Engine::Cudnn,
    };
    match first {
        Answer::Refused(_, refusal) if both && choice.engine == Engine::Cudnn => {
            let (Answer::Plan(of_kernels)
            | Answer::Refused(of_kernels, _)
            | Answer::Missing(of_kernels, _)
            | Answer::Failed(of_kernels)) = of(&EngineChoice { engine: other, why: Why::OtherRefuses(refusal) });
            of_kernels
        }
        Answer::Missing(missing, why) if both => {
            match of(&EngineChoice { engine: other, why: Why::OtherMissing(why) }) {
                Answer::Plan(plan) => plan,
                Answer::Refused(..) | Answer::Missing(..) | Answer::Failed(_) => missing,
            }
        }
        Answer::Plan(answer) | Answer::Refused(answer, _) | Answer::Missing(answer, _) | Answer::Failed(answer) => {
            answer
        }
    }
}

impl PlanError {
    /// Whether the other engine may take the place of this one's plan: it is missing, or its compiler is.
    #[must_use]
    pub fn leaves_to_other(&self) -> bool {
        match self {
            PlanError::Missing { .. } | PlanError::NoCompiler { .. } => true,
            PlanError::Kernels { failure, .. } => {
                matches!(**failure, NvrtcError::NotFound { .. } | NvrtcError::Variable { .. })
            }
            PlanError::Fa4 { failure, .. } => {
                matches!(**failure, Fa4Failure::Compile(CompileError::NotInstalled(_)))
            }
            PlanError::Failure(_) | PlanError::Recipe { .. } | PlanError::Interrupted { .. } => false,
        }
    }
}

type Answered = Result<Resolution, PlanError>;

impl Planner {
    /// The answer of the engine for an attention, by policy and choice.
    pub(crate) fn choose(
        &self,
        attention: &Valid,
        sm: u32,
        policy: EnginePolicy,
        of_cudnn: impl Fn() -> Answered,
        of_kernels: impl Fn(&KernelPlan<'_>) -> Answered,
        of_fa4: impl Fn(&Fa4Plan<'_>) -> Answered,
    ) -> Answered {
        ask_engines(EngineChoice::of(attention, sm, policy), policy, |choice| {
            let answered = match choice.engine {
                Engine::Cudnn => of_cudnn(),
                Engine::Kernels => kernels(attention, sm, &of_kernels),
                Engine::Fa4 => fa4(attention, sm, &of_fa4),
            };
            match answered {
                Ok(answer) => {
                    let refusal = answer.outcome.as_ref().err().cloned();
                    let answer = Ok(Resolution { engine: choice.clone(), ..answer });
                    match refusal {
                        None => Answer::Plan(answer),
                        Some(refusal) => Answer::Refused(answer, refusal),
                    }
                }
                Err(error) if error.leaves_to_other() => {
                    let why = error.to_string();
                    Answer::Missing(Err(error), why)
                }
                Err(error) => Answer::Failed(Err(error)),
            }
        })
    }

    /// The plan of kernels for an attention on every GPU of a compute capability. It needs no cuDNN and no target.
    ///
    /// # Errors
    ///
    /// As [`Planner::kernels`]; that kernels do not take it is an answer.
    pub fn kernels_of(&self, attention: &Valid, sm: u32, on_miss: OnMiss) -> Answered {
        kernels(attention, sm, |plan| self.kernels(plan, on_miss))
    }

    /// The same with [`OnMiss::Compile`], but compiled even if the vault has it, in the place of the stored one.
    ///
    /// # Errors
    ///
    /// As [`Planner::kernels`].
    pub fn rebuild_kernels_of(&self, attention: &Valid, sm: u32) -> Answered {
        kernels(attention, sm, |plan| self.kernels_anew(plan))
    }

    /// The plan of FlashAttention-4's kernels for an attention on every GPU of a compute capability. It needs no cuDNN
    /// and no target.
    ///
    /// # Errors
    ///
    /// As [`Planner::fa4`]; that the kernels do not take it is an answer.
    pub fn fa4_of(&self, attention: &Valid, sm: u32, on_miss: OnMiss) -> Answered {
        fa4(attention, sm, |plan| self.fa4(plan, on_miss))
    }

    /// The same with [`OnMiss::Compile`], but compiled even if the vault has it, in the place of the stored one.
    ///
    /// # Errors
    ///
    /// As [`Planner::fa4`].
    pub fn rebuild_fa4_of(&self, attention: &Valid, sm: u32) -> Answered {
        fa4(attention, sm, |plan| self.fa4_anew(plan))
    }
}

/// The answer of kernels.
fn kernels(attention: &Valid, sm: u32, of: impl Fn(&KernelPlan<'_>) -> Answered) -> Answered {
    let started = Instant::now();
    match generate(attention, sm) {
        Ok(Generated { source, options, recipe }) => {
            of(&KernelPlan { of: attention, source: &source, options: &options, recipe: &recipe })
        }
        Err(refusal) => Ok(refused(attention, Engine::Kernels, refusal, started)),
    }
}

/// The answer of FlashAttention-4's kernels.
fn fa4(attention: &Valid, sm: u32, of: impl Fn(&Fa4Plan<'_>) -> Answered) -> Answered {
    let started = Instant::now();
    match Fa4Plan::of(attention, sm) {
        Ok(plan) => of(&plan),
        Err(refusal) => Ok(refused(attention, Engine::Fa4, refusal, started)),
    }
}

fn refused(attention: &Valid, engine: Engine, refusal: Refusal, started: Instant) -> Resolution {
    Resolution {
        key: None,
        graph_key: attention.key(),
        source: Source::Built,
        unstored: None,
        engine: EngineChoice::named(engine),
        outcome: Err(refusal),
        milliseconds: started.elapsed().as_secs_f64() * 1e3,
    }
}
