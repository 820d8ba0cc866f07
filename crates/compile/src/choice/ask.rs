//! The engines of a choice are asked one after the other, until one has a plan.

use std::sync::Arc;
use std::time::Instant;

use qkvault_cache::Source;
use qkvault_fa4::CompileError;
use qkvault_graph::{EnginePolicy, PlanKey, Refusal, Valid};
use qkvault_kernels::{Engine, Generated, generate};

use crate::choice::{Because, Candidates, EngineChoice, Passed};
use crate::fa4::{Fa4Failure, Fa4Plan};
use crate::kernels::KernelPlan;
use crate::nvrtc::NvrtcError;
use crate::plan::Plan;
use crate::planner::{OnMiss, PlanError, Planner, Resolution};

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
    /// There is no plan, and what would compile it is not installed: why.
    Unavailable(R, String),
    /// Something else is wrong, which no other engine mends.
    Failed(R),
}

/// Asks the candidates in order, each with the reason of its place, until one has a plan. Where none has, the first one
/// that could have it answers: whose plan is missing, or who failed; else the first refusal. Also returns why the
/// candidates have no plan that were asked and did not answer, in order.
pub fn ask_engines<R>(candidates: &Candidates, mut of: impl FnMut(&EngineChoice) -> Answer<R>) -> (R, Vec<Passed>) {
    let (mut passed, mut missing, mut refused, mut unavailable) = (Vec::new(), None, None, None);
    for &engine in &candidates.engines {
        let because = match of(&candidates.choice(engine, &passed)) {
            Answer::Plan(answer) => return (answer, passed),
            Answer::Failed(answer) => return (missing.unwrap_or(answer), passed),
            Answer::Refused(answer, refusal) => {
                refused.get_or_insert(answer);
                Because::Refuses(refusal)
            }
            Answer::Missing(answer, why) => {
                missing.get_or_insert(answer);
                Because::Missing(why)
            }
            Answer::Unavailable(answer, why) => {
                unavailable.get_or_insert(answer);
                Because::Missing(why)
            }
        };
        passed.push(Passed { engine, because });
    }
    (missing.or(refused).or(unavailable).expect("there is at least one candidate"), passed)
}

/// What an engine lacks, in whose place another one may compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// Its plan is missing, or cannot be compiled here.
    Plan,
    /// Its compiler is optional and not installed.
    Compiler,
}

impl PlanError {
    /// What the engine lacks; `None` for an error that no other engine mends.
    #[must_use]
    pub fn gap(&self) -> Option<Gap> {
        match self {
            PlanError::Missing { .. } | PlanError::NoCompiler { .. } => Some(Gap::Plan),
            PlanError::Kernels { failure, .. } => match **failure {
                NvrtcError::NotFound { .. } | NvrtcError::Variable { .. } => Some(Gap::Plan),
                _ => None,
            },
            PlanError::Fa4 { failure, .. } => match **failure {
                Fa4Failure::Compile(CompileError::NotInstalled(_)) => Some(Gap::Compiler),
                _ => Some(Gap::Plan),
            },
            PlanError::Failure(_) | PlanError::Recipe { .. } | PlanError::Interrupted { .. } => None,
        }
    }
}

type Answered = Result<Resolution, PlanError>;

impl Planner {
    /// The answer of the engine for an attention, by policy, choice, and the limit of scratch memory.
    pub(crate) fn choose(
        &self,
        attention: &Valid,
        sm: u32,
        (policy, limit): (EnginePolicy, Option<u64>),
        of_cudnn: impl Fn() -> Answered,
        of_kernels: impl Fn(&KernelPlan<'_>) -> Answered,
        of_fa4: impl Fn(&Fa4Plan<'_>) -> Answered,
    ) -> Answered {
        let candidates = self.candidates(attention, sm, policy);
        let (answered, passed) = ask_engines(&candidates, |choice| {
            let answered = match choice.engine {
                Engine::Cudnn => of_cudnn(),
                Engine::Kernels => kernels(attention, sm, &of_kernels),
                Engine::Fa4 => fa4(attention, sm, &of_fa4),
            };
            match answered {
                Ok(mut answer) => {
                    // cuDNN's answer is within the limit: it may be of another of its engines.
                    let over = |plan: &Arc<Plan>| crate::limit::over(&plan.facts, limit?);
                    if let Some(reason) = answer.outcome.as_ref().ok().and_then(over) {
                        answer.outcome = Err(reason.into());
                    }
                    let refusal = answer.outcome.as_ref().err().cloned();
                    let answer = Ok(Resolution { engine: choice.clone(), ..answer });
                    match refusal {
                        None => Answer::Plan(answer),
                        Some(refusal) => Answer::Refused(answer, refusal),
                    }
                }
                Err(error) => {
                    let (gap, why) = (error.gap(), error.cause());
                    match gap {
                        Some(Gap::Plan) => Answer::Missing(Err(error), why),
                        Some(Gap::Compiler) => Answer::Unavailable(Err(error), why),
                        None => Answer::Failed(Err(error)),
                    }
                }
            }
        });
        // A refusal is told with what the other engines lack.
        answered.map(|mut answer| {
            if answer.outcome.is_err() {
                let others = passed.into_iter().filter(|passed| passed.engine != answer.engine.engine);
                answer.engine.passed = others.chain(candidates.never).collect();
            }
            answer
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
