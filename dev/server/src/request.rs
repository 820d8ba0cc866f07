//! A request, and what its client gets.

use serde::{Deserialize, Serialize};

use crate::config::{ModelShape, ServerLimits};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    /// 0 takes the token with the largest logit; more makes others likelier.
    pub temperature: f32,
    /// The seed of the noise: the same seed gives the same answer.
    pub seed: u32,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestKind {
    /// So many new tokens.
    Tokens(usize, Sampling),
    /// How far the logit of each of these tokens is below the largest, if they follow the prompt.
    Scores(Vec<u32>),
}

/// A request that was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerRequest {
    pub(crate) prompt: Vec<u32>,
    pub(crate) wanted: RequestKind,
}

/// Why a request is not served. The client gets the sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestRefused {
    /// The request is wrong: status 400.
    Wrong(String),
    /// The request is larger than the server takes: status 413.
    TooLong(String),
    /// The request did not come in time: status 408.
    Slow(String),
    /// There is no room now: status 503. It may be asked again later.
    Busy(String),
    /// The server failed: status 500.
    Failed(String),
}

/// What a client gets, in this order: tokens or scores, then the end.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The next token of the answer.
    Token(u32),
    /// Scores of some more tokens.
    Scores(Vec<f32>),
    /// The answer is complete.
    Done(Summary),
    /// The request is not served, or no further.
    Refused(RequestRefused),
}

/// Numbers of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub tokens: usize,
    /// How often the sequence lost its pages to an older one and was computed again.
    pub preempted: usize,
}

impl ServerRequest {
    /// Checks a request against the model and the limits.
    ///
    /// # Errors
    ///
    /// What is wrong, and what the server takes.
    pub fn new(
        prompt: Vec<u32>,
        wanted: RequestKind,
        shape: &ModelShape,
        limits: &ServerLimits,
    ) -> Result<ServerRequest, RequestRefused> {
        let (more, answer) = match &wanted {
            RequestKind::Tokens(count, sampling) => {
                if !(sampling.temperature >= 0.0 && sampling.temperature.is_finite()) {
                    let given = sampling.temperature;
                    return Err(RequestRefused::Wrong(format!("a temperature of {given}; it must be 0 or more")));
                }
                (*count, &[][..])
            }
            RequestKind::Scores(answer) => (answer.len(), &answer[..]),
        };
        if prompt.is_empty() || more == 0 {
            let (given, needed) = (prompt.len(), "one token of each or more");
            return Err(RequestRefused::Wrong(format!(
                "a prompt of {given} tokens with {more} to follow; {needed} is needed"
            )));
        }
        if let Some(token) = prompt.iter().chain(answer).find(|token| **token as usize >= shape.vocab) {
            let last = shape.vocab - 1;
            return Err(RequestRefused::Wrong(format!("token {token}; this model has the tokens 0 to {last}")));
        }
        let all = prompt.len().saturating_add(more);
        let most = limits.context.min(limits.pages * limits.page);
        if all > most {
            let given = prompt.len();
            return Err(RequestRefused::TooLong(format!(
                "a prompt of {given} tokens with {more} to follow needs a context of {all}; this server's is {most}"
            )));
        }
        Ok(ServerRequest { prompt, wanted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_request_is_said_with_what_the_server_takes() {
        let shape = ModelShape::named("tiny").expect("it is there");
        let new = |prompt: Vec<u32>, wanted| ServerRequest::new(prompt, wanted, &shape, &ServerLimits::SMALL);
        let tokens = |count| RequestKind::Tokens(count, Sampling::default());
        assert!(new(vec![1; 200], tokens(56)).is_ok());
        let Err(RequestRefused::TooLong(said)) = new(vec![1; 200], tokens(57)) else { panic!("it is too long") };
        assert!(said.contains("257") && said.contains("256"), "{said}");
        assert!(matches!(new(vec![1; 200], tokens(usize::MAX)), Err(RequestRefused::TooLong(_))));
        let Err(RequestRefused::Wrong(said)) = new(vec![1, 512], tokens(1)) else { panic!("there is no token 512") };
        assert!(said.contains("512") && said.contains("511"), "{said}");
        assert!(matches!(new(vec![], tokens(1)), Err(RequestRefused::Wrong(_))));
        assert!(matches!(new(vec![1], tokens(0)), Err(RequestRefused::Wrong(_))));
        assert!(matches!(new(vec![1], RequestKind::Scores(vec![3, 600])), Err(RequestRefused::Wrong(_))));
        let hot = Sampling { temperature: f32::NAN, seed: 0 };
        assert!(matches!(new(vec![1], RequestKind::Tokens(1, hot)), Err(RequestRefused::Wrong(_))));
    }
}
