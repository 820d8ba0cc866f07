//! `cargo xtask`: the chores of this workspace. Exit code 0 is good, 1 is an error, 2 is wrong usage.

use std::process::ExitCode;

use clap::Parser;

/// The chores of the qkvault workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Get the cuDNN libraries, by pip and with pinned hashes, into the cache folder
    Fetch(xtask::fetch::Args),
    /// Generate the cuDNN declarations, or check that they are up to date
    Bindings(xtask::bindings::Args),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Fetch(args) => xtask::fetch::run(&args).map_err(anyhow::Error::from),
        Command::Bindings(args) => xtask::bindings::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            xtask::ui::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
