//! Compares results with golden files. The files are checked in, so that a change is a diff to review.

use std::path::PathBuf;

use crate::cudnn::say;

/// Compares a text with `tests/goldens/NAME`, or writes it there with `UPDATE_GOLDENS=1`.
///
/// # Panics
///
/// Panics if they differ, with every entry that differs.
pub fn check(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("goldens").join(name);
    if std::env::var_os("UPDATE_GOLDENS").is_some_and(|value| value == "1") {
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        say(&format!("written: {}", path.display()));
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
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
    fn a_difference_contains_its_row() {
        let (a, b) = ("# head\nrow 1\n    plan\nrow 2\n    plan\n", "# head\nrow 1\n    refused\nrow 2\n    plan\n");
        assert_eq!(difference(a, b), ["- row 1\n    plan", "+ row 1\n    refused"]);
        assert!(difference(a, a).is_empty());
        assert_eq!(difference("a\nb\n", "b\na\n").len(), 1);
    }
}
