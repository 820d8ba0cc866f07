//! Checks the pages of the repository: the length of lines, links and mentions of pages, the size of `docs`, and the
//! number of words.

use std::path::Path;

use super::MOST_COLUMNS;

/// Most bytes of `docs`. `bench/sum_records.py` reduces records to the fields that pages read.
const MOST_BYTES: u64 = 850_000;

/// Most words of all pages together.
const MOST_WORDS: usize = 46_500;

/// Most words of a page that must stay readable at one go, and most lines of the changelog.
const BOUNDS: &[(&str, Unit, usize)] = &[("ARCHITECTURE.md", Unit::Words, 4_000), ("CHANGELOG.md", Unit::Lines, 60)];

#[derive(Clone, Copy)]
enum Unit {
    Words,
    Lines,
}

impl Unit {
    fn count(self, text: &str) -> usize {
        match self {
            // Signs that draw a table are no words.
            Unit::Words => text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count(),
            Unit::Lines => text.lines().count(),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Unit::Words => "words",
            Unit::Lines => "lines",
        }
    }
}

/// Pages that programs write completely. In other pages, comments mark the generated parts.
const GENERATED: &[&str] = &["docs/known-wrong.md", "docs/models.md", "docs/reasons.md", "docs/support.md"];

/// Adds the faults of one file of the repository. `name` is its path from `root`, with slashes.
pub(super) fn look(root: &Path, name: &str, text: &str, found: &mut Vec<String>) {
    if name.ends_with(".md") {
        columns(name, text, found);
        links(root, name, text, found);
    }
    mentions(root, name, text, found);
}

/// Adds a fault if `docs` is too large. `files` are the names of all files in the repository.
pub(super) fn size<'a>(root: &Path, files: impl IntoIterator<Item = &'a str>, found: &mut Vec<String>) {
    let docs = files.into_iter().filter(|name| name.starts_with("docs/"));
    let bytes: u64 = docs.filter_map(|name| root.join(name).metadata().ok()).map(|meta| meta.len()).sum();
    if bytes > MOST_BYTES {
        found.push(format!("docs: {bytes} bytes; {MOST_BYTES} is the most, reduce records to what pages read"));
    }
}

/// Adds a fault for every page that has grown over its bound, and one if all pages together have too many words, with
/// the longest of them. `pages` are names and texts of all pages in the repository.
pub(super) fn words(pages: &[(String, String)], found: &mut Vec<String>) {
    for (name, unit, most) in BOUNDS {
        let Some((_, text)) = pages.iter().find(|(page, _)| page == name) else { continue };
        let count = unit.count(text);
        if count > *most {
            found.push(format!("{name}: {count} {}; {most} is the most", unit.name()));
        }
    }
    let mut counts: Vec<(usize, &str)> =
        pages.iter().map(|(name, text)| (Unit::Words.count(text), name.as_str())).collect();
    let all: usize = counts.iter().map(|(count, _)| count).sum();
    if all > MOST_WORDS {
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let longest: Vec<String> = counts.iter().take(10).map(|(count, name)| format!("{name} {count}")).collect();
        found.push(format!(
            "pages: {all} words; {MOST_WORDS} is the most. Say it once, delete what is history. The longest: {}",
            longest.join(", ")
        ));
    }
}

/// The lines of prose of a page with their numbers, without code blocks and generated parts.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let (mut code, mut generated) = (false, false);
    text.lines().enumerate().filter_map(move |(at, line)| {
        let start = line.trim_start();
        if start.starts_with("```") {
            code = !code;
            return None;
        }
        if start.starts_with("<!-- begin") || start.starts_with("<!-- written by") {
            generated = true;
        } else if start.starts_with("<!-- end") {
            generated = false;
        }
        (!code && !generated).then_some((at + 1, line))
    })
}

fn columns(name: &str, text: &str, found: &mut Vec<String>) {
    if GENERATED.contains(&name) {
        return;
    }
    for (number, line) in prose(text).filter(|(_, line)| !line.trim_start().starts_with('|')) {
        let columns = line.chars().count();
        if columns > MOST_COLUMNS {
            found.push(format!(
                "{name}:{number}: {columns} columns; {MOST_COLUMNS} is the most outside tables and code"
            ));
        }
    }
}

/// Adds a fault for every relative link without a target.
fn links(root: &Path, name: &str, text: &str, found: &mut Vec<String>) {
    let folder = root.join(name).parent().map(Path::to_path_buf).unwrap_or_default();
    for (number, link) in links_of(text) {
        let path = link.split_once('#').map_or(link, |(path, _)| path);
        if !path.is_empty() && !path.contains("://") && !path.starts_with("mailto:") && !folder.join(path).exists() {
            found.push(format!("{name}:{number}: the link {link} leads nowhere"));
        }
    }
}

/// The links in a page's prose, with the numbers of their lines.
pub(crate) fn links_of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        line.split("](").skip(1).filter_map(move |rest| Some((number, rest.split_once(')')?.0)))
    })
}

