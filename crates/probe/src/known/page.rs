//! `docs/known-wrong.md`.

use std::fmt::Write as _;

use qkvault_graph::registry::{LIBRARIES, Library};

use super::{Guard, Known, Range, Seen, Wrong, known_wrong};

const INTRODUCTION: &str = "\
# Attention that is computed wrongly

Which attention cuDNN and FlashAttention-4 compute wrongly, on which GPUs and versions, who reported it, who saw it, and
what to do about it; then the guards of PyTorch, Transformer Engine, cudnn-frontend and JAX, and what of them is true.
For maintainers of any project that calls these libraries: no knowledge of qkvault is needed. The same as data is in
[known-wrong.json](known-wrong.json).

Written by `UPDATE_GOLDENS=1 cargo test -p qkvault-probe --test known` from `crates/graph/src/registry`; a test fails
when it is stale. `qkvault probe` reads the same: it refuses what is *refused* here, for your attention, GPU and version.

* *Seen by*: **seen** on a GPU by this project, with the command that shows it (`CASES` is a file of descriptions);
  **reported** by others, and not run here for want of such a GPU or version; **not confirmed**: it ran right here.
* *What to do*: **refused** rows have a code, under which [reasons by code](reasons.md) tells the condition; **form**
  rows are right in the form that qkvault writes; **open** rows are neither.
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
        text.push_str("| attention | versions and GPUs | how it shows | reported | seen by | what to do |\n");
        text.push_str("| --- | --- | --- | --- | --- | --- |\n");
        rows.into_iter().for_each(|row| wrong_row(&mut text, row));
    }
    let mut projects: Vec<&str> = guards.iter().map(|guard| guard.project).collect();
    projects.dedup();
    for project in projects {
        let _ = write!(text, "\n## Guards and reports of {project}\n\n");
        text.push_str("| attention | versions and GPUs | where | what is known here |\n| --- | --- | --- | --- |\n");
        guards.iter().filter(|guard| guard.project == project).for_each(|guard| guard_row(&mut text, guard));
    }
    text
}

fn wrong_row(text: &mut String, row: &Wrong) {
    let Wrong { code, engine: _, attention, affected, shows, reports, seen, answer, to_do } = row;
    let code = code.map(|code| format!("{} ", in_reasons(code))).unwrap_or_default();
    cells(
        text,
        &[
            format!("{code}{attention}"),
            ranges(affected),
            (*shows).to_owned(),
            links(reports),
            by(seen),
            format!("**{answer}**: {to_do}"),
        ],
    );
}

fn guard_row(text: &mut String, guard: &Guard) {
    let Guard { project: _, attention, affected, place, links: addresses, finding, codes, seen, says } = guard;
    let place = if place.is_empty() { String::new() } else { format!("{place}: ") };
    let finding = finding.replace('-', " ");
    let codes = codes.iter().map(|code| in_reasons(code)).collect::<Vec<_>>().join(", ");
    let seen = seen.as_ref().map(|seen| format!(" ({})", by(seen))).unwrap_or_default();
    let known = match seen.is_empty() {
        true => format!("**{finding}** {codes}{says}"),
        false => format!("**{finding}**{seen} {says}"),
    };
    cells(text, &[(*attention).to_owned(), ranges(affected), format!("{place}{}", links(addresses)), known]);
}

fn cells(text: &mut String, cells: &[String]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.trim().replace('|', "\\|")).collect();
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// The code, with a link to its section of the page of reasons.
fn in_reasons(code: &str) -> String {
    format!("[`{code}`](reasons.md#{})", code.replace('.', ""))
}

fn ranges(affected: &[Range]) -> String {
    affected.iter().map(|range| range.text.as_str()).collect::<Vec<_>>().join("; ")
}

fn by(seen: &Seen) -> String {
    let Seen { standing, gpu, versions, command } = seen;
    match (gpu, versions, command) {
        (Some(gpu), Some(versions), Some(command)) if *standing == "seen" => format!("{gpu}, {versions}: `{command}`"),
        (Some(gpu), Some(versions), Some(command)) => format!("right on {gpu}, {versions}: `{command}`"),
        _ => (*standing).to_owned(),
    }
}

/// Links to addresses, separated by commas.
pub(crate) fn links(addresses: &[&str]) -> String {
    addresses.iter().map(|address| format!("[{}]({address})", short(address))).collect::<Vec<_>>().join(", ")
}

/// What a link is called: the repository and the number of a thread, or the name of a file.
fn short(address: &str) -> String {
    let mut parts = address.trim_start_matches("https://github.com/").split('/').skip(1);
    let repository = parts.next().unwrap_or_default();
    let last = address.rsplit('/').next().unwrap_or_default();
    match last.chars().all(|c| c.is_ascii_digit()) {
        true => format!("{repository} #{last}"),
        false => last.to_owned(),
    }
}
