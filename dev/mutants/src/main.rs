//! `cargo xtask mutants`: changes the code in many small ways, and finds the changes that no test detects.
//!
//! Building once per mutant would take hours (`docs/results/mutants.md`), so the command compiles all mutants at once.
//! It rewrites a copy of the workspace so that every change is next to the original code and has a number (`rewrite`,
//! `constants`), builds it once (`build`), and runs each test once to record the numbers that it reaches (`suite`).
//! Then an environment variable turns on each number, and the command runs the tests that reach it until one fails
//! (`judge`).

mod build;
mod constants;
mod fixed;
mod judge;
mod mutant;
mod operators;
mod page;
mod record;
mod rewrite;
mod run;
mod scratch;
mod suite;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::Parser as _;

/// Changes the code in many small ways and reports the changes that no test detects.
#[derive(Clone, Debug, clap::Parser)]
struct MutantsArgs {
    /// Judge only mutants of files whose path contains one of these
    #[arg(long, value_name = "PART")]
    file: Vec<String>,
    /// Judge only the mutants with these keys
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    ids: Vec<String>,
    /// Judge only one part of several, such as 1/4
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Also judge again the mutants that no test detected
    #[arg(long)]
    again: bool,
    /// Discard all recorded verdicts
    #[arg(long)]
    fresh: bool,
    /// Count and build the mutants, and judge none
    #[arg(long)]
    list: bool,
    /// Write docs/results/mutants.json and the tables of docs/results/mutants.md from the record
    #[arg(long)]
    write: bool,
    /// Number of parallel tests
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// Cases of property tests that do not set their own number
    #[arg(long, value_name = "N", default_value_t = 64)]
    cases: u32,
}

/// One part of several.
#[derive(Clone, Copy, Debug)]
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
            _ => Err(format!("'{text}' is not a part: write I/N, such as 1/4 for the first of four")),
        }
    }
}

fn main() -> ExitCode {
    match run::run(&MutantsArgs::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            xtask::ui::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
