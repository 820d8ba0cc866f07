//! Checks the guide against other pages and the code: its figures are those of `docs/results`, and every kind of code
//! has a fix.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use qkvault::graph::expr::library::{MASK_MODS, SCORE_MODS};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The table rows with figures.
fn rows(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter(|line| line.starts_with('|') && line.chars().any(|c| c.is_ascii_digit()))
}

/// A new measurement changes its page in `docs/results`. A copy of a row elsewhere must not keep the old figures.
#[test]
fn rows_of_figures_in_the_guide_and_the_readme_are_rows_of_the_results() {
    let mut results = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("docs/results")).expect("the folder is there") {
        let path = entry.expect("the entry is readable").path();
        if path.extension().is_some_and(|end| end == "md") {
            results.extend(rows(&read(&path)).map(str::to_owned));
        }
    }
    for page in ["crates/qkvault/src/guide/performance.md", "README.md"] {
        let text = read(&root().join(page));
        let copies: Vec<_> = rows(&text).filter(|row| !row.contains("](")).collect();
        for row in &copies {
            assert!(results.contains(*row), "{page}: no page of docs/results has the row {row}");
        }
        assert!(copies.len() >= 4, "{page} has {} rows of figures", copies.len());
    }
}

#[test]
fn every_kind_of_code_has_a_row_in_the_guide() {
    let kinds: BTreeSet<String> = read(&root().join("docs/reasons.md"))
        .lines()
        .filter(|line| line.starts_with('|') || line.starts_with('#'))
        .filter_map(|line| line.split('`').nth(1))
        .filter(|code| code.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c)))
        .filter_map(|code| Some(code.split_once('.')?.0.to_owned()))
        .collect();
    assert!(kinds.len() > 25, "{kinds:?}");
    let page = read(&root().join("crates/qkvault/src/guide/troubleshooting.md"));
    let missing: Vec<_> = kinds.iter().filter(|kind| !page.contains(&format!("`{kind}.*`"))).collect();
    assert!(missing.is_empty(), "no row for codes that begin with {missing:?}");
}

#[test]
fn every_function_of_the_expression_library_is_in_the_guide() {
    let page = read(&root().join("crates/qkvault/src/guide/score_mods.md"));
    let table = page.split_once("| in `expr::library` |").expect("the page has the table").1;
    let table = table.split_once("\n\n").expect("the table ends").0;
    let all = SCORE_MODS.iter().chain(MASK_MODS);
    let missing: Vec<_> = all.filter(|name| !table.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "no row names {missing:?}");
}

/// Appends the sources of a folder to `text`.
fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it reads").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text.push_str(&read(&path));
        }
    }
}

/// Users search the page for a message. A change of a message must change its row.
#[test]
fn messages_in_the_guide_are_messages_of_the_code() {
    let page = read(&root().join("crates/qkvault/src/guide/troubleshooting.md"));
    let table = page.split_once("| you see |").expect("the page has the table").1;
    let table = table.split_once("\n\n").expect("the table ends").0;
    let mut text = String::new();
    for package in ["compile", "exec", "sys", "cache", "graph"] {
        sources(&root().join("crates").join(package).join("src"), &mut text);
    }
    let first_cell = |row: &str| row.split('|').nth(1).unwrap_or_default().to_owned();
    let messages: Vec<String> = table
        .lines()
        .map(first_cell)
        .flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    assert!(messages.len() > 7, "{messages:?}");
    let gone: Vec<_> = messages.iter().filter(|message| !text.contains(message.as_str())).collect();
    assert!(gone.is_empty(), "no error has the text {gone:?}");
}
