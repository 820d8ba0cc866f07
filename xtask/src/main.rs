//! `cargo xtask`: the chores of this workspace.

use clap::Parser;

/// The chores of the qkvault workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Generate the cuDNN declarations, or check that they are up to date.
    Bindings(xtask::bindings::Args),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Bindings(args) => xtask::bindings::run(&args),
    }
}
