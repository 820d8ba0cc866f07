//! The workspace `dev`, which users never build: its programs as commands of `cargo xtask`, and its part of `test`.
//!
//! It is built into the main workspace's target folder, so that what both use from a registry is built once.

use anyhow::{Context as _, Result};

use crate::cargo;
use crate::programs::{self, TestProgram};

/// Its manifest, from the root.
pub(crate) const MANIFEST: &str = "dev/Cargo.toml";

/// Options of a command, which are those of the program behind it.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct DevArgs {
    /// The program's options; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    _options: Vec<String>,
}

/// Runs cargo in the workspace.
///
/// # Errors
///
/// Cargo fails.
pub(crate) fn cargo(words: &[&str], more: &[(&str, &str)]) -> Result<()> {
    let target = cargo::target()?;
    let (command, rest) = words.split_first().context("a command")?;
    let variables = [&[("CARGO_TARGET_DIR", target.as_str())], more].concat();
    cargo::run(&[&[*command, "--manifest-path", MANIFEST], rest].concat(), &variables)
}

/// Runs a package's program with the words of this process from `command` on; `keep` says whether it is one of them.
///
/// # Errors
///
/// It does not build, or fails. The program says why.
pub fn program(package: &str, command: &str, keep: bool) -> Result<()> {
    let words: Vec<String> = std::env::args().skip_while(|word| word != command).skip(usize::from(!keep)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    cargo(&[&["run", "--quiet", "--package", package, "--"], &words[..]].concat(), &[])
}

/// Runs the workspace's checks.
///
/// # Errors
///
/// A check fails.
pub(crate) fn check(only_tests: bool) -> Result<()> {
    if only_tests {
        return Ok(());
    }
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    cargo(&["doc", "--workspace", "--no-deps", "--lib"], &[("RUSTDOCFLAGS", "-D warnings")])
}

/// The programs that test the workspace, built; its documentation has no examples that run.
///
/// # Errors
///
/// Something does not build.
pub(crate) fn programs() -> Result<Vec<TestProgram>> {
    let target = cargo::target()?;
    programs::build(&["--workspace", "--manifest-path", MANIFEST, "--target-dir", &target])
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
