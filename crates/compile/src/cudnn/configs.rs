//! Engines of cuDNN: configurations of named ones, and what engines report about themselves.

use std::fmt::Write as _;

use qkvault_cudnn::op::{Knob, NamedEngine};
use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{Heuristics, OpGraph};
use qkvault_graph::Reason;
use qkvault_graph::registry::Code;
use qkvault_sys::{AttributeName as A, Descriptor, Error, Kind, KnobType, NumericalNote};

use crate::cudnn::status::{self, About};

/// The source of engine configurations.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// The engine that the op graph names.
    Named(&'a NamedEngine),
    /// Heuristics, mode A.
    A,
    /// Heuristics, the fallback list.
    Fallback,
}

impl<'a> Source<'a> {
    /// The sources that are asked, in order; for a graph with a named engine, only that one.
    pub(crate) fn for_graph(graph: &'a OpGraph, heuristics: Heuristics) -> Vec<Source<'a>> {
        match (&graph.engine, heuristics) {
            (Some(engine), _) => vec![Source::Named(engine)],
            (None, Heuristics::AThenFallback) => vec![Source::A, Source::Fallback],
            (None, Heuristics::A) => vec![Source::A],
            (None, Heuristics::Fallback) => vec![Source::Fallback],
        }
    }

    /// The code of a refusal to give a configuration, and its field.
    pub(crate) fn name(self) -> (&'static Code, String) {
        match self {
            Source::Named(engine) => (&codes::LIBRARY_ENGINE, engine.to_string()),
            Source::A => (&codes::LIBRARY_HEURISTICS, "mode A".to_owned()),
            Source::Fallback => (&codes::LIBRARY_HEURISTICS, "fallback".to_owned()),
        }
    }
}

/// The configuration of an engine by number, with its knobs, for a finalized operation graph on a device given as data.
///
/// An engine refuses an unsupported graph when its configuration or its plan is finalized.
pub(crate) fn named(ops: &Descriptor, device: &Descriptor, engine: &NamedEngine) -> Result<Descriptor, Error> {
    let library = ops.library();
    let NamedEngine { index, knobs } = engine;
    let mut descriptor = Descriptor::create(library, Kind::ENGINE)?;
    descriptor.set_descriptor(A::ENGINE_OPERATION_GRAPH, ops)?;
    descriptor.set_one(A::ENGINE_GLOBAL_INDEX, *index)?;
    descriptor.set_descriptor(A::ENGINE_DEVICEPROP, device)?;
    descriptor.finalize()?;
    let choice = |&(knob, value): &(Knob, i64)| {
        let mut choice = Descriptor::create(library, Kind::KNOB_CHOICE)?;
        choice.set_one(A::KNOB_CHOICE_KNOB_TYPE, KnobType(knob as u32))?;
        choice.set_one(A::KNOB_CHOICE_KNOB_VALUE, value)?;
        choice.finalized()
    };
    let choices: Vec<Descriptor> = knobs.iter().map(choice).collect::<Result<_, Error>>()?;
    let mut config = Descriptor::create(library, Kind::ENGINECFG)?;
    config.set_descriptor(A::ENGINECFG_ENGINE, &descriptor)?;
    config.set_descriptors(A::ENGINECFG_KNOB_CHOICES, &choices.iter().collect::<Vec<_>>())?;
    config.finalized()
}

/// The reason why a configuration's engine must not compute this graph, if there is one.
///
/// If other engines compute a graph wrongly, an engine without a known number does not get it either. A graph of a
/// deterministic backward does not go to an engine that reports that two runs may differ (the gradient of a bias gives
/// the same graph, and the same key).
pub(crate) fn unfit(config: &Descriptor, graph: &OpGraph) -> Result<Option<Reason>, Error> {
    let engine = index(config)?;
    let given = engine.map_or_else(|| "an engine without a number".to_owned(), |engine| format!("engine {engine}"));
    if graph.sums_d_q_directly() && says_runs_differ(config)? {
        return Ok(Some(codes::ENGINE_NONDETERMINISTIC.reason(given)));
    }
    if graph.excluded_engines.is_empty() || engine.is_some_and(|engine| !graph.excluded_engines.contains(&engine)) {
        return Ok(None);
    }
    Ok(Some(codes::ENGINE_WRONG.reason(given)))
}

/// What cuDNN reports, or `None` from a version that cannot report it. A failure now is an error, because a lack of
/// memory must not have the same result as a missing report.
fn told<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(told) => Ok(Some(told)),
        Err(Error::Call(call)) if status::row(call.status).about == About::Request => Ok(None),
        Err(Error::Count { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Number of a configuration's engine, if this cuDNN reports it.
pub(crate) fn index(config: &Descriptor) -> Result<Option<i64>, Error> {
    let engines = told(config.get_descriptors(A::ENGINECFG_ENGINE, Kind::ENGINE))?.unwrap_or_default();
    let Some(engine) = engines.first() else { return Ok(None) };
    told(engine.get_one(A::ENGINE_GLOBAL_INDEX))
}

/// Engine number and knobs of a configuration, for people; empty if this cuDNN does not report them.
pub(crate) fn text(config: &Descriptor) -> Result<String, Error> {
    let mut text = String::new();
    if let Some(index) = index(config)? {
        let _ = write!(text, "engine {index}");
    }
    let knobs = told(config.get_descriptors(A::ENGINECFG_KNOB_CHOICES, Kind::KNOB_CHOICE))?.unwrap_or_default();
    for knob in knobs {
        let kind = told(knob.get_one::<KnobType>(A::KNOB_CHOICE_KNOB_TYPE))?;
        let value = told(knob.get_one::<i64>(A::KNOB_CHOICE_KNOB_VALUE))?;
        if let (Some(kind), Some(value)) = (kind, value) {
            let _ = write!(text, " k{}={value}", kind.0);
        }
    }
    Ok(text)
}

/// Whether a configuration's engine reports that two runs may differ. No attention engine was seen to report it,
/// including those that sum in any order (`docs/results/forms.md`), so the absence of the report means little.
fn says_runs_differ(config: &Descriptor) -> Result<bool, Error> {
    for engine in told(config.get_descriptors(A::ENGINECFG_ENGINE, Kind::ENGINE))?.unwrap_or_default() {
        if runs_differ(&told(engine.get(A::ENGINE_NUMERICAL_NOTE))?.unwrap_or_default()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn runs_differ(notes: &[NumericalNote]) -> bool {
    notes.contains(&NumericalNote::NONDETERMINISTIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_note_among_others_says_that_runs_differ() {
        let (tensor_core, differ) = (NumericalNote::TENSOR_CORE, NumericalNote::NONDETERMINISTIC);
        assert!(!runs_differ(&[]) && !runs_differ(&[tensor_core, NumericalNote::FFT]));
        assert!(runs_differ(&[differ]) && runs_differ(&[tensor_core, differ]));
    }
}
