//! The `qkvault-lab` command as functions: tools that find wrong numbers, find rules that differ from cuDNN, and
//! measure times.
//!
//! * `selftest` runs random attentions on a GPU and compares them with the float64 oracle.
//! * `fuzz-rules` compares the rules' answers with cuDNN's for random descriptions, without a GPU.
//! * `invariant` compares bits of serving steps in random compositions.
//! * `soak` launches from many threads on many streams for minutes, checks every result and watches memory.
//! * `bench` measures times on a GPU.
//!
//! Users of the library do not need it; their command is `qkvault` (crate `qkvault-cli`).

#![deny(unsafe_code)]

mod bench;
mod fuzz_rules;
mod invariant;
mod selftest;
mod soak;
mod workers;
mod world;

use std::ffi::OsString;
use std::process::ExitCode;

use qkvault_cli::{Globals, finish};

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub enum LabCommand {
    /// Time attentions of a file on the GPU, forward and backward
    Bench(bench::BenchArgs),
    /// Run random attentions on the GPU and compare them with the oracle
    Selftest(selftest::SelftestArgs),
    /// Launch random compositions of serving steps on the GPU, and compare the bits of invariant attentions
    Invariant(invariant::InvariantArgs),
    /// Launch from many threads on many streams for minutes, check every result, and watch memory
    Soak(soak::SoakArgs),
    /// Compare the rules' answers with cuDNN's for random descriptions, and report differences
    FuzzRules(fuzz_rules::FuzzRulesArgs),
}

/// Parses a command from its words, such as `["bench", "--cases", "training.txt"]`, for programs that run several
/// commands.
///
/// # Errors
///
/// The words are not a valid command; the error describes why.
pub fn parse<T: Into<OsString> + Clone>(words: impl IntoIterator<Item = T>) -> Result<LabCommand, clap::Error> {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true)]
    struct LabCommandLine {
        #[command(subcommand)]
        command: LabCommand,
    }
    <LabCommandLine as clap::Parser>::try_parse_from(words).map(|words| words.command)
}

/// Runs a command and returns its exit code.
#[must_use]
pub fn main(globals: &Globals, command: &LabCommand) -> ExitCode {
    finish(globals, || match command {
        LabCommand::Bench(args) => bench::run(globals, args),
        LabCommand::Selftest(args) => selftest::run(globals, args),
        LabCommand::Invariant(args) => invariant::run(globals, args),
        LabCommand::Soak(args) => soak::run(globals, args),
        LabCommand::FuzzRules(args) => fuzz_rules::run(globals, args),
    })
}
