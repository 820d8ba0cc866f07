//! `cargo xtask fuzz`: puts random inputs to everything that reads data from outside (`crates/fuzz`).

use anyhow::{Context as _, Result};

use crate::cargo;

/// Options of `fuzz`, which are those of the program.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Options: --seconds N, --seed S, --target NAME, --replay FILE, --list; --help tells them all
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    options: Vec<String>,
}

/// Builds the program and runs it.
///
/// # Errors
///
/// It does not build, or an input fails. The program prints the command that replays it.
pub fn run(args: &Args) -> Result<()> {
    let options: Vec<&str> = args.options.iter().map(String::as_str).collect();
    cargo::run(&[&["run", "--quiet", "--package", "qkvault-fuzz", "--"], &options[..]].concat(), &[])
}

/// Runs every target for some seconds in all, with the program that the tests of the workspace have built: on its own
/// it would be built with other features of what it uses, once more.
///
/// # Errors
///
/// The program is not there, or an input fails.
pub(crate) fn built(seconds: u32) -> Result<()> {
    let own = std::env::current_exe().context("this program has no path")?;
    let program = own.with_file_name("qkvault-fuzz");
    cargo::run_program(program.into(), &["--seconds", &seconds.to_string()], &[])
}
