//! The `qkvault-lab` command: test and measurement tools that users of the library do not need.

use std::process::ExitCode;

use clap::Parser;
use qkvault_cli::Globals;
use qkvault_lab::LabCommand;

/// Tests and measures qkvault: random attentions against the oracle, rules against cuDNN, and times on a GPU.
///
/// Exit code: 0 success, 1 something was refused, failed or is corrupt, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "qkvault-lab", version)]
struct LabMain {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: LabCommand,
}

fn main() -> ExitCode {
    let LabMain { globals, command } = LabMain::parse();
    qkvault_lab::main(&globals, &command)
}
