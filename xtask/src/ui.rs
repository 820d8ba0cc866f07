//! Messages of chores. They go to standard error; standard output is for results.

use std::io::{self, IsTerminal as _, Write as _};

/// Prints one line. Ignores a closed standard error.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whether standard error is a terminal, so that progress bars are useful.
pub fn watched() -> bool {
    io::stderr().is_terminal()
}

/// Formats a number of bytes.
pub fn size(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}
