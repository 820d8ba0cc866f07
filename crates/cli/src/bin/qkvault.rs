//! The `qkvault` command. Tasks that need the workspace's sources are in `cargo xtask` instead.

use std::process::ExitCode;

use clap::Parser;
use qkvault_cli::{Command, Globals};

/// Compiles attention plans ahead of time, keeps them in a vault, and runs them on a GPU.
///
/// `qkvault help text` is the page on descriptions in the text form, which `--text` takes.
///
/// Exit code: 0 success, 1 something was refused, failed or is corrupt, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "qkvault", version)]
struct Main {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    if qkvault_cli::printed_page() {
        return ExitCode::SUCCESS;
    }
    let Main { globals, command } = Main::parse();
    qkvault_cli::main(&globals, &command)
}
