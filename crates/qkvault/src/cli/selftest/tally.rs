//! What a self-test comes to: counts, and what was not right, told and kept as it goes.

use std::time::Instant;

use serde_json::{Value, json};

use super::{Args, Case, Verdict, row};
use crate::cli::{Globals, Outcome, out};

/// What is told of a run: where it was, what it counts, and what was not right.
pub(super) struct Tally<'a> {
    args: &'a Args,
    cases: u64,
    place: Value,
    counts: [u64; 4],
    worst: f64,
    rows: Vec<Value>,
    started: Instant,
    told: Instant,
}

const STATUSES: [&str; 4] = ["right", "refused", "wrong", "failed"];

impl Tally<'_> {
    /// Nothing counted yet, of so many cases; `place` says what they run on.
    pub(super) fn new(args: &Args, cases: u64, place: Value) -> Tally<'_> {
        let (started, told) = (Instant::now(), Instant::now());
        Tally { args, cases, place, counts: [0; 4], worst: 0.0, rows: Vec::new(), started, told }
    }

    /// Counts a case, and tells it at once where it is wrong.
    pub(super) fn take(&mut self, case: &Case, verdict: &Verdict) {
        let at = STATUSES.iter().position(|s| *s == verdict.status).unwrap_or(3);
        self.counts[at] += 1;
        if verdict.status == "right" {
            self.worst = self.worst.max(verdict.worst);
        } else {
            let row = row(case, verdict);
            if verdict.status != "refused" {
                out::note(&row.to_string());
            }
            self.rows.push(row);
        }
        if self.told.elapsed().as_secs() >= 3 {
            self.told = Instant::now();
            out::note(&format!("{} of {}: {}", self.counts.iter().sum::<u64>(), self.cases, self.words()));
            self.save(None);
        }
    }

    fn words(&self) -> String {
        STATUSES.iter().zip(self.counts).map(|(s, n)| format!("{n} {s}")).collect::<Vec<_>>().join(", ")
    }

    fn record(&self, builds: Option<u64>) -> Value {
        let [right, refused, wrong, failed] = self.counts;
        let mut record = self.place.clone();
        for (key, value) in [
            ("seed", json!(self.args.seed)),
            ("first", json!(self.args.first)),
            ("cases", json!(self.cases)),
            ("serving", json!(self.args.serving)),
            ("tails", json!(self.args.tails)),
            ("right", json!(right)),
            ("refused", json!(refused)),
            ("wrong", json!(wrong)),
            ("failed", json!(failed)),
            ("worst_relative_error", json!(self.worst)),
            ("builds", json!(builds)),
            ("seconds", json!(self.started.elapsed().as_secs_f64())),
            ("not_right", json!(self.rows)),
        ] {
            record[key] = value;
        }
        record
    }

    /// Writes what there is so far, where it was asked for: a run that is stopped has not been for nothing.
    fn save(&self, builds: Option<u64>) {
        if let Some(path) = &self.args.record
            && let Err(error) = std::fs::write(path, format!("{:#}\n", self.record(builds)))
        {
            out::problem(&format!("{} could not be written: {error}", path.display()));
        }
    }

    /// Tells all of it.
    pub(super) fn finish(mut self, globals: &Globals, builds: Option<u64>) -> Outcome {
        self.rows.sort_by_key(|row| row["case"].as_u64());
        self.save(builds);
        if globals.json {
            out::json(&self.record(builds));
        } else {
            for row in self.rows.iter().filter(|r| r["status"] != "refused") {
                out::line(&format!("case {} {}: {}\n  {}", row["case"], row["status"], row["attention"], row["why"]));
            }
            out::line(&format!("{}; seed {}", self.words(), self.args.seed));
        }
        if self.counts[2] + self.counts[3] == 0 { Outcome::Good } else { Outcome::Bad }
    }
}
