//! Throughput and times of servers for some numbers of users.

use std::time::Duration;

use serde_json::{Value, json};

use super::check::Checked;
use super::process::Server;
use super::users::{Seen, Sizes, Told, run as users_run};
use super::{Common, say};
use crate::Failure;

/// Servers by name, with their options. The last one scores the answers of all.
const SERVERS: [(&str, &[&str]); 3] =
    [("qkvault", &[]), ("qkvault, no graphs", &["--no-graphs"]), ("plain", &["--attention", "plain"])];

/// Answers of each measurement that are checked.
const CHECKED: usize = 12;

/// How often a step is timed while the attention's share is measured, and how long.
const EVERY: u64 = 8;
const PROFILED: Duration = Duration::from_millis(1500);

pub(super) fn run(common: &Common, users: &[usize], seconds: f64) -> Result<Value, Failure> {
    let shape = common.shape()?;
    let sizes = match common.cpu {
        true => Sizes { prompt: (8, 64), answer: (8, 16), vocab: shape.vocab },
        false => Sizes { prompt: (64, 1024), answer: (64, 192), vocab: shape.vocab },
    };
    let (before, during) = (Duration::from_secs_f64(seconds / 3.0), Duration::from_secs_f64(seconds));
    let mut record = json!({
        "model": shape.name, "parameters": shape.parameters(), "prompt_tokens": sizes.prompt,
        "answer_tokens": sizes.answer, "rows": [], "wrong": [],
    });
    let (mut rows, mut wrong): (Vec<Value>, Vec<String>) = (Vec::new(), Vec::new());
    let mut told: Vec<Told> = Vec::new();
    let servers = if common.cpu { &SERVERS[..1] } else { &SERVERS[..] };
    for (name, more) in servers {
        let server = Server::start(common, more)?;
        for &users in users {
            let started = server.metrics()?;
            let mut profiled = None;
            let seen = users_run(&server.base, (users, common.seed), sizes, (before, during), || {
                let from = server.metrics()?;
                server.client.post("/profile", &json!({ "every": EVERY }))?;
                std::thread::sleep(if common.cpu { Duration::ZERO } else { PROFILED });
                server.client.post("/profile", &json!({ "every": 0 }))?;
                let to = server.metrics()?;
                let more = |metric| to.of(metric) - from.of(metric);
                let (all, attention) = (more("profiled_us_total"), more("profiled_attention_us_total"));
                let each = all as f64 / 1e3 / more("profiled_steps_total").max(1) as f64;
                profiled = (all > 0).then(|| (attention as f64 / all as f64, each));
                Ok(())
            })?;
            let page = server.settle()?;
            let more = |metric| page.of(metric) - started.of(metric);
            let row = json!({
                "server": name, "users": users, "tokens_per_s": (seen.tokens as f64 / seen.seconds).round(),
                "first_token_ms": { "median": round(seen.first(0.5)), "p99": round(seen.first(0.99)) },
                "requests": seen.first_ms.len(), "attention_share": profiled.map(|(share, _)| (share * 1e3).round() / 1e3),
                "gpu_ms_of_a_step": profiled.map(|(_, each)| round(each)),
                "steps": more("steps_total"), "decode_steps": more("decode_steps_total"),
                "replays": more("graph_replays_total"), "preempted": more("preemptions_total"), "refused": seen.refused,
                "ms_of_a_step": round(more("step_us_total") as f64 / 1e3 / more("steps_total").max(1) as f64),
                "ms_in_the_model": round(more("model_us_total") as f64 / 1e3 / more("steps_total").max(1) as f64),
            });
            say(&format!("{row}"));
            wrong.extend(faults(name, users, &seen, page.of("plan_builds_total"), page.of("pages_used")));
            rows.push(row);
            let checked = Checked::of(&server.client, &seen.answers, CHECKED)?;
            wrong.extend(checked.problems(&format!("{name}, {users} users")));
            if let Some(row) = rows.last_mut() {
                row["checked"] = checked.record();
            }
            let step = seen.answers.len().div_ceil(CHECKED).max(1);
            told.extend(seen.answers.into_iter().step_by(step));
            (record["rows"], record["wrong"]) = (json!(rows), json!(wrong));
            common.save(&record)?;
        }
        if *name == "plain" {
            let checked = Checked::of(&server.client, &told, told.len())?;
            wrong.extend(checked.problems("answers of every server, scored with plain attention"));
            record["scored_with_plain_attention"] = checked.record();
        }
        let page = server.settle()?;
        record[name.replace(", ", "_").replace(' ', "_")] = json!({
            "said": server.said, "plans": page.of("plans"), "graphs": page.of("graphs"),
            "plan_builds": page.of("plan_builds_total"), "device_bytes": page.of("device_bytes"),
        });
        server.stop()?;
    }
    record["wrong"] = json!(wrong);
    Ok(record)
}

fn round(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

fn faults(name: &str, users: usize, seen: &Seen, builds: u64, pages: u64) -> Vec<String> {
    let mut faults = Vec::new();
    if builds > 0 {
        faults.push(format!("{name}, {users} users: {builds} plans were built while the server served"));
    }
    if pages > 0 {
        faults.push(format!("{name}, {users} users: {pages} pages are not free at rest"));
    }
    if seen.tokens == 0 {
        faults.push(format!("{name}, {users} users: no tokens"));
    }
    faults
}
