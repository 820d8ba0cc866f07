//! The load client: it starts servers, measures them, fills their pools, and checks answers.

mod bench;
mod check;
mod client;
mod peer;
mod preempt;
mod process;
mod users;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};

use crate::config::ModelShape;
use crate::{COMMIT, ServerError};
use process::ServerProcess;

/// Loads servers of this example, measures them and checks their answers.
#[derive(Debug, Parser)]
pub struct Load {
    #[command(subcommand)]
    what: LoadCommand,
}

#[derive(Debug, Subcommand)]
enum LoadCommand {
    /// Tokens per second and times to the first token for some numbers of users; then answers are scored
    Bench {
        #[command(flatten)]
        common: LoadOptions,
        /// Numbers of users
        #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64, 256])]
        users: Vec<usize>,
        /// Seconds of each measurement; a third as many before it are not counted
        #[arg(long, default_value_t = 6.0)]
        seconds: f64,
        /// Answers that are scored, each for its prompt alone
        #[arg(long, default_value_t = 2000)]
        scored: usize,
        /// The peer's program (bench/server_peer.py): it serves the same requests, and scores answers too
        #[arg(long, value_name = "FILE")]
        peer: Option<PathBuf>,
        /// Answers that the peer scores
        #[arg(long, default_value_t = 200)]
        peer_scored: usize,
        /// Also measure the server without captured decodes
        #[arg(long)]
        no_graphs: bool,
    },
    /// Users on a pool that is too small for them: sequences lose their pages, are computed again, and are scored
    Preempt {
        #[command(flatten)]
        common: LoadOptions,
        /// Users at once
        #[arg(long, default_value_t = 128)]
        users: usize,
        /// Seconds
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
        /// Preemptions that there must be
        #[arg(long, default_value_t = 200)]
        least: u64,
        /// Answers of preempted sequences that are scored
        #[arg(long, default_value_t = 500)]
        scored: usize,
    },
}

/// Options of all commands.
#[derive(Clone, Debug, Args)]
struct LoadOptions {
    /// The server's program (default: beside this one)
    #[arg(long)]
    server: Option<PathBuf>,
    /// The model
    #[arg(long, default_value = "1b")]
    model: String,
    /// Servers run on this CPU
    #[arg(long)]
    cpu: bool,
    /// The vault of the servers, which build what it lacks (default: the user's, which they only read)
    #[arg(long)]
    vault: Option<PathBuf>,
    /// Also write the record to this file
    #[arg(long)]
    out: Option<PathBuf>,
    /// Seed of prompts
    #[arg(long, default_value_t = 1)]
    seed: u32,
}

impl LoadOptions {
    fn shape(&self) -> Result<ModelShape, ServerError> {
        ModelShape::named(&self.model)
    }

    /// What a record begins with.
    fn record(&self, server: &ServerProcess) -> Result<Value, ServerError> {
        let (shape, page) = (self.shape()?, server.metrics()?);
        let named = |name: &str| page.label(name).map(str::to_owned);
        Ok(json!({
            "device": named("device"), "driver": driver(), "cudnn": named("cudnn"), "commit": COMMIT,
            "server_commit": named("commit"), "model": shape.name, "parameters": shape.parameters(),
            "said": server.said,
        }))
    }

    /// Writes the record so far.
    fn save(&self, record: &Value) -> Result<(), ServerError> {
        if let Some(out) = &self.out {
            std::fs::write(out, format!("{record:#}\n"))?;
        }
        Ok(())
    }
}

/// The version of NVIDIA's driver, if its program is there.
fn driver() -> Option<String> {
    let mut asked = std::process::Command::new("nvidia-smi");
    let said = asked.args(["--query-gpu=driver_version", "--format=csv,noheader"]).output().ok()?;
    Some(String::from_utf8_lossy(&said.stdout).lines().next()?.trim().to_owned())
}

/// Prints a line about what is done now.
#[allow(clippy::print_stdout, reason = "this is a program's output")]
fn say(line: &str) {
    println!("{line}");
}

impl Load {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// A server does not start, or something was wrong.
    pub fn run(&self) -> Result<(), ServerError> {
        let (common, record) = match &self.what {
            LoadCommand::Bench { common, users, seconds, scored, peer, peer_scored, no_graphs } => {
                let peer = peer.as_deref().map(|program| (program, *peer_scored));
                (common, bench::run(common, users, (*seconds, *scored), peer, *no_graphs)?)
            }
            LoadCommand::Preempt { common, users, seconds, least, scored } => {
                (common, preempt::run(common, *users, *seconds, (*least, *scored))?)
            }
        };
        say(&format!("{record:#}"));
        common.save(&record)?;
        match record["wrong"].as_array() {
            Some(wrong) if wrong.is_empty() => Ok(()),
            _ => Err(format!("wrong: {:#}", record["wrong"]).into()),
        }
    }
}
