//! `cargo xtask mutants`: changes the code in a thousand small ways, and asks the tests which of them they notice.
//!
//! A tool that builds once per mutant takes hours here (`docs/results/mutants.md`), so all mutants are compiled at once: a copy of the
//! workspace is rewritten so that every change stands beside the code that it changes, behind a number (`rewrite`, `constants`), is built
//! once (`build`), and each test is run once to see which numbers it reaches (`suite`). Then each number is switched on by a variable of
//! the environment, and the tests that reach it are run until one fails (`judge`).
//!
//! The parser of Rust is compiled only here, in a second build of this program with the feature `mutants`.

#[cfg(feature = "mutants")]
mod build;
#[cfg(feature = "mutants")]
mod constants;
#[cfg(feature = "mutants")]
mod fixed;
#[cfg(feature = "mutants")]
mod judge;
#[cfg(feature = "mutants")]
mod mutant;
#[cfg(feature = "mutants")]
mod operators;
#[cfg(feature = "mutants")]
mod page;
#[cfg(feature = "mutants")]
mod record;
#[cfg(feature = "mutants")]
mod rewrite;
#[cfg(feature = "mutants")]
mod run;
#[cfg(feature = "mutants")]
mod scratch;
#[cfg(feature = "mutants")]
mod suite;
#[cfg(all(test, feature = "mutants"))]
mod tests;

use anyhow::Result;

/// Options of the command.
#[derive(Clone, Debug, clap::Args)]
#[cfg_attr(not(feature = "mutants"), allow(dead_code, reason = "the second build reads them"))]
pub struct Args {
    /// Judge mutants of files whose path contains one of these
    #[arg(long, value_name = "PART")]
    file: Vec<String>,
    /// Judge these mutants, by their keys
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    ids: Vec<String>,
    /// Judge one part of several, such as 1/4
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Judge again what no test noticed, and not only what is new or was changed since
    #[arg(long)]
    again: bool,
    /// Forget every verdict that was recorded
    #[arg(long)]
    fresh: bool,
    /// Count the mutants and build them, and judge none
    #[arg(long)]
    list: bool,
    /// Write docs/results/mutants.json and the tables of docs/results/mutants.md from what is recorded
    #[arg(long)]
    write: bool,
    /// How many tests run at a time
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// Cases that property tests draw where they do not say themselves
    #[arg(long, value_name = "N", default_value_t = 64)]
    cases: u32,
}

/// One part of several.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "mutants"), allow(dead_code, reason = "the second build reads them"))]
struct Shard {
    at: usize,
    of: usize,
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let parts = text.split_once('/').and_then(|(at, of)| Some((at.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((at, of)) if 1 <= at && at <= of => Ok(Shard { at, of }),
            _ => Err(format!("'{text}' is no part: write I/N, such as 1/4 for the first of four")),
        }
    }
}

/// Runs the command.
///
/// # Errors
///
/// When the copy cannot be written or built, or a test fails without any mutant. Mutants that no test notices are told, and no error.
#[cfg(feature = "mutants")]
pub fn run(args: &Args) -> Result<()> {
    run::run(args)
}

/// Runs the command in a second build of this program.
///
/// # Errors
///
/// When that build fails, or the command in it.
#[cfg(not(feature = "mutants"))]
pub fn run(_args: &Args) -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let cargo = ["run", "--quiet", "--package", "xtask", "--features", "mutants", "--"];
    crate::cargo::run(&[&cargo[..], &given].concat(), &[])
}
