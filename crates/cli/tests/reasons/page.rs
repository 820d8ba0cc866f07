//! The registry as a page for people: `docs/reasons.md`, a heading for each code.

use std::fmt::Write as _;

use qkvault_graph::Origin;
use qkvault_graph::registry::Affected;
use qkvault_graph::registry::Entry;

/// Most columns of a line.
const WIDTH: usize = 120;

const INTRODUCTION: &str = "\
# Reasons by code

Each code: what is wrong, the versions of cuDNN and the GPUs it is about where these are not all, and what to do. Where
a contradiction is the description's own, the reason itself says what to do. Evidence stands beside the code, in the
`codes` folder or file of its crate, from which `UPDATE_GOLDENS=1 cargo test -p qkvault-cli --test reasons` writes this
page. A code is never renamed and never gets another meaning.
";

/// What to do about nearly all codes of an engine other than cuDNN: the page says it once.
const LEFT_TO_CUDNN: &str = "leave it to cuDNN";

/// The parts of the page: origin, title, and a sentence about all codes of the part.
const PARTS: [(Origin, &str, &str); 5] = [
    (
        Origin::Quirk,
        "Computed wrongly",
        "cuDNN accepts these and computes them wrongly, or crashes. They are refused until `--allow CODE` accepts them; who saw \
         each: [known-wrong.md](known-wrong.md).",
    ),
    (Origin::Rule, "Not supported", "cuDNN does not support these, or they do not fit in memory."),
    (
        Origin::NotBuilt,
        "Not built yet",
        "qkvault does not write these yet. What one engine does not take (`fa4.*`, `kernels.*`), leave to cuDNN.",
    ),
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
pub(crate) fn page(entries: &[&'static Entry]) -> String {
    let mut text = INTRODUCTION.to_owned();
    for (origin, title, about) in PARTS {
        let _ = write!(text, "\n## {title}\n\n");
        paragraph(&mut text, "", "", about);
        let mut part: Vec<&Entry> = entries.iter().copied().filter(|entry| entry.origin == origin).collect();
        part.sort_by_key(|entry| entry.code);
        for entry in part {
            section(&mut text, entry);
        }
    }
    text
}

fn section(text: &mut String, entry: &Entry) {
    let Entry { code, cause, origin, affected, needed, fix, .. } = *entry;
    let _ = write!(text, "\n### `{code}`\n\n");
    let is_about_all = affected.iter().all(|range| *range == Affected::ALL[0]);
    let affected = match is_about_all || matches!(origin, Origin::Description | Origin::Library) {
        true => String::new(),
        false => affected.iter().map(|range| range.short()).collect::<Vec<_>>().join("; "),
    };
    // Where nothing can be done, what would be accepted is the answer.
    let to_do = match (origin, fix) {
        (Origin::Description, _) | (_, LEFT_TO_CUDNN) => "",
        (_, "") => needed,
        (_, fix) => fix,
    };
    let words: Vec<String> =
        [affected.as_str(), cause, to_do].into_iter().filter(|words| !words.is_empty()).map(sentence).collect();
    paragraph(text, "", "", &linked(&words.join(" ")));
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
