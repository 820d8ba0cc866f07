//! Runs a self-test in worker processes. A case that faults on the GPU breaks its process's context for every later
//! launch, and a case may end its process; with workers such a case does not affect the others.

use std::ops::Range;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::judge::CaseVerdict;
use super::tally::{Tally, status};
use super::{Attentions, Runner, SelftestArgs, row};
use crate::workers::{CaseReport, Isolation, Worker, this_program};
use qkvault_cli::{Globals, Outcome, out};

/// A worker's answer for a case.
#[derive(Serialize, Deserialize)]
struct WorkerAnswer {
    status: String,
    why: String,
    worst: f64,
    of_roundings: f64,
    /// What the record counts.
    #[serde(default)]
    note: Option<String>,
    /// The row of a case that is not right.
    row: Value,
    /// Plans that were compiled for the case.
    builds: u64,
}

/// The question that a worker answers with a description of its machine.
const PLACE: &str = "place";

/// Runs a worker: judges the cases whose numbers standard input has, until it ends.
pub(super) fn serve(runner: &Runner<'_>, attentions: &Attentions<'_>) -> anyhow::Result<Outcome> {
    let mut built = 0;
    for line in std::io::stdin().lines() {
        let line = line?;
        if line == PLACE {
            out::record(&runner.place);
            continue;
        }
        let number: u64 = line.parse().with_context(|| format!("'{line}' is not the number of a case"))?;
        let case = runner.prepare(attentions.attention(number), number);
        let verdict = runner.judge(&case);
        let row = if verdict.status == "right" { Value::Null } else { row(attentions.args, &case, &verdict) };
        let CaseVerdict { status, why, worst, of_roundings, note } = verdict;
        let note = note.map(str::to_owned);
        let builds = runner.builds() - built;
        built += builds;
        out::record(&serde_json::to_value(WorkerAnswer {
            status: status.to_owned(),
            why,
            worst,
            of_roundings,
            note,
            row,
            builds,
        })?);
    }
    Ok(Outcome::Good)
}

/// Runs every case in a worker.
pub(super) fn run(globals: &Globals, args: &SelftestArgs, numbers: Range<u64>, each: u64) -> anyhow::Result<Outcome> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let isolation = Isolation {
        workers: args.workers.unwrap_or(cores).max(1),
        each: each.max(1),
        limit: Duration::from_secs(args.case_limit),
    };
    // The oracle of each process uses its share of the cores.
    let threads = (cores / isolation.workers).max(1).to_string();
    let start = || Worker::start(this_program(["--worker"])?.env("RAYON_NUM_THREADS", &threads));
    let place = start()?
        .ask(PLACE, isolation.limit)
        .context("the first worker does not start; run without --isolate to see why")?;
    let mut tally = Tally::new(args, numbers.end - numbers.start, serde_json::from_str(&place)?);
    tally.isolated = Some(json!({ "workers": isolation.workers, "each": isolation.each }));
    isolation.ask(numbers, start, is_bad, |report| take(&mut tally, report))?;
    Ok(tally.finish(globals))
}

fn is_bad(line: &str) -> bool {
    serde_json::from_str::<WorkerAnswer>(line).map_or(true, |answer| answer.status == "failed")
}

fn take(tally: &mut Tally<'_>, report: CaseReport) {
    let CaseReport { number, answer, retry } = report;
    if let Some(retry) = retry {
        let first = serde_json::from_str::<WorkerAnswer>(&retry.answer).map_or(retry.answer, |answer| answer.why);
        tally.repeated.push(json!({ "case": number, "why": first, "before": retry.before }));
    }
    let read =
        answer.and_then(|line| serde_json::from_str::<WorkerAnswer>(&line).map_err(|error| format!("{error}: {line}")));
    match read {
        Ok(WorkerAnswer { status: name, why, worst, of_roundings, note, row, builds }) => {
            tally.builds += builds;
            tally.note(note.as_deref());
            let verdict = CaseVerdict { status: status(&name), why, worst, of_roundings, note: None };
            tally.take(&verdict, number, || row);
        }
        Err(why) => {
            let row = json!({ "case": number, "status": "failed", "why": why });
            tally.take(&CaseVerdict::new("failed", why), number, || row);
        }
    }
}
