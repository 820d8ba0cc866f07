//! Whose plan is taken: cuDNN's, that of qkvault's kernels or of FlashAttention-4's, by policy, by what each takes, and
//! by measured times.

mod ask;
mod stored;
#[cfg(test)]
mod tests;

use std::fmt;

use qkvault_graph::registry::codes;
use qkvault_graph::{EnginePolicy, Reason, Refusal, Valid};
use qkvault_kernels::choice::{Case, Table};
use qkvault_kernels::{Engine, takes};
use qkvault_probe::{Chosen, NotChosen};

pub(crate) use ask::kernel_key;
pub use ask::{Answer, Gap, ask_engines};

/// Who computes an attention, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineChoice {
    /// The engine.
    pub engine: Engine,
    /// The reason.
    pub why: Why,
    /// The engines that have no plan, each with the reason: first those that were asked before, in order, then those
    /// that do not take the attention.
    pub passed: Vec<Passed>,
}

/// Why an engine does not take an attention on GPUs of a compute capability (major * 10 + minor), which a GPU and a
/// library need not be there for; `None` for cuDNN, whose rules are another matter ([`qkvault_probe::check`]).
#[must_use]
pub fn refuses(engine: Engine, attention: &Valid, sm: u32) -> Option<Refusal> {
    match engine {
        Engine::Cudnn => None,
        Engine::Kernels => takes(attention, sm).err(),
        Engine::Fa4 => qkvault_fa4::takes(attention, sm).err(),
    }
}

/// Reasons of another engine for an attention that cuDNN refuses too: without the advice to leave it to cuDNN.
#[must_use]
pub fn beside_cudnns(refusal: &Refusal) -> Refusal {
    let reasons = refusal.reasons().iter().cloned().map(|reason| {
        let to_cudnn = reason.fix.contains("to cuDNN");
        if to_cudnn { reason.with_fix("") } else { reason }
    });
    Refusal::of(reasons.collect()).unwrap_or_else(|| refusal.clone())
}

/// Why an engine that takes an attention does so only where the options name it: no GPU has judged these kernels.
#[must_use]
pub fn unproven(engine: Engine, attention: &Valid) -> Option<&'static str> {
    if engine == Engine::Fa4 { qkvault_fa4::unproven(attention) } else { None }
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
        beside: Engine,
        /// Doublings between the attention and what was measured.
        distance: f64,
    },
    /// It was faster for this attention on a machine of this vault, or no other was clearly faster.
    Timed {
        /// Its time divided by that of the other one.
        ratio: f64,
        /// The other one: the fastest beside it.
        beside: Engine,
    },
    /// Nothing near was measured, so cuDNN comes first.
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
    pub engine: Engine,
    /// The reason.
    pub because: Because,
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
}

/// The engines that may have a plan of an attention, in the order in which they are asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidates {
    /// The first choice, then the others; cuDNN is among them whether it takes the attention or not, which only it can
    /// tell.
    pub engines: Vec<Engine>,
    /// Why the first one is the first.
    pub why: Why,
    /// Engines that do not take the attention.
    pub never: Vec<Passed>,
}

impl Candidates {
    /// The candidates for an attention on GPUs of a compute capability (major * 10 + minor). cuDNN is not asked.
    #[must_use]
    pub fn of(attention: &Valid, sm: u32, policy: EnginePolicy) -> Candidates {
        match policy {
            EnginePolicy::Cudnn => Candidates::named(Engine::Cudnn),
            EnginePolicy::Kernels => Candidates::named(Engine::Kernels),
            EnginePolicy::Fa4 => Candidates::named(Engine::Fa4),
            EnginePolicy::Auto => Candidates::auto(attention, sm),
        }
    }

    fn named(engine: Engine) -> Candidates {
        Candidates { engines: vec![engine], why: Why::Named, never: Vec::new() }
    }

    fn auto(attention: &Valid, sm: u32) -> Candidates {
        let case = Case::of(attention);
        // Without times, cuDNN first; where it has no plan, who makes better use of arithmetic or of memory.
        let usual = match case.is_dense() {
            true => [Engine::Cudnn, Engine::Fa4, Engine::Kernels],
            false => [Engine::Cudnn, Engine::Kernels, Engine::Fa4],
        };
        let mut never = Vec::new();
        let mut taken = Vec::new();
        for engine in usual {
            match refuses(engine, attention, sm) {
                None => match unproven(engine, attention) {
                    None => taken.push(engine),
                    Some(why) => never.push(Passed { engine, because: Because::Unproven(why) }),
                },
                Some(refusal) => never.push(Passed { engine, because: Because::Refuses(refusal) }),
            }
        }
        if taken.len() == 1 {
            return Candidates { engines: taken, why: Why::Alone, never };
        }
        let Some((row, distance)) = Table::built_in().nearest(&case, &taken) else {
            return Candidates { engines: taken, why: Why::Unmeasured, never };
        };
        let mut engines = row.order(&taken, distance);
        engines.extend(taken.iter().filter(|engine| row.times.of(**engine).is_none()));
        let why = match row.times.ratio(engines[0], &taken) {
            Some((ratio, beside)) => Why::Measured { ratio, beside, distance },
            None => Why::Unmeasured,
        };
        Candidates { engines, why, never }
    }

