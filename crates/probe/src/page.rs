//! The registry as a page for people: `docs/reasons.md`, a heading for each code.

use std::fmt::Write as _;

use qkvault_graph::Origin;
use qkvault_graph::registry::{Entry, entries};

use crate::known::links;

/// Most columns of a line.
const WIDTH: usize = 120;

const INTRODUCTION: &str = "\
# Reasons by code

Written by `UPDATE_GOLDENS=1 cargo test -p qkvault-probe --test reasons` from the registry, which is
`crates/graph/src/registry`; a test fails when it is stale.

Codes are stable: none is renamed or gets another meaning. `qkvault probe --allow CODE` accepts a code of the first
part, *Computed wrongly*; other codes cannot be allowed. *Affected* are the versions and GPUs for which a condition is
checked; it may hold for only some descriptions there. *Needed* is left out if a newer version is enough, or if it
depends on what was given: the reason has it then.
";

/// The parts of the page: origin, title, and a sentence about all codes of the part.
const PARTS: [(Origin, &str, &str); 5] = [
    (
        Origin::Quirk,
        "Computed wrongly",
        "cuDNN accepts these and computes them wrongly, or crashes. qkvault refuses them until their code is allowed.",
    ),
    (Origin::Rule, "Not supported", "cuDNN does not support these, or they do not fit in memory."),
    (Origin::NotBuilt, "Not built yet", "qkvault does not write these for cuDNN yet."),
    (
        Origin::Description,
        "The description contradicts itself",
        "These hold on every GPU and for every version: they follow from the description alone.",
    ),
    (
        Origin::Library,
        "Refused by cuDNN itself",
        "The reason has cuDNN's message, and holds only for the version and GPU that were asked.",
    ),
];

/// The registry as a Markdown page.
#[must_use]
pub fn page() -> String {
    let mut text = INTRODUCTION.to_owned();
    for (origin, title, about) in PARTS {
        let _ = write!(text, "\n## {title}\n\n");
        paragraph(&mut text, "", "", about);
        let mut part: Vec<&Entry> = entries().filter(|entry| entry.origin == origin).collect();
        part.sort_by_key(|entry| entry.code);
        for entry in part {
            section(&mut text, entry);
        }
    }
    text
}

fn section(text: &mut String, entry: &Entry) {
    let Entry { code, cause, origin, affected, needed, fix, source, evidence, standing, reports, .. } = *entry;
    let _ = write!(text, "\n### `{code}`\n\n");
    let mut item = |name: &str, words: &str| {
        if !words.is_empty() {
            paragraph(text, "* ", "  ", &linked(&format!("**{name}:** {}", sentence(words))));
        }
    };
    item("Cause", cause);
    let beside_the_library = !matches!(origin, Origin::Description | Origin::Library);
    if beside_the_library {
        item("Affected", &affected.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
    }
    item("Needed", needed);
    item("Fix", fix);
    if beside_the_library {
        let evidence = if evidence.is_empty() { String::new() } else { format!(" {evidence}") };
        item("Evidence", &format!("{}{evidence}", sentence(source)));
        if let Some(standing) = standing {
            item("Seen by", &standing.to_string());
        }
        if !reports.is_empty() {
            paragraph(text, "* ", "  ", &format!("**Reports:** {}", links(reports)));
        }
    }
}

/// The text as a sentence: with a capital letter, unless it begins with a name, and with a full stop or question mark.
fn sentence(text: &str) -> String {
    // `cuDNN`, `dK`, `score_mod`, `qkvault` and the repository of NVIDIA's front end are names.
    let word = text.split([' ', ',']).next().unwrap_or_default();
    let is_name = word.starts_with("cudnn-")
        || word.starts_with("qkvault")
        || word.chars().skip(1).any(|c| c.is_uppercase() || c == '_');
    let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
    let first = if is_name { first.to_owned() } else { first.to_uppercase() };
    let stop = if text.ends_with(['.', '?']) { "" } else { "." };
    format!("{first}{rest}{stop}")
}

/// The text with links for the pages of results that it names.
fn linked(text: &str) -> String {
    let link = |word: &str| {
        let page = word.trim_start_matches('(').trim_end_matches([')', '.', ',', ';']);
        match page.strip_prefix("docs/") {
            Some(target) => word.replace(page, &format!("[{page}]({target})")),
            None => word.to_owned(),
        }
    };
    text.split(' ').map(link).collect::<Vec<_>>().join(" ")
}

/// Wraps words at the width of the page.
fn paragraph(text: &mut String, first: &str, others: &str, words: &str) {
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in words.split(' ') {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(text, "{line}");
            (line, is_empty) = (others.to_owned(), true);
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    let _ = writeln!(text, "{line}");
}