/// Adds a fault for every mention of a missing page or record by its path from the root, also in code.
fn mentions(root: &Path, name: &str, text: &str, found: &mut Vec<String>) {
    let is_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    for (at, line) in text.lines().enumerate() {
        for (start, _) in line.match_indices("docs/") {
            if line[..start].chars().next_back().is_some_and(is_path) {
                continue;
            }
            let rest = &line[start..];
            let path = rest[..rest.find(|c| !is_path(c)).unwrap_or(rest.len())].trim_end_matches('.');
            let is_page = [".md", ".json", ".html"].iter().any(|end| path.ends_with(end));
            if is_page && !root.join(path).exists() {
                found.push(format!("{name}:{}: there is no {path}", at + 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path below `docs`, built from parts, so that the check does not find this file.
    fn docs(rest: &str) -> String {
        format!("docs/{rest}")
    }

    fn found(name: &str, text: &str) -> Vec<String> {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(root.path().join("docs/results")).expect("a folder");
        std::fs::write(root.path().join(docs("here.md")), "here").expect("a file");
        let mut found = Vec::new();
        look(root.path(), name, text, &mut found);
        found
    }

    #[test]
    fn a_long_line_is_found_but_not_in_tables_code_and_generated_parts() {
        let long = "word ".repeat(25);
        let just = "ü".repeat(120);
        let text = format!(
            "{just}\n| {long} |\n```sh\n{long}\n```\n<!-- begin: table -->\n{long}\n<!-- end: table -->\n\
             <!-- written by `x` -->\n{long}\n<!-- end -->\n* {long}\n"
        );
        assert_eq!(found("a.md", &text), ["a.md:12: 127 columns; 120 is the most outside tables and code"]);
        assert_eq!(found("docs/reasons.md", &text), [""; 0]);
        assert_eq!(found("a.rs", &text), [""; 0]);
    }

    #[test]
    fn a_link_to_a_missing_page_is_found() {
        let text = "[a](here.md), [b](gone.md#part), [c](#part), [d](https://example.org/gone.md), [e](results)\n";
        assert_eq!(found(&docs("a.md"), text), [docs("a.md:1: the link gone.md#part leads nowhere")]);
        assert_eq!(found(&docs("results/a.md"), "[a](../here.md) [b](here.md)").len(), 1);
        assert_eq!(found(&docs("a.md"), "```text\nmatrix[1](2)\n```"), [""; 0]);
    }

    #[test]
    fn a_mention_of_a_missing_page_is_found() {
        let [here, gone] = ["here.md", "gone.md"].map(docs);
        let text = format!("//! See `{here}`.\n//! See {gone}.\n//! example.org/{gone}; docs/gone/x\n");
        assert_eq!(found("src/a.rs", &text), [format!("src/a.rs:2: there is no {gone}")]);
    }

    #[test]
    fn pages_that_grew_are_found() {
        let page = |name: &str, text: String| (name.to_owned(), text);
        let look_at = |pages: &[(String, String)]| {
            let mut found = Vec::new();
            words(pages, &mut found);
            found
        };
        let full = [page("ARCHITECTURE.md", "word ".repeat(4_000)), page("CHANGELOG.md", "a line\n".repeat(60))];
        assert_eq!(look_at(&full), [""; 0]);
        let grown = [page("ARCHITECTURE.md", "word ".repeat(4_001)), page("CHANGELOG.md", "a line\n".repeat(61))];
        assert_eq!(
            look_at(&grown),
            ["ARCHITECTURE.md: 4001 words; 4000 is the most", "CHANGELOG.md: 61 lines; 60 is the most"]
        );
        let all =
            look_at(&[page("a.md", "word ".repeat(20_000)), page("b.md", "| word ---: ".repeat(MOST_WORDS - 19_999))]);
        assert!(
            all.len() == 1
                && all[0].starts_with(&format!("pages: {} words; {MOST_WORDS} is the most.", MOST_WORDS + 1)),
            "{all:?}"
        );
        assert!(all[0].ends_with(&format!("The longest: b.md {}, a.md 20000", MOST_WORDS - 19_999)), "{all:?}");
    }

    #[test]
    fn records_that_make_docs_too_large_are_found() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(root.path().join("docs")).expect("a folder");
        let names = [docs("a.json"), docs("c.json"), "b.json".to_owned()];
        for name in &names {
            std::fs::write(root.path().join(name), vec![b' '; MOST_BYTES as usize / 2 + 1]).expect("a file");
        }
        let look_at = |names: &[String]| {
            let mut found = Vec::new();
            size(root.path(), names.iter().map(String::as_str), &mut found);
            found
        };
        assert_eq!(look_at(&names[1..]), [""; 0]);
        let large = look_at(&names);
        assert!(large.len() == 1 && large[0].starts_with(&format!("docs: {} bytes", MOST_BYTES + 2)), "{large:?}");
    }
}
