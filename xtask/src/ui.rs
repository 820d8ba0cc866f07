//! What people see while a chore runs. All of it goes to standard error: standard output is for results.

use std::io::{self, IsTerminal as _, Write as _};

/// One line for whoever watches; a closed standard error is no reason to fail.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whether somebody watches on a terminal, and so wants bars rather than lines.
pub fn watched() -> bool {
    io::stderr().is_terminal()
}

/// A length in bytes as people write it.
pub fn size(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}
