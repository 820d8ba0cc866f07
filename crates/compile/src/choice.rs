//! Whose plan is taken, by policy, by what each engine takes, and by measured times.

mod ask;
mod stored;
#[cfg(test)]
mod tests;

use std::fmt;

use qkvault_cudnn::registry::codes;
use qkvault_graph::{EnginePolicy, Reason, Refusal, Valid};
use qkvault_probe::{Chosen, NotChosen};

use crate::engine::{Engine, EngineId};
use crate::engines::Engines;
use crate::times::{Case, Expected, KnownTimes, Table};
pub(crate) use ask::{Answer, ask_engines};

/// Who computes an attention, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineChoice {
    /// The engine.
    pub engine: EngineId,
    /// The reason.
    pub why: Why,
    /// The engines that have no plan, each with the reason: first those that were asked before, in order, then those
    /// that do not take the attention.
    pub passed: Vec<Passed>,
}

/// Reasons of an engine for an attention that another one refuses too: without the advice to leave it to that one.
#[must_use]
pub fn beside(refusal: &Refusal, other: EngineId) -> Refusal {
    let advice = format!("to {}", other.title());
    let reasons = refusal.reasons().iter().cloned();
    let reasons = reasons.map(|reason| if reason.fix.contains(&advice) { reason.with_fix("") } else { reason });
    Refusal::from_reasons(reasons.collect()).unwrap_or_else(|| refusal.clone())
}

/// Why an engine computes an attention.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Why {
    /// The options name it.
    Named,
    /// It was faster where both were measured, or at least not clearly slower.
    Measured {
        /// Its time divided by that of the other one.
        ratio: f64,
        /// The other one: the fastest beside it.
        beside: EngineId,
    },
    /// It is faster by what bounds the attention and by all that was measured, or at least not clearly slower.
    Predicted {
        /// Its time divided by that of the other one.
        ratio: f64,
        /// The other one: the fastest beside it.
        beside: EngineId,
    },
    /// It was faster for this attention on a machine of this vault, or no other was clearly faster.
    Timed {
        /// Its time divided by that of the other one.
        ratio: f64,
        /// The other one: the fastest beside it.
        beside: EngineId,
    },
    /// Nothing of its kind was measured, so the engine comes first that does without times.
    Unmeasured,
    /// No other engine takes the attention.
    Alone,
    /// The engines before it have no plan, as [`EngineChoice::passed`] says.
    OthersHaveNone,
}

/// An engine without a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Passed {
    /// The engine.
    pub engine: EngineId,
    /// The reason.
    pub because: Because,
}

impl Passed {
    /// Takes back the advice to leave the attention to another engine, which refuses it too.
    fn leave_out(&mut self, other: EngineId) {
        if let Because::Refuses(refusal) = &mut self.because
            && self.engine != other
        {
            *refusal = beside(refusal, other);
        }
    }
}

/// Why an engine has no plan of an attention.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Because {
    /// It does not take the attention, for these reasons.
    Refuses(Refusal),
    /// It takes the attention, with kernels that no GPU has judged, so it is taken only by name: why.
    Unproven(&'static str),
    /// Its plan is in no vault and is not compiled here, or does not load here: why.
    Missing(String),
    /// Its plan is in no vault, and what would compile it is optional and not installed here: how to get it.
    NoCompiler(String),
}

/// The engines that may have a plan of an attention, in the order in which they are asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidates {
    /// The first choice, then the others; one that only a target tells what it takes, as cuDNN, is among them.
    pub engines: Vec<EngineId>,
    /// How many of them, the first ones, take as long as the first by what is known of times; all, where nothing is.
    pub near: usize,
    /// Why the first one is the first.
    pub why: Why,
    /// Engines that do not take the attention.
    pub never: Vec<Passed>,
}

