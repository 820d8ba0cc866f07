//! One user's requests over HTTP.

use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Failure;

/// How long a client waits for anything.
const PATIENCE: Duration = Duration::from_secs(90);

/// A connection to a server.
pub(super) struct Client {
    agent: ureq::Agent,
    base: String,
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Whether a 503 said when to come again.
    pub(super) retry_after: bool,
    pub(super) tokens: Vec<u32>,
    /// Time to the first token.
    pub(super) first: Duration,
    /// Whether the stream came to its end.
    pub(super) done: bool,
}

impl Client {
    pub(super) fn new(base: &str) -> Client {
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
        Client { agent: config.build().new_agent(), base: base.to_owned() }
    }

    /// Asks for tokens, and goes away after `most` of them.
    pub(super) fn stream(
        &self,
        (prompt, max_new): (&[u32], usize),
        most: usize,
        mut each: impl FnMut(),
    ) -> Result<Answer, Failure> {
        let body = json!({ "prompt": prompt, "max_new": max_new, "stream": true }).to_string();
        let asked = Instant::now();
        let response =
            self.agent.post(format!("{}/generate", self.base)).content_type("application/json").send(&body)?;
        let retry_after = response.headers().contains_key("retry-after");
        let mut answer = Answer { status: response.status().as_u16(), retry_after, ..Answer::default() };
        if answer.status != 200 {
            // Read to its end, so that the connection can be used again.
            response.into_body().read_to_string()?;
            return Ok(answer);
        }
        let mut lines = BufReader::new(response.into_body().into_reader()).lines();
        while answer.tokens.len() < most {
            let Some(line) = lines.next() else { break };
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
                answer.done = true;
            } else {
                return Err(format!("the stream has {event}").into());
            }
        }
        Ok(answer)
    }

    /// How far each token of an answer is below the likeliest.
    pub(super) fn score(&self, prompt: &[u32], answer: &[u32]) -> Result<Vec<f64>, Failure> {
        let body = json!({ "prompt": prompt, "answer": answer });
        let text = self.post("/score", &body)?;
        let reply: Value = serde_json::from_str(&text)?;
        let gaps = reply["gaps"].as_array().ok_or_else(|| format!("no scores in {text}"))?;
        Ok(gaps.iter().map(|gap| gap.as_f64().unwrap_or(f64::INFINITY)).collect())
    }

    /// Posts JSON, and returns the text of a 200.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<String, Failure> {
        let url = format!("{}{path}", self.base);
        let response = self.agent.post(&url).content_type("application/json").send(body.to_string())?;
        let status = response.status();
        let text = response.into_body().read_to_string()?;
        if status.as_u16() == 200 { Ok(text) } else { Err(format!("{url}: {status}: {text}").into()) }
    }

    pub(super) fn get(&self, path: &str) -> Result<String, Failure> {
        Ok(self.agent.get(format!("{}{path}", self.base)).call()?.into_body().read_to_string()?)
    }
}
