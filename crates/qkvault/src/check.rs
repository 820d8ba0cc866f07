//! One line that says whether a GPU runs an attention, by which engine and in what time, or why not.

use std::fmt;

use qkvault_compile::Engines;
use qkvault_compile::times::Expected;
use qkvault_cudnn::{CompileOptions, Target};
use qkvault_graph::{Attention, Valid};
use qkvault_probe::Explanation;

use crate::Error;
use crate::offline::{explain, rules_target};

/// Asks about an attention, without a GPU and without a library.
///
/// ```
/// use qkvault::prelude::*;
///
/// let attention = Attention::bshd(1, (32, 8), (4096, 4096), 128, DType::BF16).causal();
/// let answer = attention.check("h200");
/// println!("{answer}"); // the engine, the expected time and what bounds it; or reasons and the nearest change
/// assert!(answer.supported());
///
/// let odd = Attention::bshd(1, (8, 8), (512, 512), 100, DType::F16).check("h200");
/// assert!(!odd.supported() && odd.to_string().contains("head-dim.multiple-of-8"), "{odd}");
/// ```
pub trait Check {
    /// What a GPU of this name (`qkvault profile ls`), or the text of a profile, says of the attention under the newest
    /// cuDNN that the rules cover. A name that is not known is an answer too, with those that are.
    fn check(&self, gpu: &str) -> Checked;
}

/// The answer of [`Check::check`].
#[derive(Debug)]
#[must_use]
pub struct Checked {
    answer: Result<Explanation, Error>,
    expected: Option<Expected>,
}

impl Checked {
    /// Whether some engine takes the attention.
    #[must_use]
    pub fn supported(&self) -> bool {
        self.answer.as_ref().is_ok_and(|answer| answer.supported)
    }

    /// Everything that the rules say, as data; `None` where there is an [error](Checked::error).
    #[must_use]
    pub fn explanation(&self) -> Option<&Explanation> {
        self.answer.as_ref().ok()
    }

    /// Why the rules were not asked: the attention contradicts itself, or no GPU has the name.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.answer.as_ref().err()
    }

    /// What a launch is expected to take, for GPUs of which times were measured.
    #[must_use]
    pub fn expected(&self) -> Option<Expected> {
        self.expected
    }

    pub(crate) fn on(engines: &Engines, attention: &Valid, target: &Target, compile: CompileOptions) -> Checked {
        let answer = explain(engines, attention, target, compile);
        let chosen = |chosen: &str| engines.iter().map(|engine| engine.id()).find(|id| id.name().to_string() == chosen);
        let engine = answer.engine.as_ref().and_then(|of| chosen(&of.engine));
        let expected = engine.and_then(|engine| engines.expected(engine, attention, target.sm()));
        Checked { answer: Ok(answer), expected }
    }

    fn failed(error: impl Into<Error>) -> Checked {
        Checked { answer: Err(error.into()), expected: None }
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.answer, &self.expected) {
            (Ok(answer), Some(expected)) => write!(f, "{answer}\n  expected: {expected}"),
            (Ok(answer), None) => write!(f, "{answer}"),
            (Err(error), _) => write!(f, "refused: {error}"),
        }
    }
}

impl Check for Valid {
    fn check(&self, gpu: &str) -> Checked {
        match rules_target(gpu, None) {
            Ok(target) => Checked::on(&Engines::built_in(), self, &target, CompileOptions::default()),
            Err(error) => Checked::failed(error),
        }
    }
}

impl Check for Attention {
    fn check(&self, gpu: &str) -> Checked {
        match self.clone().validate() {
            Ok(valid) => valid.check(gpu),
            Err(refusal) => Checked::failed(refusal),
        }
    }
}