impl Engines {
    /// The candidates for an attention on GPUs of a compute capability (major * 10 + minor), by the table of measured
    /// times. No library is asked. An engine that is named and not in the list is none.
    #[must_use]
    pub fn candidates(&self, attention: &Valid, sm: u32, policy: EnginePolicy) -> Candidates {
        match policy {
            EnginePolicy::Named(name) => {
                let engines = self.named(name).map(Engine::id).into_iter().collect();
                Candidates { engines, near: 1, why: Why::Named, never: Vec::new() }
            }
            EnginePolicy::Auto => self.by_table(attention, sm),
        }
    }

    fn by_table(&self, attention: &Valid, sm: u32) -> Candidates {
        let case = Case::for_attention(attention);
        // Without times, who makes better use of what is the limit: arithmetic or memory.
        let mut usual: Vec<&dyn Engine> = self.iter().collect();
        usual.sort_by_key(|engine| engine.place(case.is_dense()));
        let mut never = Vec::new();
        let mut taken = Vec::new();
        for engine in usual {
            let because = match engine.takes(attention, sm) {
                Err(refusal) => Some(Because::Refuses(refusal)),
                Ok(()) => engine.unproven(attention).map(Because::Unproven),
            };
            match because {
                Some(because) => never.push(Passed { engine: engine.id(), because }),
                None => taken.push(engine.id()),
            }
        }
        if taken.len() == 1 {
            return Candidates { near: 1, engines: taken, why: Why::Alone, never };
        }
        if sm != Table::built_in().sm {
            return Candidates { near: taken.len(), engines: taken, why: Why::Unmeasured, never };
        }
        let known = Table::built_in().times(&case, &taken, Table::prior_of_built_in());
        let mut engines = known.order(&taken);
        let KnownTimes { times, measured } = known;
        engines.extend(taken.iter().filter(|engine| times.us(**engine).is_none()));
        let why = match times.ratio(engines[0], &taken) {
            Some((ratio, beside)) if measured => Why::Measured { ratio, beside },
            Some((ratio, beside)) => Why::Predicted { ratio, beside },
            None => Why::Unmeasured,
        };
        Candidates { near: times.near(&engines), engines, why, never }
    }

    /// What a launch of an attention by an engine is expected to take on GPUs of a compute capability, by the built-in
    /// table; `None` for other GPUs than its own, and where nothing of the kind was measured.
    #[must_use]
    pub fn expected(&self, engine: EngineId, attention: &Valid, sm: u32) -> Option<Expected> {
        if sm != Table::built_in().sm {
            return None;
        }
        let case = Case::for_attention(attention);
        let measured = Table::built_in().row(&case, &[engine]).and_then(|row| row.times.us(engine));
        let predicted = || Table::prior_of_built_in().us(engine.name(), &case);
        Some(Expected::new(&case, measured.or_else(predicted)?, measured.is_some()))
    }

    /// The choice by rules, where cuDNN is not asked: these are the reasons why `refusing` does not take the attention,
    /// and the first other candidate takes its place; `None` if there is none, or the named one does not take it
    /// either. What exceeds the memory for operands (`memory.budget`) exceeds it with every engine.
    #[must_use]
    pub fn by_rules(
        &self,
        attention: &Valid,
        sm: u32,
        policy: EnginePolicy,
        (refusing, reasons): (EngineId, &[Reason]),
    ) -> Option<EngineChoice> {
        let candidates = self.candidates(attention, sm, policy);
        let first = *candidates.engines.first()?;
        if reasons.iter().any(|reason| reason.code == codes::MEMORY_BUDGET)
            || self.get(first).takes(attention, sm).is_err()
        {
            return None;
        }
        let Some(refusal) = Refusal::from_reasons(reasons.to_vec()) else {
            return Some(candidates.choice(first, &[]));
        };
        if first != refusing {
            let mut choice = candidates.choice(first, &[]);
            choice.passed.iter_mut().for_each(|passed| passed.leave_out(refusing));
            return Some(choice);
        }
        let next = *candidates.engines.get(1)?;
        Some(candidates.choice(next, &[Passed { engine: first, because: Because::Refuses(refusal) }]))
    }
}

