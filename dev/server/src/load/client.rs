//! One user's requests over HTTP.

use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ServerError;
use crate::request::Summary;

/// How long a client waits for anything.
const PATIENCE: Duration = Duration::from_secs(90);

/// A connection to a server.
pub(super) struct LoadClient {
    agent: ureq::Agent,
    base: String,
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadAnswer {
    pub(super) status: u16,
    pub(super) tokens: Vec<u32>,
    /// Time to the first token.
    pub(super) first: Duration,
    /// What the end of the stream said.
    pub(super) done: Option<Summary>,
}

impl LoadClient {
    pub(super) fn new(base: &str) -> LoadClient {
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
        LoadClient { agent: config.build().new_agent(), base: base.to_owned() }
    }

    /// Asks for tokens, and calls `each` at every one.
    pub(super) fn stream(
        &self,
        (prompt, max_new): (&[u32], usize),
        mut each: impl FnMut(),
    ) -> Result<LoadAnswer, ServerError> {
        let body = json!({ "prompt": prompt, "max_new": max_new, "stream": true }).to_string();
        let asked = Instant::now();
        let response =
            self.agent.post(format!("{}/generate", self.base)).content_type("application/json").send(&body)?;
        let mut answer = LoadAnswer { status: response.status().as_u16(), ..LoadAnswer::default() };
        if answer.status != 200 {
            // Read to its end, so that the connection can be used again.
            response.into_body().read_to_string()?;
            return Ok(answer);
        }
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line?;
            let Some(event) = line.strip_prefix("data: ") else { continue };
            let event: Value = serde_json::from_str(event)?;
            if let Some(token) = event["token"].as_u64() {
                if answer.tokens.is_empty() {
                    answer.first = asked.elapsed();
                }
                answer.tokens.push(u32::try_from(token)?);
                each();
            } else if event["done"].is_object() {
                answer.done = Some(serde_json::from_value(event["done"].clone())?);
            } else {
                return Err(format!("the stream has {event}").into());
            }
        }
        Ok(answer)
    }

    /// How far each token of an answer is below the likeliest.
    pub(super) fn score(&self, prompt: &[u32], answer: &[u32]) -> Result<Vec<f64>, ServerError> {
        let body = json!({ "prompt": prompt, "answer": answer });
        let url = format!("{}/score", self.base);
        let response = self.agent.post(&url).content_type("application/json").send(body.to_string())?;
        let status = response.status().as_u16();
        let text = response.into_body().read_to_string()?;
        if status != 200 {
            return Err(format!("{url}: {status}: {text}").into());
        }
        let reply: Value = serde_json::from_str(&text)?;
        let gaps = reply["gaps"].as_array().ok_or_else(|| format!("no scores in {text}"))?;
        Ok(gaps.iter().map(|gap| gap.as_f64().unwrap_or(f64::INFINITY)).collect())
    }

    pub(super) fn get(&self, path: &str) -> Result<String, ServerError> {
        Ok(self.agent.get(format!("{}{path}", self.base)).call()?.into_body().read_to_string()?)
    }
}
