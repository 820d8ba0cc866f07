//! Compares results with golden files. The files are checked in, so that a change is a diff to review.

use std::path::PathBuf;

use crate::cudnn::say;

/// Whether whole goldens are compared or written (`QKVAULT_FULL_TABLE=1`, `UPDATE_GOLDENS=1`), and not a part.
#[must_use]
pub fn is_whole() -> bool {
    ["QKVAULT_FULL_TABLE", "UPDATE_GOLDENS"].iter().any(|name| std::env::var_os(name).is_some_and(|v| v == "1"))
}

/// The versions of cuDNN that tests compile with in every run.
pub const VERSIONS: [&str; 3] = ["9.14.0", "9.19.0", "9.27.0"];

/// Those that compile every kind of attention.
pub const RECENT: &[&str] = VERSIONS.split_at(1).1;

/// The rows that a run compiles with this version: what `versions` answer alike is shared out among them, so that each
/// row has its turn once in a run. With `QKVAULT_FULL_TABLE=1`, all of them.
///
/// # Panics
///
/// Panics if `versions` does not have the version.
#[must_use]
pub fn turn<T>(rows: Vec<T>, version: &str, versions: &[&str]) -> Vec<T> {
    if is_whole() {
        return rows;
    }
    let own = versions.iter().position(|one| *one == version).unwrap_or_else(|| panic!("no turn for {version}"));
    let count = versions.len();
    // Whoever begins changes: rows often come in as many kinds as there are versions.
    let turn = |row: usize| (row + row / count) % count;
    rows.into_iter().enumerate().filter(|(row, _)| turn(*row) == own).map(|(_, row)| row).collect()
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("goldens").join(name)
}

fn read(name: &str) -> String {
    let path = path(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Compares the names of all entries of `tests/goldens/NAME`, in their order.
///
/// # Panics
///
/// Panics if the golden is of other rows.
pub fn check_names(name: &str, names: &[&str]) {
    let golden = read(name);
    let known: Vec<&str> = golden.lines().filter(|line| !line.starts_with([' ', '#'])).collect();
    assert!(known == names, "{name} is of other rows than the table; write it again with UPDATE_GOLDENS=1");
}

/// Compares some entries with those of `tests/goldens/NAME`.
///
/// # Panics
///
/// Panics if one is not there, with every entry that is not.
pub fn check_part(name: &str, part: &[String]) {
    let golden = read(name);
    let known = entries(&golden);
    let other: Vec<&str> =
        part.iter().map(|entry| entry.trim_end()).filter(|e| !known.iter().any(|k| k == e)).collect();
    assert!(
        other.is_empty(),
        "these results are not in {name}; review each, then accept them with UPDATE_GOLDENS=1:\n{}",
        other.join("\n")
    );
}

/// Compares a text with `tests/goldens/NAME`, or writes it there with `UPDATE_GOLDENS=1`.
///
/// # Panics
///
/// Panics if they differ, with every entry that differs.
pub fn check(name: &str, text: &str) {
    let path = path(name);
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|value| value == "1") {
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        say(&format!("written: {}", path.display()));
        return;
    }
    let golden = read(name);
    let differ = difference(&golden, text);
    assert!(
        differ.is_empty(),
        "the results differ from {}; review each entry, then accept them with UPDATE_GOLDENS=1:\n{}",
        path.display(),
        differ.join("\n")
    );
}

/// The entries (a line with the indented lines below it) that only one of the texts has.
fn difference(golden: &str, text: &str) -> Vec<String> {
    let (old, new) = (entries(golden), entries(text));
    let gone = old.iter().filter(|e| !new.contains(e)).map(|e| format!("- {e}"));
    let came = new.iter().filter(|e| !old.contains(e)).map(|e| format!("+ {e}"));
    let lines: Vec<String> = gone.chain(came).collect();
    match lines.is_empty() && golden != text {
        true => vec!["the same entries in another order, or twice".to_owned()],
        false => lines,
    }
}

fn entries(text: &str) -> Vec<String> {
    let mut list: Vec<String> = Vec::new();
    for line in text.lines() {
        match list.last_mut() {
            Some(entry) if line.starts_with(' ') => {
                entry.push('\n');
                entry.push_str(line);
            }
            _ => list.push(line.to_owned()),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_compared_entry_by_entry() {
        let name = "forward-9.27.0.txt";
        let golden = read(name);
        let all = entries(&golden);
        let named: Vec<&str> = golden.lines().filter(|line| !line.starts_with([' ', '#'])).collect();
        check_names(name, &named);
        check_part(name, &[format!("{}\n", all.last().expect("entries"))]);
        let fails = |run: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
        assert!(fails(&|| check_part(name, &[format!("{}\n    plan: another\n", named[0])])));
        assert!(fails(&|| check_names(name, &named[1..])));
    }

    #[test]
    fn every_row_has_its_turn_with_one_version() {
        let mut all: Vec<usize> =
            VERSIONS.iter().flat_map(|version| turn((0..10).collect(), version, &VERSIONS)).collect();
        all.sort_unstable();
        assert!(all == (0..10).collect::<Vec<_>>() || is_whole(), "{all:?}");
        assert_eq!(RECENT, ["9.19.0", "9.27.0"]);
    }

    #[test]
    fn a_difference_contains_its_row() {
        let (a, b) = ("# head\nrow 1\n    plan\nrow 2\n    plan\n", "# head\nrow 1\n    refused\nrow 2\n    plan\n");
        assert_eq!(difference(a, b), ["- row 1\n    plan", "+ row 1\n    refused"]);
        assert!(difference(a, a).is_empty());
        assert_eq!(difference("a\nb\n", "b\na\n").len(), 1);
    }
}
