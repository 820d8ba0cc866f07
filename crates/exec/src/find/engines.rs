//! The engines that may have a plan of an attention are asked one after the other, and the plan of the first is loaded.

use qkvault_compile::{Answer, Candidates, Gap, OnMiss, Plan, Planner, ask_engines};
use qkvault_graph::{CompileOptions, EnginePolicy, Target, Valid};
use qkvault_kernels::Engine;

use crate::find::{PrepareError, Prepared, prepare_cudnn, prepare_kernels};
use crate::raw::load_error::LoadError;
use crate::raw::session::SessionError;

/// What is asked of every candidate.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a, H> {
    pub(super) candidates: &'a Candidates,
    pub(super) planner: &'a Planner,
    pub(super) sm: u32,
    pub(super) here: &'a H,
    pub(super) attention: &'a Valid,
    pub(super) options: &'a CompileOptions,
    pub(super) on_miss: OnMiss,
}

impl<'t, H: Fn() -> Result<&'t Target, PrepareError>> Asked<'_, H> {
    /// The plan of the first candidate that has one.
    pub(super) fn prepare<P>(
        &self,
        mut load: impl FnMut(&Plan) -> Result<P, LoadError>,
    ) -> Result<Prepared<P>, PrepareError> {
        let Asked { candidates, planner, sm, here, attention, options, on_miss } = *self;
        let (prepared, _) = ask_engines(candidates, |choice| {
            let prepared = match choice.engine {
                Engine::Cudnn => {
                    let options = CompileOptions { engine: EnginePolicy::Cudnn, ..*options };
                    here().and_then(|here| prepare_cudnn(planner, here, attention, &options, on_miss, &mut load))
                }
                Engine::Kernels => {
                    let find = || planner.kernels_of(attention, sm, on_miss);
                    prepare_kernels(on_miss, find, || planner.rebuild_kernels_of(attention, sm), &mut load)
                }
                Engine::Fa4 => {
                    let find = || planner.fa4_of(attention, sm, on_miss);
                    prepare_kernels(on_miss, find, || planner.rebuild_fa4_of(attention, sm), &mut load)
                }
            };
            match prepared {
                Ok(mut prepared) => {
                    prepared.answer.engine = choice.clone();
                    Answer::Plan(Ok(prepared))
                }
                Err(PrepareError::Refused(refusal)) => Answer::Refused(Err(refusal.clone().into()), refusal),
                Err(error) => {
                    let why = match &error {
                        PrepareError::Plan(error) => error.cause(),
                        other => other.to_string(),
                    };
                    match gap(&error) {
                        Some(Gap::Plan) => Answer::Missing(Err(error), why),
                        Some(Gap::Compiler) => Answer::Unavailable(Err(error), why),
                        None => Answer::Failed(Err(error)),
                    }
                }
            }
        });
        prepared
    }
}

/// What an engine lacks, in whose place another one may compute: its plan is missing and is not compiled here, there is
/// no cuDNN, the driver is too old for kernels, or its plan needs more scratch memory than is allowed.
fn gap(error: &PrepareError) -> Option<Gap> {
    let plan = |is: bool| is.then_some(Gap::Plan);
    match error {
        PrepareError::Plan(error) => error.gap(),
        PrepareError::Session(error) => plan(matches!(error, SessionError::NoCudnn(_))),
        PrepareError::Load(error) | PrepareError::Unusable(error) => {
            plan(matches!(error, LoadError::OtherMachine(_) | LoadError::WorkspaceTooLarge { .. }))
        }
        PrepareError::Refused(_) | PrepareError::Constants { .. } => None,
    }
}