impl Candidates {
    /// The choice of one of the candidates, after others that have no plan.
    #[must_use]
    pub fn choice(&self, engine: EngineId, before: &[Passed]) -> EngineChoice {
        let why = if before.is_empty() { self.why.clone() } else { Why::OthersHaveNone };
        let refused = before.iter().filter(|passed| matches!(passed.because, Because::Refuses(_)));
        let refused: Vec<EngineId> = refused.map(|passed| passed.engine).collect();
        let mut passed: Vec<Passed> = before.iter().chain(&self.never).cloned().collect();
        for passed in &mut passed {
            refused.iter().for_each(|other| passed.leave_out(*other));
        }
        EngineChoice { engine, why, passed }
    }
}

impl EngineChoice {
    /// The choice, as an explanation has it.
    #[must_use]
    pub fn explained(&self) -> Chosen {
        let passed = |passed: &Passed| NotChosen { engine: passed.engine.name().to_string(), why: passed.to_string() };
        let EngineChoice { engine, why: _, passed: list } = self;
        let passed = list.iter().map(passed).collect();
        Chosen { engine: engine.name().to_string(), why: self.to_string(), passed }
    }

    /// The engine that the caller names.
    #[must_use]
    pub const fn named(engine: EngineId) -> EngineChoice {
        EngineChoice { engine, why: Why::Named, passed: Vec::new() }
    }

    /// Why an engine has no plan, if another one took its place.
    #[must_use]
    pub fn refusal_of(&self, engine: EngineId) -> Option<&Refusal> {
        self.passed.iter().filter(|passed| passed.engine == engine).find_map(|passed| match &passed.because {
            Because::Refuses(refusal) => Some(refusal),
            Because::Unproven(_) | Because::Missing(_) | Because::NoCompiler(_) => None,
        })
    }
}

/// A share of the time of another engine as people say it.
fn faster(ratio: f64, beside: EngineId) -> String {
    let (times, title) = (ratio.max(f64::MIN_POSITIVE).recip(), beside.title());
    match (times - 1.0) * 100.0 {
        percent if percent >= 100.0 => format!("{times:.1} times as fast as {title}"),
        percent if percent >= 0.5 => format!("{percent:.0} % faster than {title}"),
        percent if percent <= -0.5 => format!("{:.0} % slower than {title}", (ratio - 1.0) * 100.0),
        _ => format!("as fast as {title}"),
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = self.engine.title();
        match &self.why {
            Why::Named => write!(f, "{one}, as the options say")?,
            Why::Measured { ratio, beside } => {
                write!(f, "{one}: {}, measured", faster(*ratio, *beside))?;
                on_table_gpu(f)?;
            }
            Why::Predicted { ratio, beside } => {
                write!(f, "{one}: {}, predicted from times", faster(*ratio, *beside))?;
                on_table_gpu(f)?;
            }
            Why::Timed { ratio, beside } => {
                write!(f, "{one}: {}, measured by `warm --autotune`", faster(*ratio, *beside))?;
            }
            Why::Unmeasured => write!(f, "{one}: nothing of its kind was measured")?,
            Why::Alone => {
                let named = self.passed.iter().any(|passed| matches!(passed.because, Because::Unproven(_)));
                write!(f, "{one}: no other engine takes it{}", if named { " unless it is named" } else { "" })?;
            }
            Why::OthersHaveNone => write!(f, "{one} instead")?,
        }
        self.passed.iter().try_for_each(|passed| write!(f, "\n  {passed}"))
    }
}

/// Says where the table was measured, since GPUs of a family use one.
fn on_table_gpu(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, " on {}", Table::built_in().gpu)
}

impl fmt::Display for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = self.engine.title();
        match &self.because {
            Because::Refuses(refusal) => write!(f, "not {one}, refused: {refusal}"),
            Because::Unproven(why) => write!(f, "not {one} unless it is named: {why}"),
            Because::Missing(why) => write!(f, "not {one}, no plan: {why}"),
            Because::NoCompiler(why) => write!(f, "not {one}, no compiler: {why}"),
        }
    }
}