    /// The choice of one of the candidates, after others that have no plan.
    #[must_use]
    pub fn choice(&self, engine: Engine, before: &[Passed]) -> EngineChoice {
        let why = if before.is_empty() { self.why.clone() } else { Why::OthersHaveNone };
        let refused =
            before.iter().any(|passed| passed.engine == Engine::Cudnn && matches!(passed.because, Because::Refuses(_)));
        let mut passed: Vec<Passed> = before.iter().chain(&self.never).cloned().collect();
        for Passed { engine, because } in passed.iter_mut().filter(|_| refused) {
            if let (Engine::Kernels | Engine::Fa4, Because::Refuses(refusal)) = (*engine, because) {
                *refusal = beside_cudnns(refusal);
            }
        }
        EngineChoice { engine, why, passed }
    }
}

impl EngineChoice {
    /// The first of the [`Candidates`]. Whether cuDNN takes the attention is not asked: where it refuses what is chosen
    /// for it, the next candidate takes its place.
    #[must_use]
    pub fn of(attention: &Valid, sm: u32, policy: EnginePolicy) -> EngineChoice {
        let candidates = Candidates::of(attention, sm, policy);
        candidates.choice(candidates.engines[0], &[])
    }

    /// The choice by rules, where cuDNN is not asked: these are the reasons why it does not take the attention, and the
    /// first other candidate takes its place; `None` if there is none, or the named one does not take it either. What
    /// exceeds the memory for operands (`memory.budget`) exceeds it with every engine.
    #[must_use]
    pub fn by_rules(attention: &Valid, sm: u32, policy: EnginePolicy, reasons: &[Reason]) -> Option<EngineChoice> {
        let candidates = Candidates::of(attention, sm, policy);
        let first = candidates.engines[0];
        if reasons.iter().any(|reason| reason.code == codes::MEMORY_BUDGET) || refuses(first, attention, sm).is_some() {
            return None;
        }
        let Some(refusal) = Refusal::of(reasons.to_vec()).filter(|_| first == Engine::Cudnn) else {
            return Some(candidates.choice(first, &[]));
        };
        let next = *candidates.engines.get(1)?;
        Some(candidates.choice(next, &[Passed { engine: first, because: Because::Refuses(refusal) }]))
    }

    /// The choice, as an explanation has it.
    #[must_use]
    pub fn explained(&self) -> Chosen {
        let passed = |passed: &Passed| NotChosen { engine: passed.engine.name().to_owned(), why: passed.to_string() };
        let EngineChoice { engine, why: _, passed: list } = self;
        let passed = list.iter().map(passed).collect();
        Chosen { engine: engine.name().to_owned(), why: self.to_string(), passed }
    }

    /// The engine that the caller names.
    #[must_use]
    pub const fn named(engine: Engine) -> EngineChoice {
        EngineChoice { engine, why: Why::Named, passed: Vec::new() }
    }

    /// Why cuDNN has no plan, if another engine took its place.
    #[must_use]
    pub fn cudnn_refuses(&self) -> Option<&Refusal> {
        self.passed.iter().find_map(|Passed { engine, because }| match because {
            Because::Refuses(refusal) if *engine == Engine::Cudnn => Some(refusal),
            Because::Refuses(_) | Because::Unproven(_) | Because::Missing(_) => None,
        })
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = self.engine.title();
        match &self.why {
            Why::Named => write!(f, "{one}, as the options say")?,
            Why::Measured { ratio, beside, distance } => {
                let of = beside.title();
                write!(f, "{one}: {ratio:.2} of the time of {of}, measured {distance:.1} doublings away")?;
            }
            Why::Timed { ratio, beside } => {
                write!(f, "{one}: {ratio:.2} of the time of {}, measured by `warm --autotune`", beside.title())?;
            }
            Why::Unmeasured => write!(f, "{one}: no time was measured near it")?,
            Why::Alone => write!(f, "{one}: no other engine takes it")?,
            Why::OthersHaveNone => write!(f, "{one} instead")?,
        }
        self.passed.iter().try_for_each(|passed| write!(f, "\n  {passed}"))
    }
}

impl fmt::Display for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = self.engine.title();
        match &self.because {
            Because::Refuses(refusal) => write!(f, "not {one}, refused: {refusal}"),
            Because::Unproven(why) => write!(f, "not {one} unless it is named: {why}"),
            Because::Missing(why) => write!(f, "not {one}, no plan: {why}"),
        }
    }
}
