//! Prints to standard output and standard error; nothing else does.
//!
//! What is printed may come from a file, a pack, a remote or an environment: characters that move a terminal's cursor
//! are escaped here, in text and in JSON, and so are ends of lines within a line and a cell. [`lines`] takes a text
//! whose lines the program itself made; whoever makes it escapes what it puts there (`qkvault_base::on_one_line`).

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command's output")]

use std::io::Write as _;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use qkvault_base::{in_quotes, on_lines, on_one_line};

/// Prints one JSON object on standard output.
pub fn json(value: &serde_json::Value) {
    // Ignored: a reader may close the pipe early.
    let _ = writeln!(std::io::stdout(), "{}", in_quotes(&format!("{value:#}")));
}

/// Prints one JSON object on one line of standard output, for a program that reads line by line.
pub fn record(value: &serde_json::Value) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{}", in_quotes(&value.to_string())).and_then(|()| out.flush());
}

/// So many entries, as a sentence says it.
pub fn entries(count: impl TryInto<u64> + std::fmt::Display + Copy) -> String {
    let one = count.try_into().is_ok_and(|n: u64| n == 1);
    format!("{count} {}", if one { "entry" } else { "entries" })
}

/// Prints a line on standard output.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", on_one_line(text));
}

/// Prints a text of several lines on standard output.
pub fn lines(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", on_lines(text));
}

/// Prints a progress line or a note on standard error.
pub fn note(text: &str) {
    eprintln!("{}", on_one_line(text));
}

/// Prints an error, which may have several lines, on standard error.
pub fn problem(text: &str) {
    eprintln!("{}", on_lines(text));
}

/// A writer of a log on standard error: each event on one line.
#[derive(Debug, Default)]
pub(crate) struct Log;

impl std::io::Write for Log {
    fn write(&mut self, event: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        writeln!(std::io::stderr(), "{}", on_one_line(text.trim_end_matches('\n')))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Prints a table. Columns whose name starts with `>` are right-aligned.
pub fn table(columns: &[&str], rows: &[Vec<String>]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|c| c.trim_start_matches('>')));
    for row in rows {
        table.add_row(row.iter().zip(columns).map(|(text, column)| {
            let alignment = if column.starts_with('>') { CellAlignment::Right } else { CellAlignment::Left };
            Cell::new(on_one_line(text)).set_alignment(alignment)
        }));
    }
    lines(&table.trim_fmt());
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
