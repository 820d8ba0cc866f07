//! Straight-line functions of numbers in registers, as data: what the compiler's child process is given of expressions.
//!
//! A function is a list of steps, each of which may use the values of those before it; the last one is its value. The
//! child looks each word up in a closed list (`compiler.py`), so nothing of a request is ever run as a program.

use serde::Serialize;

/// A straight-line function. The value of its last step is its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Function(Vec<CodeStep>);

/// The value of a step, by its place.
pub(crate) type StepId = usize;

/// One step of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CodeStep {
    /// What the kernel gives at a point: the score, the upstream gradient, an index or a length.
    Point(&'static str),
    /// A number of the launch.
    Number(usize),
    /// A constant in f32, by its bits: text has no infinities.
    Real(u32),
    /// A whole constant.
    Whole(i64),
    /// A truth.
    Truth(bool),
    /// A word of `words.py`, or an operator, of earlier values.
    Word(&'static str, Vec<StepId>),
    /// A whole quotient by a constant, rounded down.
    Quotient(StepId, i64),
    /// An element of a tensor.
    Element {
        /// The number of the launch that is its address.
        address: usize,
        /// Element type.
        dtype: &'static str,
        /// For each dim: its index, and the numbers of the launch that are the last index and the step.
        dims: Vec<(StepId, Option<usize>, Option<usize>)>,
    },
}

impl Function {
    /// Adds a step; its place.
    pub(crate) fn push(&mut self, step: CodeStep) -> StepId {
        self.0.push(step);
        self.0.len() - 1
    }

    /// Adds a word of earlier values.
    pub(crate) fn word(&mut self, word: &'static str, of: impl Into<Vec<StepId>>) -> StepId {
        self.push(CodeStep::Word(word, of.into()))
    }

    /// Adds what the kernel gives at a point.
    pub(crate) fn point(&mut self, name: &'static str) -> StepId {
        self.push(CodeStep::Point(name))
    }

    /// The steps.
    #[cfg(test)]
    pub(crate) fn steps(&self) -> &[CodeStep] {
        &self.0
    }
}
