//! A self-test in processes of its own: a case that faults on the GPU leaves its process with a context in which every later launch
//! fails, and one that ends the process takes the rest along. Here it costs itself alone.

use std::ops::Range;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::judge::Verdict;
use super::tally::{Tally, status};
use super::verdicts::Said;
use super::{Args, Attentions, Stand, row};
use crate::workers::{CaseReport, Isolation, Worker, this_program};
use qkvault_cli::{Globals, Outcome, out};

/// What a worker says of a case.
#[derive(Serialize, Deserialize)]
struct Answer {
    status: String,
    why: String,
    worst: f64,
    /// What is kept of a case that is not right.
    row: Value,
    /// Plans that were compiled for it.
    builds: u64,
    /// What rules and library say, where that was asked.
    #[serde(default)]
    said: Option<Said>,
}

/// What is asked first of a worker that shall say where it runs.
pub(super) const PLACE: &str = "place";

/// What a worker does: judges the cases whose numbers it is given, until its input ends.
pub(super) fn serve(stand: &Stand<'_>, attentions: &Attentions<'_>) -> anyhow::Result<Outcome> {
    let mut built = 0;
    for line in std::io::stdin().lines() {
        let line = line?;
        if line == PLACE {
            out::record(&stand.place);
            continue;
        }
        let number: u64 = line.parse().with_context(|| format!("'{line}' is no number of a case"))?;
        let case = stand.prepare(attentions.attention(number), number);
        let verdict = stand.judge(&case);
        let row = if verdict.is_plain() { Value::Null } else { row(&case, &verdict) };
        let Verdict { status, why, worst, said } = verdict;
        let builds = stand.builds() - built;
        built += builds;
        out::record(&serde_json::to_value(Answer { status: status.to_owned(), why, worst, row, builds, said })?);
    }
    Ok(Outcome::Good)
}

/// Puts every case to workers.
pub(super) fn run(globals: &Globals, args: &Args, numbers: Range<u64>, each: u64) -> anyhow::Result<Outcome> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let isolation = Isolation {
        workers: args.workers.unwrap_or(cores).max(1),
        each: each.max(1),
        limit: Duration::from_secs(args.case_limit),
    };
    // Each process has its share of the cores for the oracle.
    let threads = (cores / isolation.workers).max(1).to_string();
    let start = || Worker::start(this_program(["--worker"])?.env("RAYON_NUM_THREADS", &threads));
    let place = start()?
        .ask(PLACE, isolation.limit)
        .context("the first worker does not start; without --isolate it says why")?;
    let mut tally = Tally::new(args, numbers.end - numbers.start, serde_json::from_str(&place)?);
    tally.isolated = Some(json!({ "workers": isolation.workers, "each": isolation.each }));
    isolation.ask(numbers, start, is_bad, |told| take(&mut tally, told))?;
    Ok(tally.finish(globals))
}

/// How a case ended, from the line that a worker answered.
pub(super) fn status_of(line: &str) -> &'static str {
    serde_json::from_str::<Answer>(line).map_or("failed", |answer| status(&answer.status))
}

fn is_bad(line: &str) -> bool {
    serde_json::from_str::<Answer>(line).map_or(true, |answer| answer.status == "failed")
}

fn take(tally: &mut Tally<'_>, told: CaseReport) {
    let CaseReport { number, answer, retry } = told;
    if let Some(retry) = retry {
        let first = serde_json::from_str::<Answer>(&retry.answer).map_or(retry.answer, |answer| answer.why);
        tally.repeated.push(json!({ "case": number, "why": first, "before": retry.before }));
    }
    let read =
        answer.and_then(|line| serde_json::from_str::<Answer>(&line).map_err(|error| format!("{error}: {line}")));
    match read {
        Ok(Answer { status: name, why, worst, row, builds, said }) => {
            tally.builds += builds;
            tally.take(&Verdict { status: status(&name), why, worst, said }, || row);
        }
        Err(why) => {
            let row = json!({ "case": number, "status": "failed", "why": why });
            tally.take(&Verdict::of("failed", why), || row);
        }
    }
}
