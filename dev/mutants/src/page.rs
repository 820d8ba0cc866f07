//! Reports the verdicts: a summary on the terminal, a record in JSON, and the tables of the page.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::mutant::Mutant;
use super::record::{MutantVerdict, Record};
use super::scratch::{AREAS, area};
use xtask::{cargo, ui};

/// The hand-written reasons why some undetected mutants may stay.
const ACCEPTED: &str = "dev/mutants/accepted.toml";
const JSON: &str = "docs/results/mutants.json";
const PAGE: &str = "docs/results/mutants.md";
/// This program writes the page between these lines.
const BEGIN: &str = "<!-- written by `cargo xtask mutants --write` -->\n";
const END: &str = "<!-- end -->\n";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcceptedFile {
    #[serde(default)]
    accepted: Vec<Accepted>,
}

/// A reason, and the mutants that may stay for it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Accepted {
    reason: String,
    mutants: Vec<NamedMutant>,
}

/// A mutant, named by its original and its changed code.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedMutant {
    file: String,
    within: String,
    from: String,
    to: String,
}

impl NamedMutant {
    fn is(&self, file: &str, within: &str, from: &str, to: &str) -> bool {
        (&*self.file, &*self.within, &*self.from, &*self.to) == (file, within, from, to)
    }
}

#[derive(Clone, Copy, Default, Serialize)]
struct Counts {
    mutants: usize,
    killed: usize,
    /// Killed mutants for which a test did not end.
    #[serde(skip_serializing_if = "is_zero")]
    late: usize,
    #[serde(skip_serializing_if = "is_zero")]
    survived: usize,
    #[serde(skip_serializing_if = "is_zero")]
    unreached: usize,
    #[serde(skip_serializing_if = "is_zero")]
    does_not_compile: usize,
    /// Survivors and unreached mutants with a reason to stay.
    #[serde(skip_serializing_if = "is_zero")]
    accepted: usize,
    #[serde(skip_serializing_if = "is_zero")]
    not_judged: usize,
}

const fn is_zero(n: &usize) -> bool {
    *n == 0
}

#[derive(Serialize)]
struct Survivor<'a> {
    file: &'a str,
    line: usize,
    within: &'a str,
    from: &'a str,
    to: &'a str,
    reached_by_tests: usize,
    reason: Option<&'a str>,
}

#[derive(Serialize)]
struct MutantsReport<'a> {
    command: &'static str,
    areas: BTreeMap<&'static str, Counts>,
    files: BTreeMap<&'a str, Counts>,
    survivors: Vec<Survivor<'a>>,
}

/// A line about a mutant and its verdict.
pub(super) fn line(m: &Mutant, verdict: &MutantVerdict) -> String {
    let result = match verdict {
        MutantVerdict::Killed { by, .. } => format!("killed by {by}"),
        MutantVerdict::Survived { tests } => format!("survives {tests} tests"),
        MutantVerdict::Unreached => "is reached by no test".to_owned(),
        MutantVerdict::DoesNotCompile => "does not compile".to_owned(),
    };
    format!("{} {}:{} {}: `{}` to `{}` {result}", m.key, m.file, m.line, m.within, m.from, m.to)
}

