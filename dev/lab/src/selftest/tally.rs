//! The record of a self-test: counts, and the cases that were not right, printed and saved during the run.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use super::{CaseVerdict, SelftestArgs, judged};
use qkvault_cli::{Globals, Outcome, out};

/// The record of a run: the machine, counts, and the cases that were not right.
pub(super) struct Tally<'a> {
    args: &'a SelftestArgs,
    cases: u64,
    place: Value,
    counts: [u64; 4],
    /// The same of each family of data.
    families: BTreeMap<&'static str, [u64; 4]>,
    /// The numbers of right cases, with `--judged`.
    right: Vec<u64>,
    worst: f64,
    of_roundings: f64,
    /// How often each largest magnitude of probabilities was found, with `--fp8`.
    amax_s: BTreeMap<String, u64>,
    rows: Vec<Value>,
    /// Plans that were compiled.
    pub(super) builds: u64,
    /// The isolation of the cases, if any.
    pub(super) isolated: Option<Value>,
    /// Cases that failed after others and were repeated in a new process.
    pub(super) repeated: Vec<Value>,
    started: Instant,
    printed: Instant,
}

const STATUSES: [&str; 4] = ["right", "refused", "wrong", "failed"];

/// The status of a name; an unknown name counts as failed.
pub(super) fn status(name: &str) -> &'static str {
    STATUSES.into_iter().find(|status| *status == name).unwrap_or("failed")
}

impl Tally<'_> {
    /// An empty record of `cases` cases; `place` describes the machine.
    pub(super) fn new(args: &SelftestArgs, cases: u64, place: Value) -> Tally<'_> {
        let (started, printed) = (Instant::now(), Instant::now());
        let (rows, repeated) = (Vec::new(), Vec::new());
        Tally {
            args,
            cases,
            place,
            counts: [0; 4],
            families: BTreeMap::new(),
            right: Vec::new(),
            worst: 0.0,
            of_roundings: 0.0,
            amax_s: BTreeMap::new(),
            rows,
            builds: 0,
            isolated: None,
            repeated,
            started,
            printed,
        }
    }

    /// Counts what a case's Amax_S is the largest of.
    pub(super) fn note(&mut self, note: Option<&str>) {
        if let Some(note) = note {
            *self.amax_s.entry(note.to_owned()).or_default() += 1;
        }
    }

    /// Counts a case, and prints it if it is wrong or failed.
    pub(super) fn take(&mut self, verdict: &CaseVerdict, number: u64, row: impl FnOnce() -> Value) {
        let at = STATUSES.iter().position(|s| *s == verdict.status).unwrap_or(3);
        self.counts[at] += 1;
        self.families.entry(self.args.family(number).name()).or_default()[at] += 1;
        self.note(verdict.note);
        if verdict.status == "right" {
            if self.args.judged.is_some() {
                self.right.push(number);
            }
            self.worst = self.worst.max(verdict.worst);
            self.of_roundings = self.of_roundings.max(verdict.of_roundings);
        }
        if verdict.status != "right" {
            let row = row();
            if verdict.status != "refused" {
                out::note(&row.to_string());
            }
            self.rows.push(row);
        }
        if self.printed.elapsed().as_secs() >= 3 {
            self.printed = Instant::now();
            out::note(&format!("{} of {}: {}", self.counts.iter().sum::<u64>(), self.cases, self.words()));
            self.save();
        }
    }

    fn words(&self) -> String {
        STATUSES.iter().zip(self.counts).map(|(s, n)| format!("{n} {s}")).collect::<Vec<_>>().join(", ")
    }

    fn record(&self) -> Value {
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
            ("worst_of_roundings", json!(self.of_roundings)),
            ("builds", json!(self.builds)),
            ("seconds", json!(self.started.elapsed().as_secs_f64())),
            ("not_right", json!(self.rows)),
            ("isolated", json!(self.isolated)),
            ("repeated_alone", json!(self.repeated)),
        ] {
            record[key] = value;
        }
        let counted = |counts: &[u64; 4]| json!(STATUSES.iter().zip(counts).collect::<BTreeMap<_, _>>());
        record["families"] = self.families.iter().map(|(name, counts)| ((*name).to_owned(), counted(counts))).collect();
        if self.args.fp8 {
            record["amax_s"] = json!(self.amax_s);
            record["about"] = json!(self.args.about);
        }
        record
    }

    /// Writes the record so far, with `--record`, so that a stopped run keeps its results.
    fn save(&self) {
        if let Some(path) = &self.args.record
            && let Err(error) = std::fs::write(path, format!("{:#}\n", self.record()))
        {
            out::problem(&format!("{} could not be written: {error}", path.display()));
        }
    }

    /// Prints the result.
    pub(super) fn finish(mut self, globals: &Globals) -> Outcome {
        self.rows.sort_by_key(|row| row["case"].as_u64());
        self.save();
        let all_right = self.counts[2] + self.counts[3] == 0;
        if let Some(file) = self.args.judged.as_deref().filter(|_| all_right)
            && let Err(error) =
                judged::add(self.args, file, self.place["device"].as_str().unwrap_or_default(), &self.right)
        {
            out::problem(&format!("{} could not be written: {error:#}", file.display()));
        }
        if globals.json {
            out::json(&self.record());
        } else {
            for row in self.rows.iter().filter(|r| r["status"] != "refused") {
                out::lines(&format!("case {} {}: {}\n  {}", row["case"], row["status"], row["attention"], row["why"]));
            }
            for row in &self.repeated {
                out::line(&format!(
                    "case {} failed in a process that had run other cases: {}",
                    row["case"], row["why"]
                ));
            }
            out::line(&format!("{}; seed {}", self.words(), self.args.seed));
        }
        if all_right { Outcome::Good } else { Outcome::Bad }
    }
}
