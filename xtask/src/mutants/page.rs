//! What came of it: a summary on the terminal, a record in JSON and the tables of the page.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::mutant::Mutant;
use super::record::{Record, Verdict};
use super::scratch::{ROOMS, room};
use crate::{cargo, ui};

/// Why mutants that no test notices may stay, by hand.
const ACCEPTED: &str = "xtask/mutants.toml";
const JSON: &str = "docs/results/mutants.json";
const PAGE: &str = "docs/results/mutants.md";
/// Between these lines the page is written by this program.
const BEGIN: &str = "<!-- written by `cargo xtask mutants --write` -->\n";
const END: &str = "<!-- end -->\n";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcceptedFile {
    #[serde(default)]
    accepted: Vec<Accepted>,
}

/// A mutant that may stay.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Accepted {
    file: String,
    within: String,
    from: String,
    to: String,
    reason: String,
}

#[derive(Clone, Copy, Default, Serialize)]
struct Counts {
    mutants: usize,
    killed: usize,
    /// Of those that were killed: how many because a test did not end.
    late: usize,
    survived: usize,
    unreached: usize,
    does_not_compile: usize,
    /// Of those that survived or were not reached: how many have a reason to stay.
    accepted: usize,
    not_judged: usize,
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
struct Report<'a> {
    command: &'static str,
    rooms: BTreeMap<&'static str, Counts>,
    files: BTreeMap<&'a str, Counts>,
    survivors: Vec<Survivor<'a>>,
}

/// A mutant and its verdict in a line.
pub(super) fn line(m: &Mutant, verdict: &Verdict) -> String {
    let says = match verdict {
        Verdict::Killed { by, .. } => format!("killed by {by}"),
        Verdict::Survived { tests } => format!("survives {tests} tests"),
        Verdict::Unreached => "is reached by no test".to_owned(),
        Verdict::DoesNotCompile => "does not compile".to_owned(),
    };
    format!("{} {}:{} {}: `{}` to `{}` {says}", m.key, m.file, m.line, m.within, m.from, m.to)
}

/// Sums up what is recorded of these mutants; writes it where that is wanted.
pub(super) fn tell(mutants: &[Mutant], record: &Record, write: bool) -> Result<()> {
    let root = cargo::root();
    let text = std::fs::read_to_string(root.join(ACCEPTED)).with_context(|| format!("{ACCEPTED} cannot be read"))?;
    let accepted: AcceptedFile = toml::from_str(&text).with_context(|| format!("{ACCEPTED} is not as it should be"))?;
    let report = report(mutants, record, &accepted.accepted);
    for (name, c) in &report.rooms {
        ui::say(&format!(
            "{name}: {} mutants, {} killed, {} survive, {} unreached, {} of these accepted, {} not judged",
            c.mutants, c.killed, c.survived, c.unreached, c.accepted, c.not_judged
        ));
    }
    let survivors = &report.survivors;
    let holds = |a: &&Accepted| {
        let of = |s: &Survivor<'_>| s.file == a.file && s.within == a.within && s.from == a.from && s.to == a.to;
        survivors.iter().any(of)
    };
    for a in accepted.accepted.iter().filter(|a| !holds(a)) {
        ui::say(&format!("{ACCEPTED}: {} {}: `{}` to `{}` is no survivor", a.file, a.within, a.from, a.to));
    }
    if write {
        std::fs::write(root.join(JSON), serde_json::to_string_pretty(&report)? + "\n")?;
        let page = std::fs::read_to_string(root.join(PAGE)).with_context(|| format!("{PAGE} cannot be read"))?;
        let Some((before, rest)) = page.split_once(BEGIN) else { bail!("{PAGE} has no line {BEGIN}") };
        let Some((_, after)) = rest.split_once(END) else { bail!("{PAGE} has no line {END}") };
        std::fs::write(root.join(PAGE), format!("{before}{BEGIN}{}{END}{after}", tables(&report)))?;
        ui::say(&format!("{JSON} and {PAGE} are written"));
    }
    Ok(())
}

fn report<'a>(mutants: &'a [Mutant], record: &'a Record, accepted: &'a [Accepted]) -> Report<'a> {
    let mut files: BTreeMap<&str, Counts> = BTreeMap::new();
    let mut survivors = Vec::new();
    for m in mutants {
        let counts = files.entry(&m.file).or_default();
        counts.mutants += 1;
        let reached_by_tests = match record.verdict(m) {
            None | Some(Verdict::DoesNotCompile) => {
                counts.not_judged += 1;
                continue;
            }
            Some(Verdict::Killed { late, .. }) => {
                counts.killed += 1;
                counts.late += usize::from(*late);
                continue;
            }
            Some(Verdict::Survived { tests }) => {
                counts.survived += 1;
                *tests
            }
            Some(Verdict::Unreached) => {
                counts.unreached += 1;
                0
            }
        };
        let is = |a: &&Accepted| a.file == m.file && a.within == m.within && a.from == m.from && a.to == m.to;
        let reason = accepted.iter().find(is).map(|a| a.reason.as_str());
        counts.accepted += usize::from(reason.is_some());
        let Mutant { file, line, within, from, to, .. } = m;
        survivors.push(Survivor { file, line: *line, within, from, to, reached_by_tests, reason });
    }
    for entry in record.known.values().filter(|e| matches!(e.verdict, Verdict::DoesNotCompile)) {
        files.entry(&entry.mutant.file).or_default().does_not_compile += 1;
    }
    let mut rooms: BTreeMap<&'static str, Counts> = BTreeMap::new();
    for (file, c) in &files {
        let Some(room) = room(file) else { continue };
        let sum = rooms.entry(room.name).or_default();
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
    Report { command: "cargo xtask mutants --write", rooms, files, survivors }
}

fn tables(report: &Report<'_>) -> String {
    let mut text = String::from(
        "\n| room | files | mutants | killed | survive | reached by no test | of these accepted | do not compile |\n\
         | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for room in &ROOMS {
        let c = report.rooms.get(room.name).copied().unwrap_or_default();
        let (name, files) = (room.name, room.files);
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
        let _ =
            writeln!(text, "\n{}\n", reason.unwrap_or("Noticed by no test, and no reason is known why that is right:"));
        for s in list {
            let place = s.file.trim_start_matches("crates/").replace("/src/", "/");
            let _ = writeln!(text, "* `{place}:{}`, `{}`: {} to {}", s.line, s.within, code(s.from), code(s.to));
        }
    }
    text + "\n"
}

/// A piece of code in a list.
fn code(text: &str) -> String {
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}