/// Prints a summary of the recorded verdicts, and writes the page if `write` is set.
pub(super) fn summarize(mutants: &[Mutant], record: &Record, write: bool) -> Result<()> {
    let root = cargo::root();
    let text = std::fs::read_to_string(root.join(ACCEPTED)).with_context(|| format!("{ACCEPTED} cannot be read"))?;
    let accepted: AcceptedFile = toml::from_str(&text).with_context(|| format!("{ACCEPTED} is not valid"))?;
    let report = report(mutants, record, &accepted.accepted);
    for (name, c) in &report.areas {
        ui::say(&format!(
            "{name}: {} mutants, {} killed, {} survive, {} unreached, {} of these with a reason, {} not judged",
            c.mutants, c.killed, c.survived, c.unreached, c.accepted, c.not_judged
        ));
    }
    for named in stale(&accepted.accepted, &report) {
        let NamedMutant { file, within, from, to } = named;
        ui::say(&format!(
            "{ACCEPTED}: {file} {within}: `{from}` to `{to}` does not survive any more; remove its reason"
        ));
    }
    if write {
        std::fs::write(root.join(JSON), in_lines(&serde_json::to_value(&report)?))?;
        let page = std::fs::read_to_string(root.join(PAGE)).with_context(|| format!("{PAGE} cannot be read"))?;
        let Some((before, rest)) = page.split_once(BEGIN) else { bail!("{PAGE} has no line {BEGIN}") };
        let Some((_, after)) = rest.split_once(END) else { bail!("{PAGE} has no line {END}") };
        std::fs::write(root.join(PAGE), format!("{before}{BEGIN}{}{END}{after}", tables(&report)))?;
        ui::say(&format!("{JSON} and {PAGE} are written"));
    }
    Ok(())
}

/// A report as JSON, with a line for each area, file and mutant.
fn in_lines(report: &serde_json::Value) -> String {
    let list = |lines: Vec<String>| lines.join(",\n    ");
    let part = |value: &serde_json::Value| match value {
        serde_json::Value::Object(map) => {
            format!("{{\n    {}\n  }}", list(map.iter().map(|(name, value)| format!("{name:?}: {value}")).collect()))
        }
        serde_json::Value::Array(all) => format!("[\n    {}\n  ]", list(all.iter().map(ToString::to_string).collect())),
        other => other.to_string(),
    };
    let parts = report.as_object().into_iter().flatten().map(|(name, value)| format!("  {name:?}: {}", part(value)));
    format!("{{\n{}\n}}\n", parts.collect::<Vec<_>>().join(",\n"))
}

/// Mutants with a reason that are not survivors.
fn stale<'a>(accepted: &'a [Accepted], report: &MutantsReport<'_>) -> Vec<&'a NamedMutant> {
    let is_left = |named: &&NamedMutant| report.survivors.iter().any(|s| named.is(s.file, s.within, s.from, s.to));
    accepted.iter().flat_map(|a| &a.mutants).filter(|named| !is_left(named)).collect()
}

fn report<'a>(mutants: &'a [Mutant], record: &'a Record, accepted: &'a [Accepted]) -> MutantsReport<'a> {
    let mut files: BTreeMap<&str, Counts> = BTreeMap::new();
    let mut survivors = Vec::new();
    for m in mutants {
        let counts = files.entry(&m.file).or_default();
        counts.mutants += 1;
        let reached_by_tests = match record.verdict(m) {
            None | Some(MutantVerdict::DoesNotCompile) => {
                counts.not_judged += 1;
                continue;
            }
            Some(MutantVerdict::Killed { late, .. }) => {
                counts.killed += 1;
                counts.late += usize::from(*late);
                continue;
            }
            Some(MutantVerdict::Survived { tests }) => {
                counts.survived += 1;
                *tests
            }
            Some(MutantVerdict::Unreached) => {
                counts.unreached += 1;
                0
            }
        };
        let is = |a: &&Accepted| a.mutants.iter().any(|named| named.is(&m.file, &m.within, &m.from, &m.to));
        let reason = accepted.iter().find(is).map(|a| a.reason.as_str());
        counts.accepted += usize::from(reason.is_some());
        let Mutant { file, line, within, from, to, .. } = m;
        survivors.push(Survivor { file, line: *line, within, from, to, reached_by_tests, reason });
    }
    for entry in record.known.values().filter(|e| matches!(e.verdict, MutantVerdict::DoesNotCompile)) {
        files.entry(&entry.mutant.file).or_default().does_not_compile += 1;
    }
    let mut areas: BTreeMap<&'static str, Counts> = BTreeMap::new();
    for (file, c) in &files {
        let Some(area) = area(file) else { continue };
        let sum = areas.entry(area.name).or_default();
        let Counts { mutants, killed, late, survived, unreached, does_not_compile, accepted, not_judged } = *c;
        sum.mutants += mutants;
        sum.killed += killed;
        sum.late += late;
        sum.survived += survived;
        sum.unreached += unreached;
        sum.does_not_compile += does_not_compile;
        sum.accepted += accepted;
        sum.not_judged += not_judged;
    }
    MutantsReport { command: "cargo xtask mutants --write", areas, files, survivors }
}

