//! Prints to standard output and standard error; nothing else does.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command's output")]

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// Prints one JSON object on standard output.
pub fn json(value: &serde_json::Value) {
    use std::io::Write as _;
    // Ignored: a reader may close the pipe early.
    let _ = writeln!(std::io::stdout(), "{value:#}");
}

/// Prints one JSON object on one line of standard output, for a program that reads line by line.
pub fn record(value: &serde_json::Value) {
    use std::io::Write as _;
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{value}").and_then(|()| out.flush());
}

/// Prints a line on standard output.
pub fn line(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints a progress line or a note on standard error.
pub fn note(text: &str) {
    eprintln!("{text}");
}

/// Prints an error on standard error.
pub fn problem(text: &str) {
    eprintln!("{text}");
}

/// Prints a table. Columns whose name starts with `>` are right-aligned.
pub fn table(columns: &[&str], rows: &[Vec<String>]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|c| c.trim_start_matches('>')));
    for row in rows {
        table.add_row(row.iter().zip(columns).map(|(text, column)| {
            let alignment = if column.starts_with('>') { CellAlignment::Right } else { CellAlignment::Left };
            Cell::new(text).set_alignment(alignment)
        }));
    }
    line(&table.trim_fmt());
}

/// Formats a number of bytes, such as `80.1 KB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_have_a_unit() {
        for (n, text) in [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (80_123, "80.1 KB"), (74_360_000, "74.4 MB")] {
            assert_eq!(super::bytes(n), text);
        }
    }
}
