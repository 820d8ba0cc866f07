//! The record of a run under compute-sanitizer: counts for each kind of case and each tool, and every distinct fault
//! with its cases.

use std::collections::BTreeMap;
use std::time::Duration;

use qkvault_graph::{Attention, text};
use serde_json::{Value, json};

use super::Args;
use super::faults::Fault;
use super::sanitize::{Tool, ToolReport};
use qkvault_cli::{Globals, Outcome, out};

/// Cases that the record lists for one fault; it only counts the others.
const NAMED: usize = 12;

/// Counts of one kind of case.
#[derive(Default)]
struct Kind {
    cases: u64,
    errors: u64,
    ended: BTreeMap<&'static str, u64>,
}

/// One distinct fault over all cases.
#[derive(Default)]
struct Found {
    count: u64,
    cases: Vec<u64>,
    /// The first case, in the text form.
    first: String,
}

/// The record of a run.
pub(super) struct Sanitized<'a> {
    args: &'a Args,
    /// The number of cases.
    asked: u64,
    place: Value,
    kinds: BTreeMap<&'static str, Kind>,
    tools: BTreeMap<Tool, [u64; 2]>,
    faults: BTreeMap<(Tool, Fault), Found>,
    /// Cases without a report of a tool.
    silent: Vec<Value>,
    /// Cases that were wrong or failed.
    not_right: Vec<Value>,
    printed: Duration,
}

impl Sanitized<'_> {
    /// An empty record; `place` describes the machine.
    pub(super) fn new(args: &Args, asked: u64, place: Value) -> Sanitized<'_> {
        let (kinds, tools, faults) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Sanitized {
            args,
            asked,
            place,
            kinds,
            tools,
            faults,
            silent: vec![],
            not_right: vec![],
            printed: Duration::ZERO,
        }
    }

    /// Counts the report of one tool on one case.
    pub(super) fn take(&mut self, report: &ToolReport, attention: &Attention, serving: bool, elapsed: Duration) {
        let ToolReport { number, tool, status, faults } = report;
        let bad = faults.as_ref().map_or(true, |faults| !faults.is_empty());
        let [cases, errors] = self.tools.entry(*tool).or_default();
        *cases += 1;
        *errors += u64::from(bad);
        if *tool == Tool::Memcheck {
            let kind = self.kinds.entry(kind(attention, serving)).or_default();
            kind.cases += 1;
            kind.errors += u64::from(bad);
            *kind.ended.entry(status).or_default() += 1;
        }
        if matches!(*status, "wrong" | "failed") {
            self.not_right.push(json!({
                "case": number, "tool": tool.name(), "status": status, "text": text::print(attention),
            }));
        }
        match faults {
            Ok(faults) => faults.iter().for_each(|fault| self.fault(*tool, fault, *number, attention)),
            Err(why) => {
                out::note(&format!("case {number}: {why}"));
                self.silent.push(json!({ "case": number, "why": why, "text": text::print(attention) }));
            }
        }
        if elapsed.saturating_sub(self.printed).as_secs() >= 5 {
            self.printed = elapsed;
            out::note(&format!("{} of {}: {}", self.cases(), self.asked, self.words()));
            self.save(elapsed);
        }
    }

    fn fault(&mut self, tool: Tool, fault: &Fault, number: u64, attention: &Attention) {
        let found = self.faults.entry((tool, fault.clone())).or_default();
        if found.count == 0 {
            found.first = text::print(attention);
            out::note(&format!("case {number}: {}: {} in {} ({})", tool.name(), fault.what, fault.kernel, fault.place));
        }
        found.count += 1;
        if found.cases.len() < NAMED {
            found.cases.push(number);
        }
    }

    fn cases(&self) -> u64 {
        self.kinds.values().map(|kind| kind.cases).sum()
    }

    fn errors(&self) -> u64 {
        self.kinds.values().map(|kind| kind.errors).sum()
    }

    fn words(&self) -> String {
        let distinct = self.faults.keys().filter(|(tool, _)| *tool == Tool::Memcheck).count();
        let samples = self.tools.iter().filter(|(tool, _)| **tool != Tool::Memcheck);
        let samples: String =
            samples.map(|(tool, [cases, errors])| format!("; {} of {cases} under {}", errors, tool.name())).collect();
        format!("{} with errors ({distinct} distinct faults){samples}", self.errors())
    }

    fn record(&self, elapsed: Duration) -> Value {
        let mut record = self.place.clone();
        let kinds: BTreeMap<_, _> = self
            .kinds
            .iter()
            .map(|(name, Kind { cases, errors, ended })| {
                (*name, json!({ "cases": cases, "errors": errors, "ended": ended }))
            })
            .collect();
        let tools: BTreeMap<_, _> = self
            .tools
            .iter()
            .map(|(tool, [cases, errors])| (tool.name(), json!({ "cases": cases, "errors": errors })))
            .collect();
        let faults: Vec<_> = self
            .faults
            .iter()
            .map(|((tool, fault), Found { count, cases, first })| {
                json!({ "tool": tool.name(), "what": fault.what, "kernel": fault.kernel, "place": fault.place,
                "count": count, "cases": cases, "first": first })
            })
            .collect();
        for (key, value) in [
            ("seed", json!(self.args.seed)),
            ("first", json!(self.args.first)),
            ("cases", json!(self.cases())),
            ("errors", json!(self.errors())),
            ("kinds", json!(kinds)),
            ("tools", json!(tools)),
            ("faults", json!(faults)),
            ("silent", json!(self.silent)),
            ("not_right", json!(self.not_right)),
            ("seconds", json!(elapsed.as_secs_f64())),
        ] {
            record[key] = value;
        }
        record
    }

    /// Writes the record so far, with `--record`.
    fn save(&self, elapsed: Duration) {
        if let Some(path) = &self.args.record
            && let Err(error) = std::fs::write(path, format!("{:#}\n", self.record(elapsed)))
        {
            out::problem(&format!("{} could not be written: {error}", path.display()));
        }
    }

    /// Prints the result.
    pub(super) fn finish(self, globals: &Globals, elapsed: Duration) -> Outcome {
        self.save(elapsed);
        if globals.json {
            out::json(&self.record(elapsed));
        } else {
            out::line(&format!("{} cases, {}; seed {}", self.cases(), self.words(), self.args.seed));
        }
        if self.errors() == 0 && self.not_right.is_empty() { Outcome::Good } else { Outcome::Bad }
    }
}

/// The kind of a case.
fn kind(attention: &Attention, serving: bool) -> &'static str {
    match (serving, attention.is_backward()) {
        (true, _) => "serving",
        (false, true) => "backward",
        (false, false) => "forward",
    }
}