fn tables(report: &MutantsReport<'_>) -> String {
    let mut text = String::from(
        "\n| area | files | mutants | killed | survive | reached by no test | of these with a reason | do not compile |\n\
         | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for area in &AREAS {
        let c = report.areas.get(area.name).copied().unwrap_or_default();
        let (name, files) = (area.name, area.files);
        let _ = writeln!(
            text,
            "| {name} | `{files}` | {} | {} | {} | {} | {} | {} |",
            c.mutants, c.killed, c.survived, c.unreached, c.accepted, c.does_not_compile
        );
    }
    let mut by_reason: BTreeMap<Option<&str>, Vec<&Survivor<'_>>> = BTreeMap::new();
    for s in &report.survivors {
        by_reason.entry(s.reason).or_default().push(s);
    }
    for (reason, list) in by_reason {
        let _ = writeln!(
            text,
            "\n{}\n",
            reason.unwrap_or("No test detects these, and there is no known reason why that is right:")
        );
        for s in list {
            let place = s.file.trim_start_matches("crates/").replace("/src/", "/");
            let _ = writeln!(text, "* `{place}:{}`, `{}`: {} to {}", s.line, s.within, code(s.from), code(s.to));
        }
    }
    text + "\n"
}

/// Formats a piece of code for a list.
fn code(text: &str) -> String {
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_a_line_for_each_of_its_parts() {
        let report =
            serde_json::json!({ "command": "c", "areas": { "a": { "n": 1 }, "b": { "n": 2 } }, "list": ["\"x"] });
        let text = in_lines(&report);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON"), report);
        assert!(text.contains("    \"b\": {\"n\":2}\n"), "{text}");
    }

    #[test]
    fn a_reason_is_found_by_the_change_and_is_stale_without_a_survivor() {
        let file = "crates/graph/src/lower/mod.rs";
        let mutant = |key: &str, line| Mutant {
            id: 1,
            key: key.to_owned(),
            item: "an item".to_owned(),
            file: file.to_owned(),
            line,
            within: "lower".to_owned(),
            from: "a".to_owned(),
            to: key.to_owned(),
        };
        let mutants = [mutant("b", 7), mutant("c", 8), mutant("d", 9)];
        let folder = tempfile::tempdir().expect("a folder");
        let mut record = Record::open(&folder.path().join("record"), true).expect("a record");
        let verdicts = [
            MutantVerdict::Survived { tests: 3 },
            MutantVerdict::Unreached,
            MutantVerdict::Killed { by: String::new(), late: false },
        ];
        for (m, verdict) in mutants.iter().zip(verdicts) {
            let entry = record.add(m, verdict).expect("it is written");
            record.known.insert(m.key.clone(), entry);
        }
        let named = |to: &str| format!("{{ file = '{file}', within = 'lower', from = 'a', to = '{to}' }}");
        let text = format!("[[accepted]]\nreason = 'the same'\nmutants = [{}, {}]", named("b"), named("d"));
        let accepted: AcceptedFile = toml::from_str(&text).expect("reasons");
        let report = report(&mutants, &record, &accepted.accepted);
        let Counts { survived, unreached, accepted: with_reason, killed, .. } = report.areas["lowering"];
        assert_eq!((survived, unreached, with_reason, killed), (1, 1, 1, 1));
        assert_eq!(stale(&accepted.accepted, &report).iter().map(|n| &*n.to).collect::<Vec<_>>(), ["d"]);
        let page = tables(&report);
        let (without, with) = (page.find("no known reason").expect("c"), page.find("\nthe same\n").expect("b"));
        assert!(
            without < with && page[without..with].contains("`graph/lower/mod.rs:8`, `lower`: `a` to `c`"),
            "{page}"
        );
    }
}
