//! `docs/known-wrong.md`.

use std::fmt::Write as _;

use crate::reports::{LIBRARIES, Library};

use super::{Guard, Known, KnownRange, Seen, Wrong, known_wrong};

const INTRODUCTION: &str = "\
# Attention that is computed wrongly

What cuDNN and FlashAttention-4 compute wrongly, who reports it and who saw it; then the guards and reports of other
projects, and what of them is true. For maintainers of any project that calls these libraries. Everything as data, with
how each shows, its command and its range: [known-wrong.json](known-wrong.json).

Written by `UPDATE_GOLDENS=1 cargo test -p qkvault-probe --test known` from `crates/cudnn/src/registry` and
`crates/probe/src/reports`.

* A code is refused; behind it stand what is wrong, the versions and GPUs, and what to do. What is not *seen* is
  reported, and did not run here. **form**: right in the form that qkvault writes. **open**: neither. **not confirmed**:
  it ran right here. **never written**: qkvault does not ask for it. **unknown**: none ran.
* A GPU is named by its compute capability: 9.0 is H100 and H200, 10.x is B200 and B300, 12.x the RTX PRO 6000.
";

/// The page.
#[must_use]
pub fn page() -> String {
    let Known { format: _, wrong, guards } = known_wrong();
    let mut text = INTRODUCTION.to_owned();
    for engine in LIBRARIES.map(Library::title) {
        let _ = write!(text, "\n## Wrong in {engine}\n\n");
        let rows: Vec<&Wrong> = wrong.iter().filter(|row| row.engine == engine).collect();
        if rows.is_empty() {
            text.push_str("Nothing is known to be.\n");
            continue;
        }
        rows.into_iter().for_each(|row| wrong_row(&mut text, row));
    }
    let mut projects: Vec<&str> = guards.iter().map(|guard| guard.project).collect();
    projects.dedup();
    for project in projects {
        let _ = write!(text, "\n## Guards and reports of {project}\n\n");
        guards.iter().filter(|guard| guard.project == project).for_each(|guard| guard_row(&mut text, guard));
    }
    text
}

/// Behind a code stands what is wrong, for which versions and GPUs, and what to do.
fn wrong_row(text: &mut String, row: &Wrong) {
    let Wrong { code, engine: _, attention, affected, shows: _, reports, seen, answer, to_do } = row;
    let (what, to_do) = match code {
        Some(code) => (in_reasons(code), String::new()),
        None => (format!("{attention}{}", ranges(affected)), format!("**{answer}**: {to_do}")),
    };
    item(text, &[&what, &by(seen), &links(reports), &to_do]);
}

/// What is done about a wrong result, the list of wrong results says; why a report is not confirmed, the data.
fn guard_row(text: &mut String, guard: &Guard) {
    let Guard { project: _, attention, affected, place: _, links: addresses, finding, codes, seen: _, says: _ } = guard;
    let known = match *finding {
        "refused" => codes.iter().map(|code| in_reasons(code)).collect::<Vec<_>>().join(", "),
        _ => format!("**{}**", finding.replace('-', " ")),
    };
    item(text, &[&format!("{attention}{}", ranges(affected)), &links(addresses), &known]);
}

fn item(text: &mut String, parts: &[&str]) {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    let _ = writeln!(text, "* {}", parts.join(" "));
}

/// The code, with a link to its section of the page of reasons.
fn in_reasons(code: &str) -> String {
    format!("[`{code}`](reasons.md#{})", code.replace('.', ""))
}

/// Versions and GPUs in brackets; nothing for all of them.
fn ranges(affected: &[KnownRange]) -> String {
    let ranges: Vec<&str> = affected.iter().map(|range| range.short.as_str()).filter(|text| !text.is_empty()).collect();
    if ranges.is_empty() { String::new() } else { format!(" ({})", ranges.join("; ")) }
}

fn by(seen: &Seen) -> String {
    match (seen.gpu, seen.versions) {
        (Some(gpu), Some(versions)) if seen.standing == "seen" => {
            format!("Seen: {}, {}.", gpu.trim_start_matches("an "), versions.trim_start_matches("cuDNN "))
        }
        (Some(_), Some(_)) => "**Not confirmed.**".to_owned(),
        _ => String::new(),
    }
}

/// Links to addresses, separated by commas.
fn links(addresses: &[&str]) -> String {
    addresses.iter().map(|address| format!("[{}]({address})", short(address))).collect::<Vec<_>>().join(", ")
}

/// What a link is called: the repository and the number of a thread, or the name of a file.
fn short(address: &str) -> String {
    let mut parts = address.trim_start_matches("https://github.com/").split('/').skip(1);
    let repository = parts.next().unwrap_or_default();
    let last = address.rsplit('/').next().unwrap_or_default();
    match last.chars().all(|c| c.is_ascii_digit()) {
        true => format!("{repository}#{last}"),
        false => last.to_owned(),
    }
}
