//! One attempt to make a plan: cuDNN's engine configurations in its order, until one gives a plan.
//!
//! The attempt goes on to the next configuration only if the error concerns the request. An error of this machine or
//! this moment ends the attempt: otherwise the plan of another engine would get the key of the first engine that
//! supports the graph.

use std::sync::Arc;

use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{Choice, CompileOptions, OpGraph, Target};
use qkvault_graph::registry::Code;
use qkvault_graph::{Origin, Reason, Role};
use qkvault_sys::{AttributeName as A, Descriptor, Error, HeurMode, Kind, Library};

use crate::cudnn::bound;
use crate::cudnn::configs::{self, Source};
use crate::cudnn::failure::Failure;
use crate::cudnn::status::{self, About, COMPILATION_FAILED};
use crate::cudnn::uncompiled::{self, Often};
use crate::cudnn::write;
use crate::facts::PassedOver;

/// The input of an attempt.
#[derive(Clone, Copy)]
pub(crate) struct Attempt<'a> {
    pub(crate) library: &'a Arc<Library>,
    pub(crate) graph: &'a OpGraph,
    pub(crate) target: &'a Target,
    pub(crate) options: &'a CompileOptions,
    pub(crate) choice: Choice,
}

/// A plan and its configuration.
pub(crate) struct Made {
    pub(crate) plan: Descriptor,
    pub(crate) engine: String,
    pub(crate) passed_over: Vec<PassedOver>,
}

/// Why there is no plan.
pub(crate) enum Stop {
    /// All errors concern the request.
    Refused(Vec<Reason>),
    /// A failure of this machine or this moment.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

/// Configurations that gave no plan so far.
#[derive(Default)]
struct Past {
    reasons: Vec<Reason>,
    passed_over: Vec<PassedOver>,
    /// Configurations for which only some kernels compile: their failure counts if another kernel compiles and theirs
    /// still does not.
    unsure: Vec<(Descriptor, Failure)>,
}

impl Attempt<'_> {
    /// The chosen engine configuration among those that give a plan: that of the engine that the graph names, or one of
    /// the heuristics in the options.
    pub(crate) fn make(&self) -> Result<Made, Stop> {
        let ops = self.ops()?;
        let device = self.device()?;
        let mut past = Past::default();
        let mut least: Option<(u64, Descriptor, String)> = None;
        let mut others = 0_u8;
        for from in Source::for_graph(self.graph, self.options.heuristics) {
            let (code, name) = from.name();
            let configs = match from {
                Source::Named(engine) => configs::named(&ops, &device, engine).map(|config| vec![config]),
                Source::A => self.heuristics(&ops, &device, HeurMode::A),
                Source::Fallback => self.heuristics(&ops, &device, HeurMode::FALLBACK),
            };
            let configs = match configs {
                Ok(configs) => configs,
                Err(error) => {
                    past.reasons.push(self.reason(code, &name, error)?);
                    continue;
                }
            };
            for config in configs {
                let Some((plan, engine)) = self.one(config, &name, &mut past)? else { continue };
                match self.choice {
                    Choice::First => return self.believed(plan, engine, past),
                    Choice::After(wanted) if others == wanted.get() => return self.believed(plan, engine, past),
                    Choice::After(_) => {
                        others += 1;
                        continue;
                    }
                    Choice::LeastWorkspace => {}
                }
                let bytes = workspace(&plan).map_err(|error| self.fail(error, "the size of a workspace"))?;
                if least.as_ref().is_none_or(|(least, ..)| bytes < *least) {
                    least = Some((bytes, plan, engine));
                }
            }
        }
        if let Some((_, plan, engine)) = least {
            return self.believed(plan, engine, past);
        }
        if let Choice::After(wanted) = self.choice
            && others > 0
        {
            let given = format!("the configuration after {wanted} others, where {others} give a plan");
            past.reasons.push(codes::LIBRARY_HEURISTICS.reason(given));
        }
        match past.unsure.into_iter().next() {
            Some((_, failure)) => Err(Stop::Failed(failure)),
            None => Err(Stop::Refused(distinct(past.reasons))),
        }
    }

    /// The plan of one configuration; `None` if it is passed over.
    fn one(&self, config: Descriptor, name: &str, past: &mut Past) -> Result<Option<(Descriptor, String)>, Stop> {
        let fail = |error| self.fail(error, "the notes of an engine");
        // cuDNN does not report the knobs of a named engine.
        let named = self.graph.engine.as_ref().map(|engine| Ok(engine.to_string()));
        let engine = named.unwrap_or_else(|| configs::text(&config)).map_err(fail)?;
        if let Some(reason) = configs::unfit(&config, self.graph).map_err(fail)? {
            past.passed_over.push(PassedOver::unfit(engine, &reason));
            past.reasons.push(reason);
            return Ok(None);
        }
        let error = match plan(&config) {
            Ok(plan) => {
                let unbound = self.unbound(&plan).map_err(fail)?;
                let Some(first) = unbound.first() else { return Ok(Some((plan, engine))) };
                let reason = codes::ENGINE_AMAX.reason(format!("{engine}, whose plan does not bind the {first}"));
                past.passed_over.push(PassedOver::unfit(engine, &reason));
                past.reasons.push(reason);
                return Ok(None);
            }
            Err(error) => error,
        };
        past.passed_over.push(PassedOver::refused(engine.clone(), &error));
        let what = format!("the plan of {engine}");
        if is_uncompiled(&error) {
            let index = configs::index(&config).map_err(fail)?;
            match index.and_then(|index| uncompiled::known(self.graph, self.target, index)) {
                None => return Err(self.fail(error, what).into()),
                Some(Often::Always) => past.reasons.push(reason(&codes::LIBRARY_PLAN, name, &error)),
                Some(Often::Sometimes) => past.unsure.push((config, self.fail(error, what))),
            }
        } else {
            past.reasons.push(self.reason(&codes::LIBRARY_PLAN, name, error)?);
        }
        Ok(None)
    }

