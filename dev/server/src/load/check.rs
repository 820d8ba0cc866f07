//! Whether answers are right: each of their tokens must be the likeliest of its prompt alone.
//!
//! A sum of bfloat16 products depends on the sizes of the batch, so of two tokens that are nearly as likely either may
//! be chosen. A token is right if its logit, computed for the prompt alone, is within [`BOUND`] of the largest. Logits
//! have a standard deviation of about 1 and the largest is about 4, so a token of another request is far off; the
//! scores of answers under other prompts are recorded to show it.

use serde_json::{Value, json};

use super::client::LoadClient;
use super::users::Answered;
use crate::ServerError;

/// The largest gap of a right token.
pub(super) const BOUND: f64 = 0.25;

/// So many answers at even distances, or all.
pub(super) fn spread(told: &[Answered], most: usize) -> impl Iterator<Item = &Answered> {
    let count = most.min(told.len());
    (0..count).map(move |at| &told[at * told.len() / count])
}

/// The scores of some answers.
#[derive(Debug, Default)]
pub(super) struct AnswerCheck {
    answers: usize,
    tokens: usize,
    /// Tokens that are the likeliest.
    exact: usize,
    largest: f64,
    wrong: usize,
    /// Tokens of answers under the prompts of others, and those of them that are far off.
    others: (usize, usize),
}

impl AnswerCheck {
    /// Scores up to `most` answers, spread evenly, one at a time.
    pub(super) fn new(client: &LoadClient, told: &[Answered], most: usize) -> Result<AnswerCheck, ServerError> {
        let mut checked = AnswerCheck::default();
        for Answered { prompt, answer, .. } in spread(told, most) {
            let gaps = client.score(prompt, answer)?;
            checked.answers += 1;
            checked.tokens += gaps.len();
            checked.exact += gaps.iter().filter(|gap| **gap == 0.0).count();
            checked.largest = gaps.iter().copied().fold(checked.largest, f64::max);
            checked.wrong +=
                usize::from(gaps.len() != answer.len() || gaps.iter().any(|gap| gap.is_nan() || *gap > BOUND));
        }
        for (other, Answered { answer, .. }) in told.iter().zip(told.iter().skip(1)).take(8) {
            let gaps = client.score(&other.prompt, answer)?;
            checked.others.0 += gaps.len();
            checked.others.1 += gaps.iter().filter(|gap| **gap > BOUND).count();
        }
        Ok(checked)
    }

    /// What is wrong with the answers, and with the check itself.
    pub(super) fn problems(&self, what: &str) -> Vec<String> {
        let mut problems = Vec::new();
        if self.answers == 0 {
            problems.push(format!("{what}: no answer to check"));
        }
        if self.wrong > 0 {
            problems.push(format!("{what}: {} of {} answers are wrong", self.wrong, self.answers));
        }
        if self.others.1 * 2 < self.others.0 {
            problems.push(format!("{what}: the check does not tell answers of other prompts apart: {:?}", self.others));
        }
        problems
    }

    pub(super) fn record(&self) -> Value {
        json!({
            "answers": self.answers, "tokens": self.tokens, "likeliest": self.exact, "largest_gap": self.largest,
            "bound": BOUND, "wrong": self.wrong, "other_prompts": { "tokens": self.others.0, "far": self.others.1 },
        })
    }
}
