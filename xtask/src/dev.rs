//! The packages of `dev`, which users never build: their programs as commands of `cargo xtask`.

use anyhow::{Context as _, Result};

use crate::cargo;

/// Options of a command, which are those of the program behind it.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct DevArgs {
    /// The program's options; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    _options: Vec<String>,
}

/// Runs a package's program with the words of this process from `command` on; `keep` says whether it is one of them.
///
/// # Errors
///
/// It does not build, or fails. The program says why.
pub fn program(package: &str, command: &str, keep: bool) -> Result<()> {
    let words: Vec<String> = std::env::args().skip_while(|word| word != command).skip(usize::from(!keep)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    cargo::run(&[&["run", "--quiet", "--package", package, "--"], &words[..]].concat(), &[])
}

/// Runs every target of fuzzing for some seconds in all, with the program that the tests have built.
///
/// # Errors
///
/// The program is not there, or an input fails.
pub(crate) fn fuzz(seconds: u32) -> Result<()> {
    let own = std::env::current_exe().context("this program has no path")?;
    let program = own.with_file_name("qkvault-fuzz");
    cargo::run_program(program.into(), &["--seconds", &seconds.to_string()], &[])
}
