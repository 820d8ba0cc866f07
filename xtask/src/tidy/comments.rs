//! Checks the length of comments in Rust files.

use super::MOST_COLUMNS;

/// Adds a fault for every comment line of a Rust file that is too long. Rows of tables cannot be wrapped and may be
/// longer. rustfmt wraps code.
pub(super) fn look(name: &str, text: &str, found: &mut Vec<String>) {
    for (at, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        let is_row = comment.trim_start_matches(['/', '!']).trim_start().starts_with('|');
        let columns = line.chars().count();
        if columns > MOST_COLUMNS && !is_row {
            found.push(format!(
                "{name}:{}: {columns} columns; {MOST_COLUMNS} is the most of a comment outside tables",
                at + 1
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_comment_is_found_but_not_rows_of_tables_and_code() {
        let just = format!("    /// {}", "ü".repeat(112));
        let long = "word ".repeat(25);
        let text = format!(
            "//! {long}\n{just}\n{just}x\n    // {long}\n/// | {long} |\nlet text = \"{long}\"; // short\nlet url = \"https://{long}\";\n"
        );
        let mut found = Vec::new();
        look("a.rs", &text, &mut found);
        let places: Vec<&str> = found.iter().filter_map(|fault| fault.split(" columns").next()).collect();
        assert_eq!(places, ["a.rs:1: 129", "a.rs:3: 121", "a.rs:4: 132"]);
        assert!(found[0].ends_with("120 is the most of a comment outside tables"), "{found:?}");
    }
}
