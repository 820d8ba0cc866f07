//! Whether the GPU computes the model: answers of each server, scored by the others.

use serde_json::{Value, json};

use super::check::Checked;
use super::process::Server;
use super::users::{Random, Told};
use super::{Common, say};
use crate::Failure;

/// Servers by name, with their options.
const SERVERS: [(&str, &[&str]); 4] = [
    ("cpu", &["--cpu"]),
    ("qkvault", &[]),
    ("qkvault, no graphs", &["--no-graphs"]),
    ("plain", &["--attention", "plain"]),
];

pub(super) fn run(common: &Common) -> Result<Value, Failure> {
    let vocab = common.shape()?.vocab;
    let mut random = Random::new(common.seed, 0);
    // One token, chunks of several sizes, and answers over a page's end.
    let asked: Vec<(Vec<u32>, usize)> = [(1, 40), (5, 30), (31, 40), (63, 20), (64, 20), (100, 30), (180, 20)]
        .map(|(length, count)| (random.prompt(length, vocab), count))
        .to_vec();
    let servers = SERVERS.iter().filter(|(name, _)| !common.cpu || *name == "cpu");
    let (mut rows, mut wrong, mut first): (_, _, Option<Vec<Told>>) = (Vec::new(), Vec::new(), None);
    for (name, more) in servers {
        // The CPU computes the tiny model alone.
        if *name == "cpu" && common.model != "tiny" {
            continue;
        }
        let limits: &[&str] = match common.cpu || *name == "cpu" {
            true => &["--context", "256"],
            // Chunks shorter than the prompts, here too.
            false => &["--context", "256", "--chunk", "64", "--tokens", "320"],
        };
        let server = Server::start(common, &[more, limits].concat())?;
        let told = std::thread::scope(|scope| -> Result<Vec<Told>, Failure> {
            let answers: Vec<_> = asked
                .iter()
                .map(|(prompt, count)| {
                    let client = super::client::Client::new(&server.base);
                    scope.spawn(move || client.stream((prompt, *count), usize::MAX, || ()))
                })
                .collect();
            answers
                .into_iter()
                .zip(&asked)
                .map(|(answer, (prompt, _))| {
                    let answer = answer.join().map_err(|_| "a client panicked")??;
                    Ok((prompt.clone(), answer.tokens))
                })
                .collect()
        })?;
        let own = Checked::of(&server.client, &told, usize::MAX)?;
        wrong.extend(own.problems(name));
        let mut row = json!({ "server": name, "own": own.record(), "said": server.said });
        // The first server's answers are what all others are scored against.
        if let Some(first) = &first {
            let checked = Checked::of(&server.client, first, usize::MAX)?;
            wrong.extend(checked.problems(&format!("answers of the first server on {name}")));
            row["first_servers"] = checked.record();
            let same = first.iter().zip(&told).filter(|(a, b)| a == b).count();
            row["equal_answers"] = json!(same);
        }
        let page = server.settle()?;
        for metric in ["plans", "plan_builds_total", "graphs", "graph_replays_total", "steps_total", "pages_used"] {
            row[metric] = json!(page.of(metric));
        }
        if page.of("pages_used") > 0 || page.of("plan_builds_total") > 0 {
            wrong.push(format!("{name}: pages are left, or plans were built"));
        }
        server.stop()?;
        say(&format!("{row}"));
        rows.push(row);
        first.get_or_insert(told);
    }
    Ok(json!({ "model": common.model, "servers": rows, "wrong": wrong }))
}
