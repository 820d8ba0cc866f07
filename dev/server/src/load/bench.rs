//! Throughput and times of a server for some numbers of users, the same beside a peer, and scores of the answers.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::check::{AnswerCheck, spread};
use super::peer::{self, PeerTask};
use super::process::ServerProcess;
use super::users::{Answered, RequestSizes, UsersSeen, run as users_run};
use super::{LoadOptions, say};
use crate::ServerError;

/// Users who only make answers to score, where the measurements gave too few.
const MORE_USERS: usize = 256;

/// Requests of a measurement.
fn sizes(common: &LoadOptions) -> Result<RequestSizes, ServerError> {
    let vocab = common.shape()?.vocab;
    Ok(match common.cpu {
        true => RequestSizes { prompt: (8, 64), answer: (8, 16), vocab },
        false => RequestSizes { prompt: (64, 1024), answer: (64, 192), vocab },
    })
}

pub(super) fn run(
    common: &LoadOptions,
    users: &[usize],
    (seconds, scored): (f64, usize),
    peer: Option<(&Path, usize)>,
    no_graphs: bool,
) -> Result<Value, ServerError> {
    let sizes = sizes(common)?;
    let times = (Duration::from_secs_f64(seconds / 3.0), Duration::from_secs_f64(seconds));
    let server = ServerProcess::start(common, &[])?;
    let mut record = common.record(&server)?;
    record["prompt_tokens"] = json!(sizes.prompt);
    record["answer_tokens"] = json!(sizes.answer);
    let (mut rows, mut wrong): (Vec<Value>, Vec<String>) = (Vec::new(), Vec::new());
    let mut answers: Vec<Answered> = Vec::new();
    let mut measure = |name: &str, server: &ServerProcess, answers: &mut Vec<Answered>| -> Result<(), ServerError> {
        for &users in users {
            let row = measured(common, (name, users), server, (sizes, times), answers)?;
            say(&row.0.to_string());
            rows.push(row.0);
            wrong.extend(row.1);
        }
        Ok(())
    };
    measure("qkvault", &server, &mut answers)?;
    if no_graphs {
        let other = ServerProcess::start(common, &["--no-graphs"])?;
        measure("qkvault, no graphs", &other, &mut answers)?;
        other.stop()?;
    }
    while answers.len() < scored {
        // Other prompts each time.
        let seed = common.seed.wrapping_add(1000 + answers.len() as u32);
        answers.extend(users_run(&server.base, (MORE_USERS.min(scored), seed), sizes, times)?.answers);
    }
    (record["rows"], record["wrong"]) = (json!(rows), json!(wrong));
    common.save(&record)?;
    server.settle()?;
    let checked = AnswerCheck::new(&server.client, &answers, scored)?;
    wrong.extend(checked.problems("answers of qkvault, each for its prompt alone"));
    record["scored"] = checked.record();
    say(&format!("scored: {}", record["scored"]));
    common.save(&record)?;
    if let Some((program, count)) = peer {
        let few: Vec<&Answered> = spread(&answers, count).collect();
        let task = PeerTask { sizes, users, seconds, answers: &few };
        match peer::run(common, program, &task) {
            Ok(said) => {
                let theirs = AnswerCheck::new(&server.client, &said.answers, count)?;
                wrong.extend(theirs.problems("answers of the peer, scored by qkvault"));
                wrong.extend(said.problems);
                rows.extend(said.rows);
                record["peer"] = said.about;
                record["peer"]["answers_scored_by_qkvault"] = theirs.record();
            }
            // What was measured before is worth its record.
            Err(error) => wrong.push(format!("no peer: {error}")),
        }
    }
    let page = server.settle()?;
    record["qkvault"] = json!({
        "plans": page.count("plans"), "graphs": page.count("graphs"), "plan_builds": page.count("plan_builds_total"),
        "device_bytes": page.count("device_bytes"),
    });
    server.stop()?;
    (record["rows"], record["wrong"]) = (json!(rows), json!(wrong));
    Ok(record)
}

/// A row of the record, and what is wrong with it. Whole answers are added to `answers`.
fn measured(
    common: &LoadOptions,
    (name, users): (&str, usize),
    server: &ServerProcess,
    (sizes, times): (RequestSizes, (Duration, Duration)),
    answers: &mut Vec<Answered>,
) -> Result<(Value, Vec<String>), ServerError> {
    let before = server.metrics()?;
    // Other prompts for each number of users; a peer makes the same.
    let seen = users_run(&server.base, (users, common.seed.wrapping_add(users as u32)), sizes, times)?;
    let page = server.settle()?;
    let more = |metric| page.count(metric) - before.count(metric);
    let of_step = |metric| rounded(more(metric) as f64 / 1e3 / more("steps_total").max(1) as f64);
    let row = json!({
        "server": name, "users": users, "tokens_per_s": (seen.tokens as f64 / seen.seconds).round(),
        "first_token_ms": { "median": rounded(seen.first(0.5)), "p99": rounded(seen.first(0.99)) },
        "requests": seen.first_ms.len(), "steps": more("steps_total"), "decode_steps": more("decode_steps_total"),
        "replays": more("graph_replays_total"), "preempted": more("preemptions_total"), "refused": seen.refused,
        "ms_of_a_step": of_step("step_us_total"), "ms_in_the_model": of_step("model_us_total"),
    });
    let wrong = faults(
        &format!("{name}, {users} users"),
        &seen,
        [
            ("plans were built while the server served", page.count("plan_builds_total")),
            ("pages are not free at rest", page.count("pages_used")),
        ],
    );
    answers.extend(seen.answers);
    Ok((row, wrong))
}

pub(super) fn rounded(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

/// What is wrong: counts that must be 0, and a measurement without tokens.
pub(super) fn faults(what: &str, seen: &UsersSeen, counts: [(&str, u64); 2]) -> Vec<String> {
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    let mut faults: Vec<String> = counts.map(|(why, count)| format!("{what}: {count} {why}")).collect();
    if seen.tokens == 0 {
        faults.push(format!("{what}: no tokens"));
    }
    faults
}
