//! The engines of a choice are asked one after the other, until one has a plan.

use qkvault_graph::Refusal;

use crate::choice::{Because, Candidates, EngineChoice, Passed};
use crate::engine::Gap;

/// What an engine says to an attention. `R` is what its caller gets.
#[derive(Debug)]
pub(crate) enum Answer<R> {
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
pub(crate) fn ask_engines<R>(
    candidates: &Candidates,
    mut of: impl FnMut(&EngineChoice) -> Answer<R>,
) -> (R, Vec<Passed>) {
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
                Because::NoCompiler(why)
            }
        };
        passed.push(Passed { engine, because });
    }
    (missing.or(refused).or(unavailable).expect("there is at least one candidate"), passed)
}

impl<R> Answer<R> {
    /// The answer of an engine without a plan, by what it lacks.
    pub(crate) fn lacking(answer: R, gap: Option<Gap>, why: String) -> Answer<R> {
        match gap {
            Some(Gap::Plan) => Answer::Missing(answer, why),
            Some(Gap::Compiler) => Answer::Unavailable(answer, why),
            None => Answer::Failed(answer),
        }
    }
}
