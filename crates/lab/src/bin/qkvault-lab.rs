//! The `qkvault-lab` command: the instruments, apart from what users of the library run.

use std::process::ExitCode;

use clap::Parser;
use qkvault_cli::Globals;
use qkvault_lab::Command;

/// Instruments of qkvault: random attentions against the oracle, rules against the library, times on a GPU.
///
/// Exit code: 0 good, 1 something was refused or is corrupt, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "qkvault-lab", version)]
struct Main {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let Main { globals, command } = Main::parse();
    qkvault_lab::main(&globals, &command)
}
