//! The `qkvault` command: everything but what needs the workspace's sources.

use std::process::ExitCode;

use clap::Parser;
use qkvault_cli::{Command, Globals};

/// cuDNN attention plans: compiled ahead of time, kept in a vault, run on a GPU.
///
/// Exit code: 0 good, 1 something was refused or is corrupt, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "qkvault", version)]
struct Main {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let Main { globals, command } = Main::parse();
    qkvault_cli::main(&globals, &command)
}