    /// The largest magnitudes that the plan would not write. Most graphs have none, and their plans are not read.
    fn unbound(&self, plan: &Descriptor) -> Result<Vec<Role>, Error> {
        if !self.graph.roles().iter().any(|role| matches!(role, Role::Amax(_))) {
            return Ok(Vec::new());
        }
        Ok(bound::unbound(self.graph, &plan.get_bytes(A::EXECUTION_PLAN_JSON_REPRESENTATION)?))
    }

    /// The plan, after the uncertain configurations before it were tried again: if one compiles now, its failure was of
    /// the moment.
    fn believed(&self, plan: Descriptor, engine: String, past: Past) -> Result<Made, Stop> {
        for (config, failure) in past.unsure {
            if self::plan(&config).is_ok() {
                return Err(Stop::Failed(failure));
            }
        }
        Ok(Made { plan, engine, passed_over: past.passed_over })
    }

    fn device(&self) -> Result<Descriptor, Stop> {
        let json = self.target.device.json_for(self.target.cudnn).map_err(Stop::Refused)?;
        let make = || -> Result<Descriptor, Error> {
            let mut device = Descriptor::create(self.library, Kind::DEVICEPROP)?;
            device.set(A::DEVICEPROP_JSON_REPRESENTATION, json.as_bytes())?;
            device.finalized()
        };
        make().map_err(|error| self.refused_or_failed(&codes::LIBRARY_DEVICE, "target.device", error))
    }

    fn ops(&self) -> Result<Descriptor, Stop> {
        write::op_graph(self.library, self.graph)
            .map_err(|error| self.refused_or_failed(&codes::LIBRARY_GRAPH, "op graph", error))
    }

    fn heuristics(&self, ops: &Descriptor, device: &Descriptor, mode: HeurMode) -> Result<Vec<Descriptor>, Error> {
        let mut h = Descriptor::create(self.library, Kind::ENGINEHEUR)?;
        h.set_descriptor(A::ENGINEHEUR_OPERATION_GRAPH, ops)?;
        h.set_one(A::ENGINEHEUR_MODE, mode)?;
        h.set_descriptor(A::ENGINEHEUR_DEVICEPROP, device)?;
        h.finalize()?;
        h.get_descriptors(A::ENGINEHEUR_RESULTS, Kind::ENGINECFG)
    }

    /// The error as a reason of a refusal, if it concerns the request.
    fn reason(&self, code: &Code, field: &str, error: Error) -> Result<Reason, Failure> {
        match &error {
            Error::Call(call) if status::row(call.status).about == About::Request => Ok(reason(code, field, &error)),
            _ => Err(self.fail(error, format!("anything of '{field}'"))),
        }
    }

    fn refused_or_failed(&self, code: &Code, field: &str, error: Error) -> Stop {
        match self.reason(code, field, error) {
            Ok(reason) => Stop::Refused(vec![reason]),
            Err(failure) => Stop::Failed(failure),
        }
    }

    fn fail(&self, error: Error, what: impl Into<String>) -> Failure {
        Failure::from_error(error, what, self.target)
    }
}

fn plan(config: &Descriptor) -> Result<Descriptor, Error> {
    let mut plan = Descriptor::create(config.library(), Kind::EXECUTION_PLAN)?;
    plan.set_descriptor(A::EXECUTION_PLAN_ENGINE_CONFIG, config)?;
    plan.finalized()
}

/// Bytes of cuDNN's workspace.
pub(crate) fn workspace(plan: &Descriptor) -> Result<u64, Error> {
    Ok(plan.get_one::<i64>(A::EXECUTION_PLAN_WORKSPACE_SIZE)?.unsigned_abs())
}

fn is_uncompiled(error: &Error) -> bool {
    matches!(error, Error::Call(call) if call.status == COMPILATION_FAILED)
}

fn reason(code: &Code, field: &str, error: &Error) -> Reason {
    code.reason(error.to_string()).at(field.to_owned())
}

/// Equal messages of several configurations are kept once.
fn distinct(reasons: Vec<Reason>) -> Vec<Reason> {
    let mut list: Vec<Reason> = Vec::new();
    for reason in reasons {
        if reason.origin != Origin::Library || !list.iter().any(|r| r.given == reason.given) {
            list.push(reason);
        }
    }
    list
}
