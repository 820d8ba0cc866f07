//! The instruments of qkvault, as functions: what finds wrong numbers, rules that differ from the library, and how long things take.
//!
//! * `selftest` runs random attentions on a GPU and compares them with the float64 oracle; under compute-sanitizer, too.
//! * `fuzz-rules` puts random descriptions to the rules and to the library, with no GPU.
//! * `bench` and `bench-serving` measure.
//!
//! Users of the library need none of it; `qkvault` is their command (`qkvault-cli`).

mod bench;
mod bench_serving;
mod fuzz_rules;
mod selftest;
mod workers;

use std::ffi::OsString;
use std::process::ExitCode;

use qkvault_cli::{Globals, finish};

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Time attentions of a file on the GPU, forward and backward
    Bench(bench::Args),
    /// Run random attentions on the GPU and compare them with the oracle
    Selftest(selftest::Args),
    /// Measure steps of serving on the GPU: decodes, chunks of prompts, what padding costs, thousands of random steps
    BenchServing(bench_serving::Args),
    /// Put random descriptions to the rules and to the library, and tell in which they differ
    FuzzRules(fuzz_rules::Args),
}

/// A command from its words, for programs that run several: `["bench", "--cases", "training.txt"]`.
///
/// # Errors
///
/// What is wrong with the words.
pub fn parse<T: Into<OsString> + Clone>(words: impl IntoIterator<Item = T>) -> Result<Command, clap::Error> {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true)]
    struct Words {
        #[command(subcommand)]
        command: Command,
    }
    <Words as clap::Parser>::try_parse_from(words).map(|words| words.command)
}

/// Runs a command and says how it ended.
#[must_use]
pub fn main(globals: &Globals, command: &Command) -> ExitCode {
    finish(globals, || match command {
        Command::Bench(args) => bench::run(globals, args),
        Command::Selftest(args) => selftest::run(globals, args),
        Command::BenchServing(args) => bench_serving::run(globals, args),
        Command::FuzzRules(args) => fuzz_rules::run(globals, args),
    })
}
